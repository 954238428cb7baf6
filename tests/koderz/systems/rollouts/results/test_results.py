"""What is read from the files of rollouts: scores by task, the newest of a name, tables; and what the screen says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.rollouts.results import find_rollouts, get_task_score, load_benchmark, table_lines
from koderz.systems.rollouts.results.screen import completed


def _written(data: Path, stamp: str, scores: list[float | None], name: str = "nightly") -> Path:
    """A run of one task with these scores; None ended in a fault."""
    folder = data / "rollouts" / name / stamp
    (folder / "task_results").mkdir(parents=True)
    entries = []
    for number, score in enumerate(scores):
        run_id = f"{stamp}-{number}"
        fault = "the server is gone" if score is None else None
        entries.append({"task_dir": "tasks/one/", "run_dir": f"data/runs/{run_id}", "run_id": run_id, "fault": fault})
        if score is not None:
            agent = {"tokens_total": 10, "tool_calls_total": 2}
            row = {"task_id": "org/one", "run_id": run_id, "total_score": score, "agent_metrics": agent}
            (folder / "task_results" / f"{run_id}.json").write_text(json.dumps(row))
    (folder / "manifest.json").write_text(json.dumps({"results": entries}))
    return folder


def test_benchmark_is_a_folder_or_the_newest_of_a_date(tmp_path: Path) -> None:
    older = _written(tmp_path, "20250824__12-34-56", [0.0])
    _written(tmp_path, "20250824__12-34-57", [0.5, 1.0, None])
    _written(tmp_path, "20250825__00-00-00", [0.25])
    place = tmp_path / "rollouts/nightly"

    by_date = load_benchmark(str(place / "20250824"))
    assert [get_task_score(by_date, task) for task in ("org/one", "one", "tasks/one")] == [0.75, 0.75, 0.75]
    assert get_task_score(by_date, "two") is None
    assert get_task_score(load_benchmark(older), "one") == 0.0
    assert get_task_score(load_benchmark(place / "2025"), "one") == 0.25
    with pytest.raises(KoderzError, match="there are no rollouts"):
        load_benchmark(place / "20240101")


def test_rollouts_are_found_by_name_stamp_or_folder(tmp_path: Path) -> None:
    first, second = _written(tmp_path, "20250824__12-34-56", [0.0]), _written(tmp_path, "20250825__12-34-56", [1.0])
    (tmp_path / "rollouts/nightly/20250826__12-34-56").mkdir()  # one that has just begun

    assert find_rollouts(tmp_path, "nightly").folder == second
    assert find_rollouts(tmp_path, "nightly", "20250824").folder == first
    assert find_rollouts(tmp_path, str(first)).folder == first
    for name, stamp, said in (
        ("nightli", None, "there are nightly"),
        ("nightly", "2024", "the newest are 20250825__12-34-56, 20250824__12-34-56"),
        ("..", None, "no rollouts"),
    ):
        with pytest.raises(KoderzError, match=said):
            find_rollouts(tmp_path, name, stamp)


def test_tables_leave_out_what_is_unknown(tmp_path: Path) -> None:
    folder = _written(tmp_path, "20250824__12-34-56", [0.5, 0.8, None])
    assert [*table_lines(find_rollouts(tmp_path, "nightly").rows, str(folder))][1:] == [
        "| task | run | unit | lm | tokens | tools |",
        "|---|---|---|---|---|---|",
        "| org/one | 20250824__12-34-56-0 | 50% | N/A | 10 | 2 |",
        "| org/one | 20250824__12-34-56-1 | 80% | N/A | 10 | 2 |",
        "| one | 20250824__12-34-56-2 | N/A | N/A | 0 | 0 |",
        "[rollouts] Aggregates:",
        "- Unit tests average: 65%",
        "- LM rubric average: N/A",
        "[rollouts] Per-task aggregates (mean/max across rollouts):",
        "| task | rollouts | unit_mean | unit_max | lm_mean | lm_max |",
        "|---|---|---|---|---|---|",
        "| one | 1 | N/A | N/A | N/A | N/A |",
        "| org/one | 2 | 65% | 80% | N/A | N/A |",
    ]


def test_files_of_the_original_are_summed_up(tmp_path: Path) -> None:
    folder = _written(tmp_path, "20250824__12-34-56", [0.5])
    entry = {"task_dir": "tasks/one", "run_dir": str(tmp_path / "runs/x"), "run_id": "x", "status": "launched"}
    (folder / "manifest.json").write_text(json.dumps({"results": [entry, {**entry, "run_id": "y", "run_dir": "none"}]}))
    (tmp_path / "runs/x").mkdir(parents=True)
    evaluation = {"task_id": "one", "run_id": "x", "evaluation": {"rubrics": {}, "total_score": 0.4}}
    (tmp_path / "runs/x/evaluation_results.json").write_text(json.dumps(evaluation))
    found = load_benchmark(folder)
    assert get_task_score(found, "one") == 0.4
    assert [(row.run, row.unit, row.tokens) for row in found.rows] == [("x", 0.4, 0), ("y", None, 0)]


def test_files_that_can_t_be_read_are_one_error(tmp_path: Path) -> None:
    folder = _written(tmp_path, "20250824__12-34-56", [0.5])
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(KoderzError, match="can't be read"):
        load_benchmark(folder)


@pytest.mark.parametrize(
    ("statuses", "total", "told"),
    [
        (["launched"] * 4, 4, (True, "All 4 tasks completed!")),
        (["launched"] * 3, 4, (False, "3 of 4 tasks completed")),
        ([*["launched"] * 3, "launch_failed"], 4, (False, "3 of 4 tasks completed, 1 launch_failed")),
        (["launch_failed"], 4, (False, "0 of 4 tasks completed, 1 launch_failed")),
    ],
)
def test_tasks_are_completed_only_where_each_was_launched(
    statuses: list[str], total: int, told: tuple[bool, str]
) -> None:
    assert completed({f"stamp-{number}": status for number, status in enumerate(statuses)}, total) == told
