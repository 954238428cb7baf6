"""Programs that were written elsewhere become a run, judged here."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.runs.imports import import_samples
from koderz.runs.judge import Samples, read_samples
from koderz.runs.session import SessionResult
from koderz.settings.schema import Settings
from koderz.types import Task
from tests.koderz.world import write_tasks

TASKS = [Task(name, f'def f{name}():\n    """Doc."""\n', f"f{name}") for name in ("a", "b")]


def samples_file(folder: Path, *rows: Any) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def read(folder: Path, *rows: Any) -> Samples:
    return read_samples(samples_file(folder, *rows), TASKS)


def test_import_puts_a_completion_after_the_prompt(tmp_path: Path) -> None:
    first, second = read(
        tmp_path, {"task_id": "a", "completion": "    return 1"}, {"task_id": "b", "completion": "x", "solution": "y"}
    ).samples

    assert (first.program, second.program) == (TASKS[0].prompt + "    return 1", "y")


def test_import_takes_programs_of_a_task_as_samples(tmp_path: Path) -> None:
    found = read(tmp_path, *[{"task_id": "a", "solution": str(n)} for n in range(3)])

    assert [(w.number, w.program) for w in found.samples] == [(0, "0"), (1, "1"), (2, "2")]


def test_import_takes_the_last_attempt_of_an_experiment(tmp_path: Path) -> None:
    rows = [{"task_id": "a", "solution": text, "experiment_id": "exp_1"} for text in ("first", "last")]

    assert [w.program for w in read(tmp_path, *rows).samples] == ["last"]


def test_import_reads_the_author_from_the_file(tmp_path: Path) -> None:
    rows = [{"task_id": "a", "solution": "", "model": "gpt-x"}, {"task_id": "b", "solution": "", "model": "gpt-x"}]

    assert read(tmp_path, *rows).model == "gpt-x"
    for other in ({**rows[1], "model": "other"}, {"task_id": "b", "solution": ""}, {**rows[1], "model": ["gpt-x"]}):
        with pytest.raises(KoderzError, match="name the model with --model"):
            _ = read(tmp_path, rows[0], other).model


def test_import_keeps_arms_apart_with_zero_shot_as_default(tmp_path: Path) -> None:
    found = read(tmp_path, *[{"task_id": "a", "solution": "", "solver": s} for s in ("iterative", "mine")])

    assert found.solvers == ("zero-shot", "iterative")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"task_id": "c", "solution": ""}, "no task 'c'"),
        ({"task_id": "a"}, "'completion' is missing"),
        ({"task_id": "a", "solution": 3}, "'solution' has to be text"),
        ("garbage\n", "not JSON"),
    ],
)
def test_import_names_a_malformed_line_and_reads_the_rest(tmp_path: Path, bad: Any, said: str) -> None:
    found = read(tmp_path, {"task_id": "a", "solution": "x"}, bad)

    assert len(found.samples) == 1
    (line,) = found.malformed
    assert "line 2" in line
    assert said in line
    with pytest.raises(KoderzError, match="holds no sample"):
        read(tmp_path, bad)


def imported(folder: Path, *rows: Any) -> SessionResult:
    settings = Settings(
        local_model="simulated", dataset=write_tasks(folder, 2), results=folder / "results", judges=1
    )  # which needs no containment
    return asyncio.run(import_samples(samples_file(folder, *rows), settings, tell=lambda _: None))[0]


def test_import_judges_anew_and_records_its_source(tmp_path: Path) -> None:
    (folder := tmp_path).mkdir(exist_ok=True)
    session = imported(
        folder, {"task_id": "T/0", "solution": ""}, {"task_id": "T/1", "solution": "def nothing(): pass"}
    )

    summary = session.summary
    assert (summary.status, summary.planned, summary.summary.successes) == ("complete", 2, 0)
    assert summary.arms["zero-shot"].results[0].cause == "no_code"
    assert summary.config["imported"] is True
    assert summary.environment["imported"]["file"] == "samples.jsonl"
    assert summary.summary.total_cost == 0


def test_import_with_uneven_samples_is_complete_and_says_so(tmp_path: Path) -> None:
    summary = imported(tmp_path, *[{"task_id": task, "solution": ""} for task in ("T/0", "T/0", "T/1")]).summary

    assert (summary.status, summary.planned, summary.summary.total_problems) == ("complete", 4, 3)
    assert "1 less than 2 samples a task" in summary.reason


def test_import_that_fails_leaves_nothing(tmp_path: Path) -> None:
    settings = Settings(
        local_model="simulated", dataset=write_tasks(tmp_path, 2), results=tmp_path / "results", judges=1
    )
    path = samples_file(tmp_path, {"task_id": "T/0", "solution": ""})

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
        asyncio.run(import_samples(path, settings, tell=interrupt))
    gc.collect()  # or asyncio complains of the tasks that were interrupted while another test runs

    assert [path for path in (tmp_path / "results").iterdir() if path.name.startswith("bench_")] == []
