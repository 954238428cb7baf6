"""Replies of other runs that answer a run's calls: what is found, what isn't, and what is said of it."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

import koderz
from koderz import KoderzError
from koderz.analysis.compare import compare_runs
from koderz.analysis.difficulty import difficulty
from koderz.analysis.leaderboard import leaderboard
from koderz.analysis.pairs import Side
from koderz.cli import app
from koderz.engines.resources import places_of
from koderz.runs.prepare import prepare
from koderz.systems.publishing.verify.verification import verify_run
from koderz.testing import ModelServer
from koderz.testing.wire import Request
from koderz_tracker.journal import NAME
from koderz_tracker.runs import lock_run

RESULTS = Path("benchmark_results")
PRICES = '[prices."openai/recorded"]\ninput = 1000\noutput = 1000\n'


@dataclass
class Bench:
    """Runs of four questions, each asked once, against one server that counts what it is asked."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    reply: str = "yes"

    def answer(self, request: Request) -> str:
        self.asked.append(str(request.messages[-1]["content"]))
        return self.reply

    async def run(self, **settings: Any) -> koderz.Run:
        return await koderz.benchmark(**self.given(settings))

    def given(self, settings: dict[str, Any]) -> dict[str, Any]:
        usual = {"suite": "qa", "dataset": "faq.jsonl", "model": "openai/recorded", "mode": "zero-shot"}
        return {"base_url": f"{self.url}/v1", **usual, **settings}

    def calls(self) -> int:
        """The number of calls since the last look."""
        count = len(self.asked)
        self.asked.clear()
        return count


