"""What becomes of results: list, show, problems, export, import and report as they are typed, and bad input to them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import Done, Shell, wait_for

RUNS = 600  # of a list that doesn't fit a pipe's buffer


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with a comparative run, for commands that only read."""
    shell = Shell(tmp_path_factory.mktemp("ran"))
    shell("benchmark", 0, 10, "--mode", "comparative", "--model", "simulated", "--quiet", "--tag", "nightly")
    return shell


def one_line(done: Done) -> str:
    """What an error may be."""
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith("koderz: ")
    return line


def test_list_and_show_say_what_came_out_and_where_each_sink_stands(ran: Shell) -> None:
    run_id = ran.summary()["run_id"]

    listed = ran("benchmark", "list", "--tag", "nightly").out
    (row,) = json.loads(ran("benchmark", "list", "--json").out)
    shown = ran("benchmark", "show", "latest").out
    looked_at = {found["what"]: found["detail"] for found in json.loads(ran("doctor", "--json").out)}

    assert listed.splitlines()[1].startswith(f"{run_id}  SIMULATED  humaneval  zero-shot  60.0%  31.3 to 83.2    6/10")
    assert row["sinks"] == {"json": "up to date", "mlflow": "off", "memory": "off"}
    assert "Sinks: json up to date; mlflow off; memory off" in shown
    assert looked_at["sink json"] == "up to date on 1 of 1 runs"
    assert "Cause               | Attempts | Experiments | Recovered | Final" in shown
    assert "iterative against zero-shot: +30.0 points on 10 pairs" in shown
    assert json.loads(ran("benchmark", "show", "latest", "--json").out) == ran.summary()


def test_story_of_an_experiment_and_of_an_attempt_is_shown(ran: Shell) -> None:
    failed = next(r for r in ran.summary()["iterative"]["results"] if r["iterations"] > 1)["problem_id"]

    told = ran("benchmark", "show", "latest", "--problem", failed, "--arm", "iterative").out
    (story,) = json.loads(ran("benchmark", "show", "latest", "--problem", failed, "--arm", "iterative", "--json").out)
    second = ran("benchmark", "show", "latest", "--problem", failed, "--arm", "iterative", "--attempt", 2).out

    for part in (
        "── user asked",
        "program of attempt 1",
        "what changed since the attempt before",
        "verdict of attempt 2",
    ):
        assert part in told
    assert [step["attempt"]["number"] for step in story["steps"]][:2] == [1, 2]
    assert "verdict of attempt 2" in second
    assert "verdict of attempt 1" not in second
    failures = ran("benchmark", "show", "latest", "--failures")
    assert "exception:NameError: 2" in failures.out
    assert "one in full: koderz benchmark show" in failures.err


@pytest.mark.slow
def test_export_is_judged_and_imported_to_the_same_figures(ran: Shell, koderz: Shell) -> None:
    (koderz.folder / "theirs").symlink_to(ran.results)
    koderz("benchmark", "export", "latest", "--results", "theirs", "--output", "samples.jsonl", "--all-arms")

    judged = koderz("judge", "samples.jsonl")
    koderz("benchmark", "import", "samples.jsonl", "--quiet")
    copied = koderz("benchmark", "import", "theirs", "--results", "copy")

    assert "15 of 20 samples passed" in judged.out
    imported = koderz.summary()
    assert [imported[arm]["summary"]["successes"] for arm in ("zero_shot", "iterative")] == [6, 9]
    assert copied.out.endswith(": added\n")
    rows = koderz("benchmark", "export", "latest", "--format", "csv", "--results", "copy").out
    assert rows.startswith("run_id,experiment_id,problem_id,")


def test_problems_and_the_report_are_about_every_run(ran: Shell) -> None:
    assert "10 tasks: " in ran("benchmark", "problems").out

    done = ran("benchmark", "report", "--output", "report.html")

    assert done.out == "report.html: 1 run, 20 experiments, 0.1 MB\n"
    assert "koderz report" in (ran.folder / "report.html").read_text()


@pytest.mark.slow
def test_runs_without_a_common_task_are_compared_unpaired(koderz: Shell) -> None:
    for first in (0, 10):
        koderz("benchmark", first, first + 3, "--mode", "zero-shot", "--model", "simulated", "--quiet")

    compared = one_line(koderz("benchmark", "compare", "latest~1", "latest", code=2))

    assert "have no task in common" in compared
    assert "no task in common" in one_line(
        koderz("benchmark", "compare", "latest~1", "latest", "--max-drop", 5, code=2)
    )


def test_run_in_progress_is_shown_without_claims(koderz: Shell) -> None:
    process = koderz.start("benchmark", 0, 3, "--model", "simulated", "--simulated-latency", 3600, "--quiet")
    try:
        wait_for(lambda: list(koderz.results.glob("bench_*/journal.jsonl")))
        listed, shown = koderz("benchmark", "list"), koderz("benchmark", "show", "latest")
        gated = koderz("benchmark", "compare", "latest", "--min-success-rate", 1, code=2)
    finally:
        process.kill()
        process.communicate()

    assert listed.out.splitlines()[1].endswith("running 0/3")
    assert "Status: running, 0 of 3 judged" in shown.out
    assert "iterative: no results" in shown.out
    assert one_line(gated).endswith("let it end")
    assert "unfinished 0/3" in koderz("benchmark", "list").out
    assert "no experiment has ended yet" in koderz("benchmark", "show", "latest", "--failures").out
    for command in (["problems"], ["report"], ["report", "latest"], ["compare"], ["compare", "latest"]):
        one_line(koderz("benchmark", *command, code=2))


@pytest.mark.slow
def test_broken_pipe_ends_a_list_and_keeps_the_exit_code_of_a_gate(ran: Shell, koderz: Shell) -> None:
    (summary,) = ran.results.glob("*.json")
    koderz.results.mkdir()
    for number in range(RUNS):
        (koderz.results / f"bench_{number:08x}_20260131_120000.json").hardlink_to(summary)

    def piped(command: str) -> tuple[str, str]:
        script = f'"{sys.executable}" -m koderz benchmark {command} | head -n 1; echo "${{PIPESTATUS[0]}}"'
        done = subprocess.run(
            ["bash", "-c", script], cwd=koderz.folder, env=koderz.environment(), capture_output=True, text=True
        )
        return done.stdout.splitlines()[-1], done.stderr

    assert piped("list") == ("0", "")
    assert piped("list --json") == ("0", "")
    code, said = piped("compare bench_00000000 --min-success-rate 99")
    assert code == "1"
    assert said.startswith("gate failed: ")
