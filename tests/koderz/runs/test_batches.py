"""Runs whose calls are sent in batches: rounds, failures, and nothing that is paid for twice."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import koderz
from koderz.errors import KoderzError
from koderz.testing.batches import Outcome, ServedBatch
from koderz_tracker.errors import StorageError
from koderz_tracker.journal import Journal
from koderz_tracker.records import Batch, Record
from tests.koderz.runs.batching import MODELS, Place, cut_off, paid_twice


@pytest.fixture(params=["openai", "anthropic"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def openai(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_batch_run_goes_round_by_round(place: Place) -> None:
    async def run() -> None:
        async with place.server(looks=3) as server:
            session = await place.begun(server)
            assert [len(batch.lines) for batch in server.batches] == [4, 4]
            assert session.ended.status == "complete"
            assert session.summary.summary.success_rate == 100
            assert paid_twice(server) == []
            assert server.counts == {}

    asyncio.run(run())
    calls, batches = place.lines("call"), place.lines("batch")
    assert [call["batch"].keys() for call in calls] == [{"id", "custom_id"}] * 8
    assert not any("latency" in call for call in calls)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["batch"]["custom_id"]) for call in calls)
    assert [line["state"] for line in batches if "lines" in line] == ["sending", "sending"]
    assert any("4 calls in 1 batch; at most $" in said and "resume bench_" in said for said in place.notices.said)


def _comparable(summary: dict[str, Any]) -> Any:
    """A summary without costs, times, and the fields that name batches."""
    text = json.dumps(summary)
    for name in ("run_id", "benchmark_run_id", "experiment_id"):
        text = re.sub(rf'"{name}": "[^"]*"', f'"{name}": ""', text)
    found = json.loads(text)
    for name in ("start_time", "end_time", "duration_seconds", "paid", "batches", "environment", "config"):
        found.pop(name, None)

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: without(each)
                for key, each in value.items()
                if not re.search(r"cost|latency|duration|time", key) or key == "timeout"
            }
        return [without(each) for each in value] if isinstance(value, list) else value

    return without(found)


def test_batch_run_has_the_summary_of_a_live_one_at_half_the_price(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "live", place.style)
    other.folder.mkdir()

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        found = []
        async with place.server() as server:
            for each, batch in ((place, True), (other, False)):
                more: dict[str, Any] = {} if batch else {"poll": None}
                session = await each.begun(server, batch=batch, **more)
                assert session.summary_path
                found.append(json.loads(session.summary_path.read_text()))
        return found[0], found[1]

    batched, live = asyncio.run(run())
    assert _comparable(batched) == _comparable(live)
    assert batched["summary"]["total_cost"] == pytest.approx(live["summary"]["total_cost"] / 2)
    assert [each["count"] for each in batched["batches"]] == [4, 4]
    assert "batches" not in live


@pytest.mark.parametrize("outcome", ["expired", "errored", "canceled"])
def test_batch_lines_that_fail_go_into_the_next_batch(place: Place, outcome: Outcome) -> None:
    def first_fails(custom_id: str) -> Outcome:
        return outcome if custom_id.endswith("-1") and hash(custom_id[:37]) % 2 else "succeeded"

    async def run() -> None:
        async with place.server(outcome=first_fails) as server:
            session = await place.begun(server)
            assert session.ended.status == "complete"
            assert paid_twice(server) == []

    asyncio.run(run())
    retries = {call["batch"]["custom_id"].rpartition("-")[2]: call["retries"] for call in place.lines("call")}
    assert retries.items() <= {("1", 0), ("2", 1)}


async def test_batch_line_that_is_refused_is_a_fault(place: Place) -> None:
    async with place.server(outcome=lambda _: "refused") as server:
        session = await place.begun(server, n=2)
        assert len(server.batches) == 1
        assert session.ended.status == "incomplete"
        assert {fault["cause"] for fault in session.summary.faults} == {"rejected"}
        server.outcome = lambda _: "succeeded"
        assert (await place.again(server, how="retry")).ended.status == "complete"


async def test_batch_learns_what_a_model_refuses_in_the_next_round(openai: Place) -> None:
    async with openai.server(refuse=("max_tokens",)) as server:
        session = await openai.begun(server)
        assert session.ended.status == "complete"
        assert [len(batch.lines) for batch in server.batches] == [4, 4, 4]


@pytest.mark.parametrize("keeps_metadata", [True, False])
@pytest.mark.parametrize("upset", ["before", "after"])
async def test_batch_whose_arrival_is_unknown_is_looked_for(place: Place, upset: str, *, keeps_metadata: bool) -> None:
    upsets = [upset]

    async with place.server(keeps_metadata=keeps_metadata, upset=lambda: upsets.pop() if upsets else "") as server:
        session = await place.begun(server)
        assert session.ended.status == "complete"
        assert paid_twice(server) == []
        assert len(server.batches) == 2


class Death:
    """The end of a process at one write into its journal, before it or after it: from there on nothing happens."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, *, after: bool) -> None:
        self.came, self._left, self._after = asyncio.Event(), at, after
        self._patch, self._append = patch, Journal.append
        death = self

        async def append(journal: Journal, lines: Sequence[Record]) -> None:
            death._left -= 1
            if death._left <= 0:
                if death._left == 0 and death._after:
                    await death._append(journal, lines)
                death.came.set()
                await asyncio.Event().wait()
            await death._append(journal, lines)

        patch.setattr(Journal, "append", append)

    async def of(self, session: Any) -> bool:
        """Whether a session dies; else it came to its end."""
        task, came = asyncio.create_task(session), asyncio.create_task(self.came.wait())
        await asyncio.wait([task, came], return_when=asyncio.FIRST_COMPLETED)
        came.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        self._patch.setattr(Journal, "append", self._append)
        return self.came.is_set()


