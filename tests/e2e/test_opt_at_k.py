"""`koderz perf opt-at-k` on logs that are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell

IDS = ["own__repo-0000001", "own__repo-0000002", "own__repo-0000003"]
LOGS = "logs/run_evaluation/r/org__m{}"


def log_of(base: float, patch: float, commit: float) -> str:
    sides = {"Base": base, "Patch": patch, "Commit": commit}
    return "Applying patch...\n" + "".join(
        f">>>>> Start {side} Output\n>>>>> Test 0\nExecution time: {time:.6f}s\n>>>>> End {side} Output\n"
        for side, time in sides.items()
    )


def evaluated(folder: Path, number: int, logs: dict[str, str], patches: dict[str, str | None]) -> None:
    """A file of predictions, and the logs of some of them."""
    rows = [
        {"instance_id": name, "model_patch": patch, "model_name_or_path": f"org/m{number}"}
        for name, patch in patches.items()
    ]
    (folder / f"p{number}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, log in logs.items():
        place = folder / LOGS.format(number) / name
        place.mkdir(parents=True)
        (place / "test_output.txt").write_text(log)


def dataset(folder: Path) -> str:
    (folder / "gso.jsonl").write_text("".join(f"{json.dumps({'instance_id': name})}\n" for name in IDS))
    return "gso.jsonl"


def test_existing_logs_are_graded_and_merged(koderz: Shell) -> None:
    first, second, third = IDS
    evaluated(koderz.folder, 1, {first: log_of(1, 0.5, 0.5), second: ""}, {first: "d", second: "d", third: None})
    evaluated(koderz.folder, 2, {second: log_of(1, 0.9, 0.5)}, {first: "d", second: "d"})
    evaluated(koderz.folder, 10, {}, {first: "d"})
    done = koderz(
        *("perf", "opt-at-k", "--run_id", "r", "--dataset_name", dataset(koderz.folder), "--model", "gpt-4o"),
        *("--prediction_paths", "p10.jsonl", "p2.jsonl", "p1.jsonl", "--k", 2, "--timeout", 3600, "--reformat_reports"),
    )
    assert "score [opt@2]: 33.33%" in done.out.splitlines()
    merged = json.loads((koderz.folder / "reports/gpt-4o.opt@2.r.report.json").read_text())
    summary: dict[str, Any] = merged["summary"]
    assert (summary["total_instances"], summary["completed_instances"], summary["passed_instances"]) == (3, 2, 2)
    assert (summary["opt_base"], summary["opt_commit"], summary["k"], summary["score"]) == (1, 1, 2, 33.33)
    assert summary["exact"]["opt_commit"] == {"1": pytest.approx(1 / 6), "2": pytest.approx(1 / 3)}
    assert [*summary["exact_interval"]["passed"]] == ["1", "2"]
    shown = koderz(
        *("perf", "opt-at-k", "--run_id", "r", "--dataset_name", "gso.jsonl", "--k", 2, "--json"),
        *("--prediction_paths", "p10.jsonl", "p2.jsonl", "p1.jsonl", "--reformat_reports"),
    )
    assert json.loads(shown.out) == merged
    assert merged["opt_stats"][first]["report_file"] == "logs/run_evaluation/r/org__m1/org__m1.r.report.json"
    run = json.loads((koderz.folder / LOGS.format(1) / "org__m1.r.report.json").read_text())
    assert run["instance_sets"]["base_failed_ids"] == [second]
    assert run["instance_sets"]["empty_patch_ids"] == [third]
    assert run["summary"]["incomplete_instances"] == 0
    assert not (koderz.folder / LOGS.format(10) / "org__m10.r.report.json").exists()


def test_opt_at_k_script_is_the_command(koderz: Shell) -> None:
    evaluated(koderz.folder, 1, {IDS[0]: log_of(1, 0.5, 0.5)}, {IDS[0]: "d"})
    own = (
        "--run_id",
        "r",
        "--dataset_name",
        dataset(koderz.folder),
        "--prediction_paths",
        "p1.jsonl",
        "--reformat_reports",
    )
    script = Path(__file__).parents[2] / "scripts" / "harness" / "opt_at_k.py"
    done = subprocess.run(
        [sys.executable, script, *own],
        cwd=koderz.folder,
        env=koderz.environment(),
        text=True,
        capture_output=True,
        check=True,
    )
    assert "score [opt@1]: 33.33%" in done.stdout


def test_opt_at_k_counts_to_the_last_attempt_and_leaves_out_errors(koderz: Shell) -> None:
    evaluated(
        koderz.folder, 1, {IDS[0]: "Applying patch...\n>>>>> Start Patch Output\n>>>>> End Patch Output"}, {IDS[0]: "d"}
    )
    own = ("--run-id", "r", "--dataset", dataset(koderz.folder), "--prediction-paths", "p1.jsonl", "--reformat-reports")
    done = koderz("perf", "opt-at-k", *own, "--k", 10)
    assert "exact figures end at K = 1" in done.err
    assert f"error: {LOGS.format(1)}/{IDS[0]}/test_output.txt: the log has no section Base" in done.err
    assert "score [opt@10]: 0.0%" in done.out
    merged = json.loads((koderz.folder / "reports/gpt-4o.opt@10.r.report.json").read_text())
    assert merged["summary"]["exact"]["passed"] == {"1": 0.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--prediction-paths", "gone.jsonl"), "gone.jsonl"),
        (("--prediction-paths", "p1.jsonl", "--dataset-name", "gone/gso"), "give --dataset-name"),
        (("--prediction-paths", "p1.jsonl"), "no dataset has all instances"),
        (("--prediction-paths", "p1.jsonl", "--model", "a/b"), "part of a file's name"),
        (("--prediction-paths", "own.jsonl", "--instance-ids", "nope"), "the dataset has no such task"),
    ],
)
def test_bad_input_is_one_sentence_and_creates_nothing(koderz: Shell, given: tuple[str, ...], said: str) -> None:
    evaluated(koderz.folder, 1, {}, {IDS[0]: "d"})
    (koderz.folder / "own.jsonl").write_text('{"instance_id": "koderz-mini__dedupe", "model_patch": "d"}')
    done = koderz("perf", "opt-at-k", "--run-id", "r", *given, "--reformat-reports", code=2)
    assert said in done.err
    assert not (koderz.folder / "reports").exists()
    assert not (koderz.folder / "logs").exists()


def test_lines_of_an_instance_are_attempts_and_the_last_is_scored(koderz: Shell) -> None:
    evaluated(koderz.folder, 1, {IDS[0]: log_of(1, 0.9, 0.5)}, {IDS[0]: "last"})
    file = koderz.folder / "p1.jsonl"
    file.write_text(file.read_text().replace("last", "first") + file.read_text())
    place = koderz.folder / LOGS.format("1-attempt_1") / IDS[0]
    place.mkdir(parents=True)
    (place / "test_output.txt").write_text(log_of(1, 0.5, 0.5))
    own = ("--run_id", "r", "--dataset_name", dataset(koderz.folder), "--prediction_paths", "p1.jsonl")
    done = koderz("perf", "opt-at-k", *own, "--k", 2, "--reformat_reports")
    assert "score [opt@2]: 0.0%" in done.out
    merged = json.loads((koderz.folder / "reports/gpt-4o.opt@2.r.report.json").read_text())
    assert merged["summary"]["exact"]["opt_commit"] == {"1": pytest.approx(1 / 6), "2": pytest.approx(1 / 3)}


@pytest.mark.slow
def test_measuring_of_missing_results_happens_once(koderz: Shell) -> None:
    name = "koderz-mini__dedupe"
    evaluated(koderz.folder, 1, {}, {name: "no diff at all", "koderz-mini__primes": ""})
    own = ("perf", "opt-at-k", "--run_id", "r", "--prediction_paths", "p1.jsonl", "--model", "m")
    first = koderz(*own, "--json")
    assert json.loads(first.out)["summary"]["patch_failed_instances"] == 1
    assert "patch_failed" in first.err
    assert "Instances with failed patch: 1" in koderz(*own).out
    assert len([*koderz.results.glob("bench_*/journal.jsonl")]) == 1
    report = json.loads((koderz.folder / LOGS.format(1) / name / "report.json").read_text())[name]
    assert (report["base_successfully_run"], report["patch_successfully_applied"]) == (True, False)
    koderz(*own, "--rerun_all")
    assert len([*koderz.results.glob("bench_*/journal.jsonl")]) == 2


def test_ids_alone_can_t_be_measured(koderz: Shell) -> None:
    evaluated(koderz.folder, 1, {}, {IDS[0]: "d"})
    own = ("--run_id", "r", "--dataset_name", dataset(koderz.folder), "--prediction_paths", "p1.jsonl")
    done = koderz("perf", "opt-at-k", *own, code=2)
    assert "--reformat_reports grades the logs that are there" in done.err
    assert not (koderz.folder / "logs").exists()


def test_instances_far_above_the_human_s_are_named_beside_the_score(koderz: Shell) -> None:
    patches: dict[str, str | None] = {IDS[0]: "a", IDS[1]: "b"}
    evaluated(koderz.folder, 1, {IDS[0]: log_of(1, 0.1, 0.5), IDS[1]: log_of(1, 0.3, 0.5)}, patches)
    own = ("--run_id", "r", "--dataset_name", dataset(koderz.folder), "--prediction_paths", "p1.jsonl")
    done = koderz("perf", "opt-at-k", *own, "--reformat_reports")
    assert f"Needs review, more than twice as fast as the human's answer: {IDS[0]}\n" in done.out
    merged = json.loads((koderz.folder / "reports/gpt-4o.opt@1.r.report.json").read_text())
    assert merged["summary"]["needs_review"] == [IDS[0]]
    assert merged["summary"]["opt_commit"] == 2