Play = Callable[[], AbstractAsyncContextManager[Bench]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """What opens a bench with its server, in an empty folder."""
    for name, value in {"KODERZ_SINKS": "json", "HOME": str(tmp_path), "OPENAI_API_KEY": "sk-none"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"q{n}", "input": f"Is {n} a number?", "target": "yes"} for n in range(4)]
    Path("faq.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("koderz.toml").write_text(PRICES)

    @asynccontextmanager
    async def played() -> AsyncIterator[Bench]:
        bench = Bench()
        async with ModelServer(bench.answer) as server:
            bench.url = server.url
            yield bench

    return played


def lines_of(run: koderz.Run, kind: str) -> list[dict[str, Any]]:
    lines = (RESULTS / run.name / NAME).read_bytes().splitlines()
    return [line for line in map(orjson.loads, lines) if line["kind"] == kind]


def want_no(rows: int) -> None:
    """Has the first rows of the file want another answer."""
    lines = Path("faq.jsonl").read_text().splitlines(keepends=True)
    changed = [line.replace('"target": "yes"', '"target": "no"') for line in lines[:rows]]
    Path("faq.jsonl").write_text("".join([*changed, *lines[rows:]]))


def summary_file(run: koderz.Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{run.run_id}.json").read_bytes())
    return found


def lose_blobs() -> int:
    """Deletes the texts of all runs beside their journals; the number of runs that had some."""
    folders = list(RESULTS.glob("bench_*/blobs"))
    for folder in folders:
        shutil.rmtree(folder)
    return len(folders)


async def invoked(*words: str, code: int = 0) -> str:
    """All that a command prints, run beside the server."""
    done = await asyncio.to_thread(CliRunner().invoke, app, [*words])
    error = str(done.exception) if isinstance(done.exception, KoderzError) else ""
    assert error or done.exit_code == code, done.output
    return done.output + error


def folders() -> list[str]:
    return [path.name for path in RESULTS.iterdir() if path.is_dir()]


def rewrite(run: koderz.Run, change: Callable[[bytes], bytes]) -> None:
    journal = RESULTS / run.name / NAME
    journal.write_bytes(b"".join(map(change, journal.read_bytes().splitlines(keepends=True))))


# What is taken, and what is recorded of it


async def test_reuse_makes_no_call_twice_and_says_whose_replies_it_took(play: Play) -> None:
    async with play() as bench:
        first = await bench.run()
        assert bench.calls() == 4
        again = await bench.run(reuse=True)

        assert bench.calls() == 0
        before, after = ({call["experiment_id"]: call for call in lines_of(run, "call")} for run in (first, again))
        for call in after.values():
            reused = call["reused"]
            paid = before[reused["experiment_id"]]
            assert (reused["run_id"], reused["call"], reused["time"]) == (first.run_id, 1, paid["time"])
            assert (call["cost"], call["cost_saved"]) == (0.0, paid["cost"])
            alike = ("messages", "reply", "tokens_in", "tokens_out", "latency", "sampling", "answered_by", "asked")
            assert [call[name] for name in alike] == [paid[name] for name in alike]
        assert (again.summary.reused_calls, again.summary.total_cost) == (4, 0.0)
        assert again.summary.saved_cost == pytest.approx(first.summary.total_cost) != 0.0
        assert again.paid["total"] == 0.0
        saved = summary_file(again)
        assert {row["reused_calls"] for row in saved["results"]} == {1}
        assert saved["summary"]["saved_cost"] == again.summary.saved_cost
        assert "reused_calls" not in summary_file(first)["results"][0]


async def test_reuse_gives_the_same_summary_but_for_costs_times_and_its_own_fields(play: Play) -> None:
    async with play() as bench:
        plain, again = await bench.run(), await bench.run(reuse=True)
        own = {"experiment_id", "cost", "cost_by_tier", "duration_seconds", "reused", "reused_calls", "saved_cost"}
        figures = {"total_cost", "avg_cost", "cost_per_success", "cost_by_tier", "reused_calls", "saved_cost"}
        rows, sums = [], []
        for run in (plain, again):
            saved = summary_file(run)
            rows.append([{name: row[name] for name in row.keys() - own} for row in saved["results"]])
            sums.append({name: value for name, value in saved["summary"].items() if name not in figures})
        assert rows[0] == rows[1]
        assert [{**each, "measures": None} for each in sums] == [{**sums[0], "measures": None}] * 2


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.5},
        {"max_tokens": 77},
        {"top_p": 0.5},
        {"seed": 7},
        {"stop": ("END",)},
        {"reasoning_effort": "low"},
        {"extra_body": '{"top_k": 3}'},
    ],
)
async def test_reuse_takes_no_reply_to_another_request(play: Play, other: dict[str, Any]) -> None:
    async with play() as bench:
        await bench.run()
        bench.calls()
        await bench.run(reuse=True, **other)
        assert bench.calls() == 4
        await bench.run(reuse=True, **other)
        assert bench.calls() == 0


async def test_reuse_takes_no_reply_of_another_address(play: Play) -> None:
    async with play() as bench:
        await bench.run()
        async with ModelServer("Answer: no") as other:
            run = await bench.run(reuse=True, base_url=f"{other.url}/v1")
        assert run.summary.reused_calls == 0


async def test_reuse_finds_the_same_request_of_another_solver(play: Play) -> None:
    async with play() as bench:
        bench.reply = "Answer: no"
        await bench.run()
        bench.calls()
        run = await bench.run(reuse=True, mode="iterative", max_iterations=2)
        assert (bench.calls(), run.summary.reused_calls) == (4, 4)


async def test_reuse_answers_each_sample_by_a_record_of_its_own(play: Play) -> None:
    async with play() as bench:
        await bench.run(samples=2, temperature=0.8, limit=1)
        bench.calls()
        run = await bench.run(samples=5, temperature=0.8, limit=1, reuse=True)
        assert (bench.calls(), run.summary.reused_calls) == (3, 2)
        again = await bench.run(samples=5, temperature=0.8, limit=1, reuse=True)
        assert bench.calls() == 0
        origins = [tuple(call["reused"].values()) for call in lines_of(again, "call")]
        assert len(set(origins)) == 5, "a copy of a reply is no second one"