@pytest.mark.parametrize("after", [True, False])
def test_batch_run_that_dies_at_any_write_pays_nothing_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    async def dies(at: int) -> bool:
        own = Place(place.folder / f"{at}", place.style)
        own.folder.mkdir()
        async with own.server(looks=2) as server:
            died = await Death(monkeypatch, at, after=after).of(own.begun(server, n=2))
            session = await own.again(server)
            assert session.ended.status == "complete", at
            assert paid_twice(server) == [], at
            assert len(server.paid) == session.summary.results[0].calls * 2 == 4, at
            return died

    async def run() -> None:
        at = 1
        while await dies(at):
            at += 1
        assert at > 10

    asyncio.run(run())


@pytest.mark.parametrize("upset", ["hang before", "hang after"])
@pytest.mark.parametrize("keeps_metadata", [True, False])
async def test_batch_run_that_dies_while_it_sends_pays_nothing_twice(
    place: Place, upset: str, *, keeps_metadata: bool
) -> None:
    upsets = [upset]
    async with place.server(keeps_metadata=keeps_metadata, upset=lambda: upsets.pop() if upsets else "") as server:
        task = asyncio.create_task(place.begun(server))
        await cut_off(task, lambda: not upsets)
        session = await place.again(server)
        assert session.ended.status == "complete"
        assert paid_twice(server) == []
        assert len(server.batches) == 2


async def test_batch_is_found_among_those_of_others(place: Place) -> None:
    """Another's batch of the same size is not ours, where only results tell."""

    async with place.server(keeps_metadata=False) as server:
        other = Place(place.folder / "other", place.style)
        other.folder.mkdir()
        upsets = ["hang after"]
        server.upset = lambda: upsets.pop() if upsets else ""
        task = asyncio.create_task(place.begun(server))
        await cut_off(task, lambda: not upsets)
        await other.begun(server)
        assert (await place.again(server)).ended.status == "complete"
        assert paid_twice(server) == []
        assert len(server.batches) == 4


