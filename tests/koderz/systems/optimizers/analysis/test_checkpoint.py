"""`checkpoint.json` and the tasks' logs, in the original's format, as far as a run has come."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.optimizers.analysis.checkpoint import CheckpointSink, State
from koderz.systems.optimizers.analysis.runs import View, found_run, latest_runs, shown
from koderz.systems.optimizers.analysis.trials import cells_of
from koderz_tracker.records import Experiment, Fault, Finished, Plan, Resumed
from koderz_tracker.sinks import Source
from koderz_tracker.stories import Stories
from tests.koderz.systems.optimizers.solvers.worlds import World, searched
from tests.koderz.world import Run

pytestmark = pytest.mark.slow

SOLVERS = ("none", "meta_prompt", "random_search")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return searched(tmp_path_factory.mktemp("world"), World("rule", 1), *SOLVERS, seeds=2, budget_calls=200)


def plan_of(run: Run) -> Plan:
    plan = run.lines[0]
    assert isinstance(plan, Plan)
    return plan


def document_of(run: Run) -> dict[str, Any]:
    state = State(plan_of(run))
    for line in run.lines:
        state.fold(line)
    return state.document()


def sink_of(run: Run, folder: Path) -> CheckpointSink:
    """A sink of the run that writes elsewhere."""
    stories = Stories(run.folder, os.environ)
    stories.refresh()
    return CheckpointSink(Source(folder, plan_of(run), stories, os.environ))


def test_checkpoint_tasks_have_the_originals_fields_and_ours(run: Run) -> None:
    document = document_of(run)

    results = {each["id"]: each for each in document["task_results"]}
    assert [*results] == [
        "world_none_scripted",
        "world_meta_prompt_scripted_42",
        "world_meta_prompt_scripted_43",
        "world_random_search_scripted_42",
        "world_random_search_scripted_43",
    ]
    assert document["optimizers"] == ["meta_prompt", "random_search"]
    assert document["seeds"] == [42, 43]
    assert document["status"] == "complete"
    found = results["world_meta_prompt_scripted_42"]
    assert found["status"] == "Success"
    assert found["timestamp_start"] < found["timestamp_end"]
    assert found["finish_reason"] == "budget"
    assert found["metric_calls"] <= 200
    before, after = found["evaluations"]["initial"]["test"], found["evaluations"]["final"]["test"]
    assert before["result"]["metrics"][0]["sample_size"] == 100
    scores = [each["result"]["metrics"][0] for each in (before, after)]
    assert found["gain"] == pytest.approx(scores[1]["score"] - scores[0]["score"])
    assert found["interval"][0] < found["gain"] < found["interval"][1]
    assert sum(scores[1]["item_scores"].values()) / 100 == pytest.approx(scores[1]["score"])
    assert found["optimized_evaluation"]["metrics"][0].keys() == {"metric_name", "score", "timestamp"}
    assert {stage["stage"] for stage in found["stages"]} == {"initial", "final"}
    calls = [line for line in run.of("call") if line.experiment_id == found["experiment_id"]]
    assert found["llm_calls_total_optimization"] == sum(call.purpose != "test" for call in calls)


def test_optimized_prompt_is_the_winner_with_its_examples(tmp_path: Path) -> None:
    run = searched(tmp_path, World("example"), "none", "random_search", budget_calls=300)

    (_, found) = document_of(run)["task_results"]

    messages = found["optimized_prompt"]["messages"]
    assert [each["role"] for each in messages[:3]] == ["system", "user", "assistant"]
    assert messages[-1] == {"role": "user", "content": "{question}"}
    assert found["evaluations"]["final"]["validation"]


def test_initial_prompt_is_its_own_baseline(run: Run) -> None:
    found = document_of(run)["task_results"][0]

    assert found["seed"] is None
    assert found["gain"] is None
    assert found["initial_evaluation"] == found["optimized_evaluation"]
    assert found["evaluations"]["initial"]["test"]


def test_checkpoint_of_a_run_in_progress_has_tasks_of_every_state(run: Run) -> None:
    state = State(plan_of(run))
    first = next(line for line in run.lines if isinstance(line, Experiment))
    for line in run.lines[: run.lines.index(first) + 20]:
        state.fold(line)
    words = {each["status"] for each in state.document()["task_results"]}

    assert "Success" in words
    assert words <= {"Success", "Running", "Pending"}
    assert State(plan_of(run)).document()["task_results"][1]["status"] == "Pending"


def test_checkpoint_shows_a_retried_task_as_running(run: Run) -> None:
    state, cell = State(plan_of(run)), next(cells_of(plan_of(run)))
    about: dict[str, Any] = {
        "experiment_id": cell.experiment_id,
        "problem_id": "world",
        "solver": "none",
        "arm": "none",
        "sample": 0,
    }
    failed = Fault(**about, time="2026-01-01T00:00:00.000000", reason="no key\x1b[31m")

    def status() -> str:
        return str(state.document()["task_results"][0]["status"])

    state.fold(failed)
    assert (status(), state.document()["task_results"][0]["error_message"]) == ("Failed", "no key\x1b[31m")
    state.fold(Resumed(how="retry", time="2026-01-02T00:00:00.000000"))
    assert status() == "Running"
    state.fold(Finished(status="interrupted"))
    assert status() == "Pending"


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_checkpoint_sink_is_idempotent(run: Run, tmp_path: Path, size: int) -> None:
    sink = sink_of(run, tmp_path)
    for at in range(0, len(run.lines), size):
        sink.take(run.lines[at : at + size])
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    sink_of(run, tmp_path).take(run.lines[-3:])

    assert json.loads(files["checkpoint.json"]) == json.loads(json.dumps(document_of(run)))
    assert files["checkpoint.json"].startswith(b'{\n   "run_id"')
    assert {*files} == {"checkpoint.json", *(cell.log for cell in cells_of(plan_of(run)))}
    log = files["optimization_world_meta_prompt_scripted_42.log"].decode()
    for said in ("the initial prompt (", "candidate 2 (", "scored validation", "the search is over", "ended: "):
        assert said in log
    last = json.loads((tmp_path / "checkpoint.json").read_bytes())
    ended = {each["id"]: each["status"] for each in last["task_results"]}
    assert ended["world_random_search_scripted_43"] == "Success", "what came before is read from the journal"


def foreign(results: Path, name: str, **changes: Any) -> Path:
    folder = results / name
    folder.mkdir(parents=True)
    task = {"dataset_name": "gsm8k", "optimizer_name": "few_shot", "model_name": "openai/gpt-4o-mini"}
    done = {
        **task,
        "id": "gsm8k_few_shot_openai/gpt-4o-mini",
        "timestamp_start": 1745415045.0,
        "status": "Success",
        "initial_prompt": {"system": "Solve it.", "user": "{question}", "messages": None},
        "optimized_prompt": {"system": "Solve \x1b[31mit.", "user": "{question}", "messages": None},
        "initial_evaluation": {"metrics": [{"metric_name": "levenshtein_ratio", "score": 0.2, "timestamp": 1.0}]},
        "optimized_evaluation": {"metrics": [{"metric_name": "levenshtein_ratio", "score": 0.3, "timestamp": 1.0}]},
    }
    failed = {**task, "id": "gsm8k_few_shot_openai/other", "status": "Failed", "error_message": "no key\nat line 1"}
    document = {
        "run_id": name,
        "test_mode": True,
        "demo_datasets": ["gsm8k"],
        "optimizers": ["few_shot"],
        "models": ["openai/gpt-4o-mini"],
        "tasks": [task, task, task],
        "task_results": [done, failed],
        **changes,
    }
    (folder / "checkpoint.json").write_text(json.dumps(document))
    return folder


def test_checkpoint_of_the_original_is_found_and_read(tmp_path: Path) -> None:
    folder = foreign(tmp_path, "run_20250423_153045")
    view = View(folder)

    assert latest_runs(tmp_path) == [folder]
    assert found_run(tmp_path, "run_20250423_153045") == found_run(tmp_path, "run_2025") == folder
    assert view.status == "IN PROGRESS", "a task is pending that has no result yet"
    assert view.as_json()["tasks"][1] == {
        "id": "gsm8k_few_shot_openai/other",
        "status": "Failed",
        "error_message": "no key\nat line 1",
        "logs": "",
    }
    assert view.rows() == []


def test_checkpoint_of_ours_is_read_as_one_of_the_original(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run_20250423_153045"
    folder.mkdir()
    sink_of(run, folder).take(run.lines)
    written = json.loads((folder / "checkpoint.json").read_text())
    assert View(folder).document == written
    assert shown(folder).optimizers == written["optimizers"]


@pytest.mark.parametrize("text", ['{"task_results": 1}', '{"task_results": [1]}'])
def test_checkpoint_that_is_broken_is_told(tmp_path: Path, text: str) -> None:
    folder = foreign(tmp_path, "run_20250423_153045")
    (folder / "checkpoint.json").write_text(text)

    with pytest.raises(KoderzError, match=r"checkpoint\.json (can't be read|is no checkpoint)"):
        View(folder)