async def test_reuse_lets_one_record_answer_one_call_of_a_run(play: Play) -> None:
    async with play() as bench:
        await bench.run(limit=1)
        bench.calls()
        run = await bench.run(mode="comparative", max_iterations=1, limit=1, reuse=True)
        assert bench.calls() == 1, "both arms ask the same, and there is one reply on record"
        assert sum(arm.summary.reused_calls for arm in run.arms.values()) == 1


async def test_reuse_takes_the_latest_of_several_replies(play: Play) -> None:
    async with play() as bench:
        await bench.run()
        bench.reply = "Answer: no"
        latest = await bench.run()
        run = await bench.run(reuse=True)
        assert {call["reused"]["run_id"] for call in lines_of(run, "call")} == {latest.run_id}
        assert run.summary.successes == 0


async def test_reuse_takes_a_reply_that_was_cut_by_its_length(play: Play) -> None:
    async with play() as bench:
        bench.reply = "so " * 300
        first = await bench.run(max_tokens=16)
        rewrite(first, lambda line: line.replace(b'"finish_reason":"stop"', b'"finish_reason":"length"'))
        bench.calls()
        run = await bench.run(max_tokens=16, reuse=True)
        assert (bench.calls(), run.summary.reused_calls) == (0, 4)


@pytest.mark.parametrize("end", [b"time", b"rejected", b"context"])
async def test_reuse_takes_no_call_to_which_the_model_said_nothing(play: Play, end: bytes) -> None:
    async with play() as bench:
        first = await bench.run()
        rewrite(first, lambda line: line.replace(b'"finish_reason":"stop"', b'"finish_reason":"%s"' % end))
        bench.calls()
        await bench.run(reuse=True)
        assert bench.calls() == 4


async def test_reuse_leaves_caps_to_what_is_paid(play: Play) -> None:
    async with play() as bench:
        first = await bench.run()
        run = await bench.run(reuse=True, max_cost=first.summary.total_cost / 100)
        assert (run.status, run.summary.total_problems) == ("complete", 4)


async def test_reuse_judges_anew(play: Play) -> None:
    async with play() as bench:
        assert (await bench.run()).summary.successes == 4
        want_no(4)
        bench.calls()
        run = await bench.run(reuse=True)
        assert (bench.calls(), run.summary.successes) == (0, 0)


async def test_reuse_from_another_folder_and_from_a_run(play: Play) -> None:
    async with play() as bench:
        first = await bench.run()
        for source in (str(RESULTS), str(RESULTS / first.name)):
            bench.calls()
            run = await bench.run(results=f"elsewhere-{source.count('/')}", reuse_from=(source,))
            assert (bench.calls(), run.summary.reused_calls) == (0, 4)
        with pytest.raises(KoderzError, match="no run lies in it; name a run, or a results folder"):
            await bench.run(reuse_from=("state",))
        with pytest.raises(KoderzError, match="there is no run bench_nothing"):
            await bench.run(reuse_from=("bench_nothing",))
        assert folders() == [first.name], "nothing is begun"


async def test_reuse_is_refused_where_experiments_run_elsewhere(play: Play) -> None:
    async with play() as bench:
        with pytest.raises(KoderzError, match="--reuse: the engine modal can't reach the runs on this machine"):
            await koderz.plan(**bench.given({"reuse": True, "engine": "modal"}))


# Records that aren't taken