async def test_batch_cap_makes_batches_smaller(openai: Place) -> None:
    async with openai.server() as server:
        free = await openai.begun(server, n=8)
        assert free.ended.status == "complete"
    async with (other := Place(openai.folder / "capped")).server() as server:
        other.folder.mkdir()
        session = await other.begun(server, n=8, max_cost=0.006)
        sizes = [len(batch.lines) for batch in server.batches]
        assert session.ended.status == "complete"
        assert max(sizes) < 8
        assert sum(sizes) == 16
        assert session.summary.paid["total"] <= 0.006


async def test_batch_cap_stops_the_run(openai: Place) -> None:
    async with openai.server() as server:
        session = await openai.begun(server, max_cost=1e-9)
        assert session.ended.status == "stopped"
        assert server.batches == []
        assert (await openai.again(server, changes={"max_cost": 1.0})).ended.status == "complete"


async def test_batch_that_never_ends_is_a_fault_and_found_again(place: Place) -> None:
    async with place.server(looks=None) as server:
        session = await place.begun(server, batch_wait=0.05)
        assert session.ended.status == "incomplete"
        assert "--batch-wait" in session.summary.faults[0]["reason"]
        server.looks = 1
        assert (await place.again(server, how="retry")).ended.status == "complete"
        assert paid_twice(server) == []


async def test_batch_that_never_ends_is_cancelled_and_asked_live(place: Place) -> None:
    async with place.server(looks=None) as server:
        session = await place.begun(server, batch_wait=0.05, batch_fallback="live")
        assert session.ended.status == "complete"
        assert {batch.state for batch in server.batches} == {"cancelled" if place.style == "openai" else "ended"}
        assert server.counts[200] + len(server.paid) == 8


def test_batch_that_fails_its_validation_stops_the_run(openai: Place) -> None:
    async def run() -> None:
        async with openai.server(refuses="Enqueued token limit reached") as server:
            session = await openai.begun(server)
            assert session.ended.status == "stopped"
            assert "Enqueued token limit reached" in session.ended.reason
            server.refuses = ""
            assert (await openai.again(server)).ended.status == "complete"

    asyncio.run(run())
    assert [line["state"] for line in openai.lines("batch")].count("failed") == 1


