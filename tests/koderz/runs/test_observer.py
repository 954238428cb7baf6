"""What a program hears of a run while it goes on: each line of the journal, once it is durable."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import koderz
from koderz.runs import observer
from koderz.testing import ModelServer
from koderz.testing.wire import Request
from koderz_tracker.errors import StorageError
from koderz_tracker.journal import NAME
from tests.conftest import whole_lines

OnEvent = Callable[[dict[str, Any]], object]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with twelve questions."""
    for name in [name for name in os.environ if name.startswith("KODERZ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KODERZ_SINKS", "json")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"q{n}", "input": f"What is {n} + {n}?", "target": str(2 * n)} for n in range(12)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def asked(work: Callable[[dict[str, Any]], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch, **server: Any) -> Any:
    """What `work` returns, handed the settings of a run that asks a server on loopback."""

    def right(request: Request) -> str:
        n = int(request.messages[-1]["content"].split("What is ")[1].split()[0])
        return str(2 * n)

    async def go() -> Any:
        async with ModelServer(right, models=("sums",), **server) as served:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{served.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
            settings = {"suite": "qa", "dataset": Path("sums.jsonl"), "model": "openai/sums"}
            return await work(settings)

    return asyncio.run(go())


def journal() -> list[dict[str, Any]]:
    (path,) = Path().glob(f"benchmark_results/*/{NAME}")
    return whole_lines(path)


@pytest.mark.parametrize("is_async", [False, True])
def test_events_are_the_lines_of_the_journal_in_order(monkeypatch: pytest.MonkeyPatch, *, is_async: bool) -> None:
    heard: list[dict[str, Any]] = []
    durable: list[bool] = []

    def hear(line: dict[str, Any]) -> Awaitable[None] | None:
        heard.append(line)
        durable.append(line in journal())
        return asyncio.sleep(0) if is_async else None

    asked(lambda given: koderz.benchmark(**given, on_event=hear), monkeypatch)

    assert heard == journal()
    assert all(durable)
    assert [line["kind"] for line in (heard[0], heard[-1])] == ["plan", "finished"]


def test_events_of_later_sessions_are_the_added_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[str, list[dict[str, Any]]] = {"resume": [], "retry": [], "rescore": [], "run": []}

    async def work(given: dict[str, Any]) -> int:
        await koderz.benchmark(range(3), **given)
        before = len(journal())
        await koderz.resume(on_event=heard["resume"].append)
        await koderz.retry(on_event=heard["retry"].append)
        await koderz.rescore(on_event=heard["rescore"].append)
        return before

    before = asked(work, monkeypatch)
    assert (heard["resume"], heard["retry"]) == ([], [])  # there is nothing to do
    assert heard["rescore"] == journal()[before:]
    assert heard["rescore"][0]["kind"] == "resumed"
    asked(lambda given: koderz.run("q3", **given, on_event=heard["run"].append), monkeypatch)
    assert [line["kind"] for line in heard["run"]][0::3] == ["plan", "experiment"]


@pytest.mark.parametrize("kind", ["plan", "call", "finished"])
def test_events_error_ends_the_run_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    heard: list[str] = []

    async def hear(line: dict[str, Any]) -> None:
        heard.append(line["kind"])
        if line["kind"] == kind:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        asked(lambda given: koderz.benchmark(**given, concurrency=1, on_event=hear), monkeypatch)

    assert heard.count(kind) == 1
    assert heard[-1] == kind  # and none after it
    ended = [line for line in journal() if line["kind"] == "finished"]
    assert [line["status"] for line in ended] == ["complete" if kind == "finished" else "interrupted"]
    calls = sum(line["kind"] == "call" for line in journal())
    assert calls == 12 if kind == "finished" else calls < 12
    summary = asked(lambda _: koderz.resume(), monkeypatch)
    assert (summary.status, len(summary.results)) == ("complete", 12)


def test_events_that_are_slow_make_the_run_wait_only_when_many_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 lines that may be left, all come while the function takes its time with the first; of 5, few do."""
    came: list[bytes] = []
    gates = [asyncio.Event(), asyncio.Event()]  # of either run

    def counted(self: observer.EventObserver, lines: bytes) -> None:
        came.extend(lines.splitlines())
        hear(self, lines)
        if b'"kind":"finished"' in lines[:30]:
            gates[0].set()

    async def slow(line: dict[str, Any]) -> None:
        await gates[0].wait()

    hear = observer.EventObserver.hear
    monkeypatch.setattr(observer.EventObserver, "hear", counted)
    asked(lambda given: koderz.benchmark(**given, concurrency=1, on_event=slow), monkeypatch)
    assert len(came) == len(journal()) > 36

    async def stopped(given: dict[str, Any]) -> int:
        running = asyncio.create_task(koderz.benchmark(**given, concurrency=1, on_event=slow))
        for _ in range(50):
            await asyncio.sleep(0.01)
        seen = len(came)
        gates[0].set()
        await running
        return seen

    monkeypatch.setattr(observer, "MOST_WAITING", 5)
    monkeypatch.setenv("KODERZ_RESULTS", "others")
    came.clear()
    del gates[0]
    assert asked(stopped, monkeypatch) < 12
    assert len(came) > 36


def test_events_and_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable was heard, and the run ends by the disk's error."""
    written, heard = os.write, list[dict[str, Any]]()

    def full(file: int, data: Any) -> int:
        if b'"kind":"experiment"' in bytes(data)[:40]:
            raise OSError(28, "No space left on device")
        return written(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("koderz_tracker.journal.os.write", full)
        with pytest.raises(StorageError, match="is full"):
            asked(lambda given: koderz.benchmark(**given, concurrency=1, on_event=heard.append), monkeypatch)
    assert heard == journal()


def test_stream_yields_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(given: dict[str, Any]) -> list[dict[str, Any]]:
        return [line async for line in koderz.stream(range(4), **given)]

    assert asked(work, monkeypatch) == journal()


def test_stream_raises_the_errors_of_a_run() -> None:
    async def work() -> list[Any]:
        return [line async for line in koderz.stream(suite="qa", dataset=Path("none.jsonl"), model="simulated")]

    with pytest.raises(koderz.KoderzError, match=r"none\.jsonl"):
        asyncio.run(work())


def test_stream_that_is_left_ends_the_run_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(given: dict[str, Any]) -> None:
        stream = koderz.stream(**given, concurrency=1)
        async for line in stream:
            if line["kind"] == "experiment":
                break
        await stream.aclose()

    asked(work, monkeypatch)
    assert journal()[-1]["status"] == "interrupted"
    assert sum(line["kind"] == "call" for line in journal()) < 12