async def test_reuse_leaves_what_cannot_be_read_and_says_so(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with play() as bench:
        first = await bench.run()
        number = iter(range(100))

        def damaged(line: bytes) -> bytes:
            is_hurt = line.startswith(b'{"kind":"call"') and next(number) == 0
            return line.replace(b'"call":1', b'"call":"one"') if is_hurt else line

        rewrite(first, damaged)
        bench.calls()
        run = await bench.run(reuse=True)
        assert (bench.calls(), run.summary.reused_calls) == (1, 3)
    assert "1 line can't be read and is left out" in caplog.text


async def test_reuse_leaves_a_run_that_is_still_going(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    async with play() as bench:
        first = await bench.run()
        bench.calls()
        lock = lock_run(RESULTS / first.name)
        try:
            await bench.run(reuse=True)
        finally:
            lock.release()
        assert bench.calls() == 4


async def test_reuse_asks_anew_what_was_deleted_meanwhile_and_what_lost_its_text(play: Play) -> None:
    async with play() as bench:
        bench.reply = f"Answer: yes{' ' * (1 << 20)}."
        await bench.run()
        bench.calls()
        assert (await bench.run(reuse=True)).summary.reused_calls == 4
        assert lose_blobs() == 2
        bench.reply = "yes"
        assert bench.calls() == 0
        run = await bench.run(reuse=True)
        assert (bench.calls(), run.summary.reused_calls) == (4, 0)


# What is said beforehand, resuming, verifying, comparing


async def test_plan_says_how_many_calls_are_on_record(play: Play) -> None:
    async with play() as bench:
        first = await bench.run(limit=3)
        bench.calls()
        forecast = await koderz.plan(**bench.given({"reuse": True}))
        third = first.summary.total_cost / 3
        assert forecast.on_record is not None
        assert forecast.on_record.line == (
            f"reuse: 3 of 4 calls are on record (1 run, the oldest less than a minute ago); 1 to make, "
            f"${third:.2f} instead of ${4 * third:.2f}"
        )
        assert forecast.document["reuse"].found == 3
        iterative = await koderz.plan(**bench.given({"reuse": True, "mode": "iterative"}))
        assert iterative.on_record is not None
        assert "3 of 4 first calls are on record" in iterative.on_record.line
        assert "later calls are looked for as they are made" in iterative.on_record.line
        assert bench.calls() == 0


async def test_resume_goes_on_to_reuse_and_takes_nothing_twice(play: Play) -> None:
    async with play() as bench:
        await bench.run(samples=2, temperature=0.8)
        bench.calls()
        run = await bench.run(samples=2, temperature=0.8, reuse=True)
        journal = RESULTS / run.name / NAME
        lines = journal.read_bytes().splitlines(keepends=True)
        calls = [n for n, line in enumerate(lines) if line.startswith(b'{"kind":"call"')]
        journal.write_bytes(b"".join(lines[: calls[4]]))
        again = await koderz.resume(run.name)
        assert bench.calls() == 0
        assert (again.status, again.summary.reused_calls) == ("complete", 8)
        origins = {tuple(call["reused"].values()) for call in lines_of(again, "call")}
        assert len(origins) == 8


async def test_resume_goes_on_without_a_folder_that_was_deleted(play: Play) -> None:
    async with play() as bench:
        await bench.run(results="elsewhere")
        run = await bench.run(reuse_from=("elsewhere",))
        journal = RESULTS / run.name / NAME
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:2]))
        shutil.rmtree("elsewhere")
        bench.calls()
        again = await koderz.resume(run.name)
        assert (again.status, again.summary.total_problems, bench.calls()) == ("complete", 4, 3)


@pytest.mark.usefixtures("play")
async def test_place_of_a_model_has_what_decides_its_replies_besides_the_request() -> None:
    async def places(facts: dict[str, dict[str, str]] | None, **settings: Any) -> dict[str, dict[str, Any]]:
        given = {"suite": "qa", "dataset": "faq.jsonl", "mode": "zero-shot", "local_model": "qwen:7b", **settings}
        return places_of(await prepare(given, None), {"OPENAI_API_KEY": "sk-a"}, facts)

    one, other = {"qwen:7b": {"digest": "a"}}, {"qwen:7b": {"digest": "b"}}
    (name,) = await places(one)
    assert name in one
    assert await places(one) != await places(other)
    assert await places(one) != await places(one, context=512)
    assert await places(None) == {}, "its digest isn't known before it is asked"
    own, elsewhere = {"local_model": "openai/m"}, {"local_model": "openai/m", "base_url": "http://127.0.0.1:9/v1"}
    assert "address" not in (await places(None, **own))["openai/m"]
    assert (await places(None, **elsewhere))["openai/m"]["address"] == "http://127.0.0.1:9/v1"
    assert "sk-a" not in str(await places(None, **elsewhere))
    assert await places(None, **own) == await places(None, **own, context=512), "which isn't sent there"


