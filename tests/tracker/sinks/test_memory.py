"""The memory sink: one memory an experiment and one a run, the same however often the records come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koderz.testing import a_journal, a_plan
from koderz_tracker.memory import Cortex, Memory, open_cortex
from koderz_tracker.memory.memories import how_it_failed
from koderz_tracker.memory.search import search
from koderz_tracker.memory.store import Filter, Store
from koderz_tracker.records import Finished, Plan, Record
from koderz_tracker.sinks import Sink, SinkDown, Source, open_sink
from koderz_tracker.sinks.memory import MemorySink
from koderz_tracker.stories import Stories
from tests.tracker.builders import RUN, attempt, call, experiment_id, fault, judged

WRONG = "def f(x):\n    return [y for y in x]\n"
RIGHT = "import math\n\n\ndef f(x):\n    return sorted(x)\n"


def written(folder: Path, *records: Record, of: Plan | None = None) -> Path:
    return a_journal(folder / "project" / "results", *records, plan=of)


def source_of(folder: Path, **environ: str) -> tuple[Source, list[Record]]:
    stories = Stories(folder)
    spans = [entry.span for entry in stories.refresh()]
    records = list(stories.records(spans))
    (first,) = [record for record in records if isinstance(record, Plan)]
    return Source(folder, first, stories, environ), records


def taken(folder: Path, *batches: slice, **environ: str) -> list[Memory]:
    """What the store holds after the sink took these parts of the journal; by default all of it."""
    source, records = source_of(folder, **environ)
    sink = open_sink("memory", source)
    for part in batches or (slice(None),):
        sink.take(records[part])
    sink.close()
    return stored(folder)


def stored(folder: Path) -> list[Memory]:
    with Store(folder.parent / "memory.db") as store:
        return store.select(Filter())


def experiment(task: int, *verdicts: str, **more: Any) -> list[Record]:
    """The records of an experiment whose attempts ended so, the last of them passed or not."""
    lines: list[Record] = []
    for number, verdict in enumerate(verdicts, 1):
        passed = verdict == "passed"
        cause = "" if passed else verdict
        lines.append(call(task, number, text=f"Write f of task {task}"))
        lines.append(
            attempt(
                task,
                number,
                verdict="passed" if passed else "failed",
                cause=cause,
                program=RIGHT if passed else WRONG,
                feedback="assert f(31337) == 1",
                detail="HIDDEN assert f(31337) == 1",
            )
        )
    if verdicts[-1] == "passed" and len(verdicts) > 1:
        more |= {"lesson": f"T/{task}: {verdicts[-2]}. What fixed it: patience.", "lesson_cause": verdicts[-2]}
    lines.append(judged(task, verdicts[-1] == "passed", iterations=len(verdicts), **more))
    return lines


def test_memory_has_titles_tags_and_metadata_of_the_contract(tmp_path: Path) -> None:
    done = experiment(0, "assertion", "passed")
    folder = written(tmp_path, *done, fault(1, reason="the server was gone"), Finished(status="incomplete"))

    passed, faulted, run = taken(folder)

    one, two = experiment_id(0), experiment_id(1)
    assert passed.title == f"Experiment {one}"
    assert passed.tags == ["result", one, "T/0", "completed", RUN]
    assert passed.key == one
    expected = {
        "benchmark_run_id": RUN,
        "experiment_id": one,
        "problem_id": "T/0",
        "solver": "zero-shot",
        "success": True,
        "iterations": 2,
        "cost": 0.25,
        "model": "m",
        "mode": "zero-shot",
    }
    assert expected.items() <= passed.metadata.items()
    assert passed.created_at == done[-1].time
    assert faulted.tags == ["result", two, "T/1", "fault", RUN]
    assert (faulted.metadata["success"], faulted.metadata["reason"]) == (None, "the server was gone")
    assert faulted.metadata["cause"] == "unreachable"
    assert run.title == f"Benchmark Run {RUN}"
    assert (run.category, run.importance) == ("architecture", "critical")
    assert run.tags == ["benchmark_run", RUN, "zero-shot", "m"]
    summary = json.loads(run.content)
    assert (summary["run_id"], summary["summary"]["successes"], len(summary["faults"])) == (RUN, 1, 1)
    assert {memory.project for memory in (passed, faulted, run)} == {"project"}


def test_memory_content_leaves_out_hidden_tests_and_programs(tmp_path: Path) -> None:
    folder = written(tmp_path, *experiment(0, "assertion", "exception:ValueError", "passed"))

    (memory,) = taken(folder)

    assert "T/0 · zero-shot · m: passed after 3 attempts" in memory.content
    assert "Write f of task 0" in memory.content
    assert "2. failed (exception:ValueError)" in memory.content
    assert "What fixed it" in memory.content
    for secret in ("31337", "HIDDEN", "return", "def f"):
        assert secret not in memory.content
        assert secret not in json.dumps(memory.metadata)


def test_memory_names_what_the_passing_program_uses_and_how_the_task_is_grouped(tmp_path: Path) -> None:
    lines = experiment(0, "passed")
    imports = "import math, os\nfrom hashlib import md5, sha1\nfrom typing import List\n"
    program = f"{imports}\ndef f(x):\n    return math.gcd(x, 2)\n"
    lines[1] = replace(lines[1], program=program)
    folder = written(tmp_path, *lines, of=replace(a_plan(1), groups={"topic": ["number theory"]}))

    (memory,) = taken(folder)

    assert memory.metadata["concepts"] == ["number theory", "math.gcd", "hashlib.md5", "hashlib.sha1"]
    with Store(folder.parent / "memory.db") as store:
        assert [hit.memory.key for hit in search(store, "gcd", Filter(), limit=3)] == [memory.key]


def test_memory_of_a_fault_that_ends_well_is_completed(tmp_path: Path) -> None:
    lines = [
        *experiment(0, "assertion", "passed"),
        fault(1),
        Finished(status="incomplete"),
        *experiment(1, "passed"),
        Finished(status="complete"),
    ]

    found = taken(written(tmp_path, *lines), slice(0, 5), slice(2, None), slice(0, 4))

    assert {memory.key: memory.tags[3] for memory in found if memory.key != RUN} == {
        experiment_id(0): "completed",
        experiment_id(1): "completed",
    }
    assert json.loads(next(memory.content for memory in found if memory.key == RUN))["status"] == "complete"


def test_memory_of_a_single_experiment_has_no_run(tmp_path: Path) -> None:
    folder = written(tmp_path, *experiment(0, "passed"), Finished(status="complete"), of=a_plan(1, run_id=None))

    (memory,) = taken(folder)

    assert memory.tags == ["result", experiment_id(0), "T/0", "completed"]
    assert memory.metadata["benchmark_run_id"] is None


def test_projects_and_places_are_told_by_the_environment(tmp_path: Path) -> None:
    folder = written(tmp_path, *experiment(0, "passed"))
    source, records = source_of(folder, KODERZ_PROJECT="mine", KODERZ_MEMORY=str(tmp_path / "shared.db"))
    sink = open_sink("memory", source)
    sink.take(records)
    sink.close()

    with Store(tmp_path / "shared.db", create=False) as store:
        assert [memory.project for memory in store.select(Filter())] == ["mine"]
    assert not (folder.parent / "memory.db").exists()


def test_secrets_in_what_was_asked_or_went_wrong_stay_out(tmp_path: Path) -> None:
    lines: list[Record] = [
        call(0, text="the key is zq9-very-own and sk-abcdefgh12345678"),
        fault(0, reason="401 for zq9-very-own"),
    ]
    folder = written(tmp_path, *lines)

    (memory,) = taken(folder, OPENAI_API_KEY="zq9-very-own")

    assert "[redacted]" in memory.content
    assert not any(
        secret in path.read_bytes()
        for path in folder.parent.glob("memory.db*")
        for secret in (b"zq9-very-own", b"sk-abcdefgh12345678")
    )


def test_damaged_store_is_down_until_rebuilt_and_keeps_memories(tmp_path: Path) -> None:
    folder = written(tmp_path, *experiment(0, "passed"), Finished(status="complete"))
    before = taken(folder)
    path = folder.parent / "memory.db"
    path.write_bytes(b"nonsense" * 1000)

    with pytest.raises(SinkDown, match="koderz sync --rebuild"):
        taken(folder)
    MemorySink.rebuild(folder.parent, {})

    (aside,) = folder.parent.glob("memory.db.corrupt-*")
    assert aside.read_bytes() == b"nonsense" * 1000
    assert [(m.key, m.content) for m in taken(folder)] == [(m.key, m.content) for m in before]


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import sqlite3

    monkeypatch.setattr("koderz_tracker.sinks.memory._PATIENCE", 0.1)
    folder = written(tmp_path, *experiment(0, "passed"))
    taken(folder)
    holder = sqlite3.connect(folder.parent / "memory.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield folder
    holder.close()


def test_locked_store_is_down(locked: Path) -> None:
    source, records = source_of(locked, KODERZ_PROJECT="another")
    sink: Sink = open_sink("memory", source)
    with pytest.raises(SinkDown, match="locked by another process"):
        sink.take(records)
    sink.close()


# Lessons


def test_error_is_quoted_unless_it_may_quote_a_test() -> None:
    named = how_it_failed("failed", "exception:NameError", "line 1\nNameError: name 'List' is not defined")

    assert named == "failed (exception:NameError): NameError: name 'List' is not defined"
    assert how_it_failed("failed", "exception:ValueError", "ValueError: '31337'") == "failed (exception:ValueError)"


def test_lessons_are_of_the_same_failure_on_other_tasks(tmp_path: Path) -> None:
    folder = written(tmp_path, *experiment(0, "assertion", "passed"), *experiment(1, "syntax", "passed"))
    taken(folder)

    def asked(work: Callable[[Cortex], Awaitable[Any]]) -> Any:
        async def worked() -> Any:
            async with open_cortex(folder.parent / "memory.db") as cortex:
                return await work(cortex)

        return asyncio.run(worked())

    moment = asked(lambda cortex: cortex.snapshot())
    later = written(tmp_path, *experiment(2, "assertion", "passed"), of=a_plan(run_id="bench_ffffffff_20260131_120000"))
    taken(later)

    def lessons(task: str, cause: str, **how: Any) -> list[str]:
        how = {"same_task": False, "until": moment, **how}
        return [text.partition(":")[0] for text in asked(lambda cortex: cortex.recall_lessons(task, cause, **how))]

    assert lessons("T/9", "assertion") == ["T/0"]
    assert lessons("T/9", "syntax") == ["T/1"]
    assert lessons("T/9", "timeout") == []
    assert lessons("T/0", "assertion") == []
    assert lessons("T/0", "assertion", same_task=True) == ["T/0"]
    assert lessons("T/9", "assertion", until=None) == ["T/2", "T/0"]
    assert lessons("T/9", "assertion", simulated=True) == []
