"""What `koderz optimize results` shows of a run, of one that the original has left, and of none."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Shell
from tests.koderz.systems.optimizers.analysis.test_checkpoint import foreign

RUN = (
    "optimize", "run", "--demo-datasets", "labels", "--models", "simulated", "--optimizers", "random_search", "--quiet",
    "--train-items", 20, "--validation-items", 20, "--test-items", 30, "--budget-calls", 80, "--seeds", 1,
)  # fmt: skip
TASK = "labels_random_search_simulated_42"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with a run in it that is over."""
    shell = Shell(tmp_path_factory.mktemp("ended"))
    shell(*RUN)
    return shell


def test_screen_has_its_sections_in_order(ended: Shell) -> None:
    shown = ended("optimize", "results", "--detailed").out

    (run,) = (path.name for path in ended.results.glob("bench_*") if path.is_dir())
    lines = shown.splitlines()
    assert lines[0] == f"Run: {run} - COMPLETED SUCCESSFULLY"
    for line in (
        "  Datasets:  labels (generated)",
        "  Optimizers: random_search",
        "  Models:     simulated (SIMULATED)",
        "  Test mode:  False",
        "  Max concurrent: 5",
        "  Total tasks:     2",
        "  Completed:       2 (100.0%)",
        "  Pending:         0",
        "  Success rate:    100.0%",
        "    random_search + simulated (seed 42):",
    ):
        assert line in lines
    heads = ["Run Configuration", "Progress Summary", "All Tasks", "Detailed Results"]
    assert [line for line in lines if line in heads] == heads
    assert f"  • {TASK}: ✓ Success - {ended.results / run / f'optimization_{TASK}.log'}" in lines
    assert "VERDICT" in shown


def test_json_has_tasks_rows_and_leaks(ended: Shell) -> None:
    found = json.loads(ended("optimize", "results", "--json", "--run-id", "latest").out)

    assert [task["id"] for task in found["tasks"]] == ["labels_none_simulated", TASK]
    (row,) = found["rows"]
    assert (row["dataset"], row["optimizer"], row["n"]) == ("labels", "random_search", 30)
    assert found["leakage"] == {"labels": {"exact": 0, "near": 0, "policy": "drop"}}
    assert found["budget_calls"] == 80


def test_task_is_shown_with_both_prompts_and_its_log(ended: Shell) -> None:
    shown = ended("optimize", "results", "--task", TASK).out

    assert shown.count("Say what the message is about.") >= 2
    assert "the search is over" in shown
    assert "has no task 'x'" in ended("optimize", "results", "--task", "x", code=2).err


def test_commands_for_all_runs_show_gains_in_place_of_success_rates(ended: Shell) -> None:
    for command in ("show", "resume", "compare"):
        done = ended("benchmark", command, "latest")
        assert "GAIN [95 %]" in done.out, done.err
        assert "0.0%" not in done.out
    watched = ended("benchmark", "watch", "latest").out
    assert "2/2 · $0.0000" in watched
    assert "passed" not in watched


def test_watching_ends_with_the_run(ended: Shell) -> None:
    assert "2 of 2 tasks completed, 0 failed" in ended("optimize", "results", "--watch").out


def test_interrupted_run_is_shown_as_far_as_it_came(ended: Shell, koderz: Shell) -> None:
    (folder,) = (path for path in ended.results.glob("bench_*") if path.is_dir())
    cut = koderz.results / folder.name
    cut.mkdir(parents=True)
    (cut / "journal.jsonl").write_bytes(b"".join((folder / "journal.jsonl").read_bytes().splitlines(True)[:40]))

    shown = koderz("optimize", "results", "--watch")

    assert shown.out.splitlines()[1] == f"Run: {folder.name} - IN PROGRESS"
    assert "⏳ Running" in shown.out
    assert f"continue it with: koderz optimize run --resume-run-id {folder.name}" in shown.err


def test_runs_are_listed_with_those_of_the_original(ended: Shell) -> None:
    foreign(ended.results, "run_20250423_153045")

    listed = json.loads(ended("optimize", "results", "--list-runs", "--json").out)

    assert {each["run_id"][:4] for each in listed} == {"benc", "run_"}
    shown = ended("optimize", "results", "--run-id", "run_20250423_153045", "--detailed").out
    assert "levenshtein_ratio: 0.200 → 0.300 (↑ +0.100 / +50.0%)" in shown
    assert "Failed Tasks\n  • gsm8k_few_shot_openai/other: no key\n" in shown
    prompts = ended("optimize", "results", "--run-id", "run_2025", "--task", "gsm8k_few_shot_openai/gpt-4o-mini").out
    assert "Solve \\x1b[31mit." in prompts
    assert "--show-errors" not in ended("optimize", "results", "--run-id", "run_2025", "--show-errors").out


def test_checkpoint_of_any_content_is_shown_as_far_as_it_goes(koderz: Shell) -> None:
    odd = {
        "id": "a\x1b[31mb",
        "status": "Success",
        "evaluations": {"final": {"test": {"result": {"metrics": 7}}, "train": []}},
        "initial_evaluation": {"metrics": [{"metric_name": "x", "score": "high"}, 5]},
        "optimized_evaluation": {"metrics": [{"metric_name": "x", "score": float("nan")}]},
        "interval": ["a", 1],
    }
    foreign(koderz.results, "run_20250423_153045", task_results=[odd, {}], tasks=None, models=7)

    shown = koderz("optimize", "results", "--detailed").out

    assert "  • a\\x1b[31mb: ✓ Success\n" in shown
    assert "x: nan" in shown
    assert "none on record" in koderz("optimize", "results", "--task", "a\x1b[31mb").out


def test_missing_results_are_told(koderz: Shell) -> None:
    assert "holds no run of optimizers yet" in koderz("optimize", "results", code=2).err
    assert "there is no run bench_1" in koderz("optimize", "results", "--run-id", "bench_1", code=2).err
    assert "--list-runs lists all runs" in koderz("optimize", "results", "--list-runs", "--watch", code=2).err
    assert json.loads(koderz("optimize", "results", "--list-runs", "--json").out) == []
    (foreign(koderz.results, "run_20250423_153045") / "checkpoint.json").write_text("no")
    listed = koderz("optimize", "results", "--list-runs", "--json")
    assert (json.loads(listed.out), "checkpoint.json can't be read" in listed.err) == ([], True)