async def test_verify_holds_for_a_run_with_reused_replies(play: Play) -> None:
    async with play() as bench:
        await bench.run(limit=2)
        run = await bench.run(reuse=True)
        found = await verify_run(RESULTS / run.name, summary=RESULTS / f"{run.name}.json")
        assert not found.findings


async def test_compare_leaves_tasks_of_the_same_replies_out_of_the_test(play: Play) -> None:
    async with play() as bench:
        first = await bench.run(limit=3)
        want_no(1)
        second = await bench.run(reuse=True)
        found = koderz.compare(first, second)
        assert (found.pairs, found.shared_replies, list(found.same_replies)) == (0, 3, ["q0", "q1", "q2"])
        assert list(found.judged_apart) == ["q0"]
        text_of = "\n".join(compare_runs([first.name, second.name], RESULTS).markdown())
        assert "A and B share 3 replies" in text_of
        assert "q0" in text_of


async def test_compare_tests_the_tasks_that_have_replies_of_their_own(play: Play) -> None:
    async with play() as bench:
        first = await bench.run()
        rewrite(first, lambda line: line.replace(b'"asked":"', b'"asks":"') if b"Is 3 a" in line else line)
        second = await bench.run(reuse=True)
        found = koderz.compare(first, second)
        assert (found.shared_replies, found.same_replies, found.pairs) == (3, ["q0", "q1", "q2"], 1)
        assert any("A and B share 3 replies" in note for note in found.notes)


async def test_leaderboards_and_problems_count_no_reply_twice(play: Play) -> None:
    async with play() as bench:
        first = await bench.run()
        second, third = await bench.run(reuse=True), await bench.run()
        sides = [Side(run, "zero-shot") for run in (first, second, third)]
        with pytest.raises(KoderzError, match=r"share 4 replies, which a leaderboard would count twice"):
            leaderboard(sides)
        assert len(leaderboard([sides[0], sides[2]]).standings) == 2
        assert {problem.experiments for problem in difficulty(sides)} == {2}


async def test_screen_says_what_is_on_record_and_what_was_saved(play: Play) -> None:
    async with play() as bench:
        first = await bench.run(limit=3)
        bench.calls()
        words = ("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", "--mode", "zero-shot", "--reuse")
        model = ("--model", "openai/recorded", "--base-url", f"{bench.url}/v1")
        planned = await invoked(*words, *model, "--dry-run")
        assert "Reuse: 3 of 4 calls are on record (1 run, the oldest less than a minute ago); 1 to make" in planned
        assert bench.calls() == 0

        lock = lock_run(RESULTS / first.name)
        going = await invoked(*words, *model, "--limit", "1")
        lock.release()
        assert f"reuse: {first.name} is still going, so none of its replies is taken" in going
        assert bench.calls() == 1

        said = await invoked(*words, *model)
        saved = first.summary.total_cost
        assert "zero-shot: 3 calls answered by replies of other runs, which saved $" in said
        assert f"{saved:.4f}" in said
        assert "reuse: 3 of 4 calls are on record" in said
        assert bench.calls() == 1


@pytest.mark.usefixtures("play")
async def test_reuse_is_refused_by_name_where_nothing_could_read_it() -> None:
    assert "--reuse has no effect here" in await invoked("perf", "serve-bench", "--reuse", code=2)
