"""The main job, as users run it."""

from __future__ import annotations

import re
from collections import Counter

from tests.conftest import PATIENCE, Shell, kill_after, lines_of


def test_benchmark_runs_both_modes_and_saves_a_summary(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 3, "--mode", "comparative")

    assert re.match(
        r"Benchmark Run ID: bench_[0-9a-f]{8}_\d{8}_\d{6}\nRange: 0 to 3\nLocal model: simulated\n", done.out
    )
    assert "Testing both zero-shot and iterative modes" in done.out
    assert (
        "COMPARATIVE BENCHMARK RESULTS\nMode            | Success Rate    | Avg Cost     | Avg Iterations\n" in done.out
    )
    assert "BENCHMARK SUMMARY SAVED\nFile: benchmark_results/bench_" in done.out
    assert "SIMULATED" in done.err
    summary = koderz.summary()
    assert summary["simulated"] is True
    assert summary["status"] == "complete"
    assert summary["config"]["problem_range"] == "0-3"
    for arm in ("zero_shot", "iterative"):
        assert len(summary[arm]["results"]) == summary[arm]["summary"]["total_problems"] == 3


def test_options_may_stand_before_the_range(koderz: Shell) -> None:
    koderz("benchmark", "--mode", "zero-shot", "--quiet", 0, 2)

    summary = koderz.summary()
    assert list(summary)[:3] == ["run_id", "mode", "start_time"]
    assert summary["mode"] == "zero-shot"
    assert [result["problem_id"] for result in summary["results"]] == ["HumanEval/0", "HumanEval/1"]


def test_json_is_all_that_is_on_standard_output(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 2, "--json", "--quiet")

    (path,) = koderz.results.glob("*.json")
    assert done.out == path.read_text()


def test_mistyped_command_is_answered_with_the_nearest(koderz: Shell) -> None:
    done = koderz("benchmark", "resum", code=2)

    assert "Did you mean 'resume'" in done.err


def test_resume_after_a_kill_asks_nothing_twice(koderz: Shell) -> None:
    running = koderz.start("benchmark", 0, 12, "--mode", "comparative", "--simulated-latency", 0.05)
    for more in (3, 9):
        kill_after(more, lambda: lines_of(koderz.results, "experiment"), running)
        running = koderz.start("benchmark", "resume", "latest")
    running.communicate(timeout=PATIENCE)

    assert running.returncode == 0
    journal = koderz.journal()
    ends = Counter(line["experiment_id"] for line in journal if line["kind"] == "experiment")
    assert len(ends) == 24
    assert set(ends.values()) == {1}
    calls = Counter((line["experiment_id"], line["key"]) for line in journal if line["kind"] == "call")
    assert set(calls.values()) == {1}
    attempts = Counter((line["experiment_id"], line["number"]) for line in journal if line["kind"] == "attempt")
    assert set(attempts.values()) == {1}


def test_resume_of_a_finished_run_does_nothing(koderz: Shell) -> None:
    koderz("benchmark", 0, 1, "--quiet")
    before = koderz.journal()

    done = koderz("benchmark", "resume", "latest")

    assert "nothing to do" in done.err
    assert koderz.journal() == before


def test_resume_ends_a_run_that_was_killed_without_a_word(koderz: Shell) -> None:
    koderz("benchmark", 0, 1, "--quiet")
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))

    koderz("benchmark", "resume", "latest")

    assert (koderz.journal()[-1]["kind"], koderz.summary()["status"]) == ("finished", "complete")