async def test_batch_results_that_are_damaged_are_fetched_again(place: Place) -> None:
    damages = [lambda lines: b"{}\nnot JSON\n" + lines[: len(lines) // 2]]

    async with place.server() as server:
        server.garbled = lambda lines: damages.pop()(lines) if damages else lines
        assert (await place.begun(server)).ended.status == "complete"
        assert paid_twice(server) == []
    assert damages == []


async def test_batch_results_that_stay_damaged_are_faults(place: Place) -> None:
    strange = b'{"custom_id":"exp_0-0-1","response":{"status_code":200,"body":{}}}\n'

    async with place.server() as server:
        server.garbled = lambda lines: strange + b"\n".join(lines.splitlines()[:-1])
        session = await place.begun(server, solver=None, mode="zero-shot")
        assert len(session.summary.results) == 3
        assert "has no result of 1 of 4 calls" in session.summary.faults[0]["reason"]
        server.garbled = lambda lines: lines
        assert (await place.again(server, how="retry")).ended.status == "complete"
        assert paid_twice(server) == []


async def test_batch_results_that_are_deleted_are_a_fault(place: Place) -> None:
    async with place.server(looks=None) as server:
        task = asyncio.create_task(place.begun(server, solver=None, mode="zero-shot"))
        await cut_off(task, lambda: bool(server.batches))
        server.looks = 1
        server.delete_results()
        session = await place.again(server)
        assert "retrying sends its calls again" in session.summary.faults[0]["reason"]
        assert (await place.again(server, how="retry")).ended.status == "complete"


async def test_batch_isn_t_sent_where_its_line_can_t_be_written(openai: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal.append

    async def append(journal: Journal, lines: Sequence[Record]) -> None:
        if any(isinstance(line, Batch) for line in lines):
            raise StorageError("the disk is full")
        await real(journal, lines)

    async with openai.server() as server:
        monkeypatch.setattr(Journal, "append", append)
        with pytest.raises(StorageError, match="the disk is full"):
            await openai.begun(server)
        assert server.batches == []
        monkeypatch.setattr(Journal, "append", real)
        assert (await openai.again(server)).ended.status == "complete"


def test_batch_run_with_a_journal_that_is_read_only_sends_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's file refuses, as a read-only one does, once the run has begun; root may write everywhere."""
    real = os.write

    def write(file: int, data: bytes) -> int:
        if b'"kind":"batch"' in bytes(data):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(file, data)

    async def run() -> None:
        async with place.server() as server:
            monkeypatch.setattr(os, "write", write)
            with pytest.raises(StorageError, match="Read-only file system"):
                await place.begun(server)
            assert server.batches == []
            monkeypatch.setattr(os, "write", real)
            assert (await place.again(server)).ended.status == "complete"
            assert paid_twice(server) == []

    asyncio.run(run())


def test_batch_run_leaves_the_batch_of_another_run(openai: Place) -> None:
    """A batch that another run of the same questions sent meanwhile, of the same size, isn't taken for the lost one."""

    async def run() -> None:
        async with openai.server() as server:
            other = Place(openai.folder / "other")
            other.folder.mkdir()
            upsets = ["hang before"]
            server.upset = lambda: upsets.pop() if upsets else ""
            await cut_off(asyncio.create_task(openai.begun(server)), lambda: not upsets)
            await other.begun(server)
            assert (await openai.again(server)).ended.status == "complete"
            assert [len(batch.lines) for batch in server.batches] == [4] * 4
            assert paid_twice(server) == []

    asyncio.run(run())
    names = {line["name"] for line in openai.lines("batch")}
    assert len(names) == 2
    assert {call["experiment_id"] for call in openai.lines("call")} == {
        call["batch"]["custom_id"].rpartition("-")[0].rpartition("-")[0] for call in openai.lines("call")
    }


async def test_batch_ends_before_anything_is_created_without_a_batch_api(openai: Place) -> None:
    from koderz.testing.server import ModelServer

    async with ModelServer("4", models=["gpt-4o-mini"]) as server:
        with pytest.raises(KoderzError, match="has no batch API") as raised:
            await openai.begun(server)  # type: ignore[arg-type]
        assert raised.value.exit_code == 2
    assert not (openai.folder / "results").exists()


@pytest.mark.parametrize("model", ["simulated", "qwen2.5-coder:7b"])
async def test_batch_needs_a_provider_that_has_them(openai: Place, model: str) -> None:
    async with openai.server() as server:
        with pytest.raises(KoderzError, match=f"{model} has no batch API") as raised:
            await openai.begun(server, local_model=model)
        assert raised.value.exit_code == 2


async def test_cancel_keeps_what_batches_had_done(place: Place) -> None:
    async with place.server(looks=None) as server:
        task = asyncio.create_task(place.begun(server, n=8, solver=None, mode="zero-shot"))
        await cut_off(task, lambda: bool(server.batches) and any(line.get("id") for line in place.lines("batch")))
        session = await place.again(server, buys=False)
        assert session.ended.status == "stopped"
        assert "cancelled" in session.ended.reason
        assert len(session.summary.results) == len(server.paid)
        server.looks = 1
        assert (await place.again(server)).ended.status == "complete"
        assert paid_twice(server) == []


@pytest.mark.parametrize("limit", [{"most_lines": 3}, {"most_bytes": 700}])
async def test_batch_that_is_full_goes_without_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    """A line is some 250 bytes, so that fewer than three fit into 700."""
    for name, value in limit.items():
        monkeypatch.setattr(f"koderz.models.batches.{_API[place.style]}.{name}", value)

    async with place.server() as server:
        session = await place.begun(server, n=7, solver=None, mode="zero-shot")
        assert session.ended.status == "complete"
        sizes = [len(batch.lines) for batch in server.batches]
        assert sum(sizes) == 7
        assert len(sizes) > 2
        assert max(sizes) <= 3
        if "most_bytes" in limit:
            assert all(size <= limit["most_bytes"] for size in map(_size, server.batches))


_API = {"openai": "OpenAIBatches", "anthropic": "AnthropicBatches"}


def _size(batch: ServedBatch) -> int:
    """The bytes of a batch's requests, without what names them."""
    return sum(len(json.dumps(line["body"], separators=(",", ":"))) for line in batch.lines)


@pytest.mark.parametrize("jump", [-10 * 86_400, 10 * 86_400])
async def test_batch_run_is_decided_by_no_wall_clock(
    place: Place, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    real, jumps = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jumps[0])

    def leap() -> str:
        jumps[0] = jump
        return ""

    async with place.server(looks=4, upset=leap) as server:
        session = await place.begun(server, batch_wait=60)
        assert session.ended.status == "complete"
        assert [len(batch.lines) for batch in server.batches] == [4, 4]


@pytest.mark.parametrize("roles", [(), ("judge",)])
def test_batch_role_is_asked_in_batches_though_elsewhere(openai: Place, roles: tuple[str, ...]) -> None:
    """A judge at another provider goes into batches of its own where it is named, else it is asked live."""
    rubric = openai.folder / "rubric.txt"
    rubric.write_text("Is it 4?")

    async def run() -> None:
        async with openai.server() as server:
            await openai.begun(
                server,
                solver=None,
                mode="zero-shot",
                scorer="judge",
                rubric=rubric,
                roles=(f"judge={MODELS['anthropic']}",),
                batch_roles=roles,
            )
            assert {batch.style for batch in server.batches} == ({"openai", "anthropic"} if roles else {"openai"})
            assert (server.counts[200] == 0) == bool(roles)

    asyncio.run(run())
    in_batches = {call["role"] for call in openai.lines("call") if "batch" in call}
    assert in_batches == {"main", *roles}


async def test_batch_role_that_no_arm_has_is_refused(openai: Place) -> None:
    async with openai.server() as server:
        with pytest.raises(KoderzError, match="--batch-role referee: no model has this role here"):
            await openai.begun(server, batch_roles=("referee",))
        assert server.batches == []


def test_reuse_answers_what_no_batch_has(place: Place) -> None:
    """A call on record goes into no batch; one that an earlier session's batch has isn't taken from the record."""
    other = Place(place.folder / "other", place.style)
    other.folder.mkdir()
    once: dict[str, Any] = {"solver": None, "mode": "zero-shot"}

    async def run() -> None:
        async with place.server() as server:
            await other.begun(server, n=1, **once)
            server.looks = None
            task = asyncio.create_task(place.begun(server, n=2, reuse_from=(str(other.folder / "results"),), **once))
            await cut_off(task, lambda: len(server.batches) == 2 and any("id" in line for line in place.lines("batch")))
            server.looks = 1
            await other.begun(server, n=2, **once)
            session = await place.again(server)
            assert session.ended.status == "complete"
            assert [len(batch.lines) for batch in server.batches] == [1, 1, 2]
            owed = server.batches[1].lines[0]["custom_id"]
            assert owed in server.paid
            assert [call["batch"]["custom_id"] for call in place.lines("call") if "reused" not in call] == [owed]

    asyncio.run(run())
    assert sum("reused" in call for call in place.lines("call")) == 1


def test_benchmark_takes_batches(openai: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    openai.write()
    monkeypatch.chdir(openai.folder)

    async def run() -> None:
        async with openai.server() as server:
            for name, value in openai.environ(server).items():
                monkeypatch.setenv(name, value)
            run = await koderz.benchmark(
                model=MODELS["openai"],
                suite="qa",
                dataset="faq.jsonl",
                mode="zero-shot",
                batch=True,
                poll=0.01,
                sinks=("json",),
            )
            assert [len(batch.lines) for batch in server.batches] == [4]
            assert run.summary.success_rate == 100

    asyncio.run(run())
