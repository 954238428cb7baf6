"""What commands say stands in the words of the field: in their help, and as they run."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koderz.cli.progress import Pulse, _bar, _draw, _throttled, pulse_of
from koderz.cli.show import StoryPrinter
from koderz.testing import a_journal
from koderz_tracker.records import Finished, Record
from tests.conftest import Shell
from tests.koderz.cli.conftest import Command
from tests.tracker.builders import call, judged


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("benchmark run", "Skip the specification (ablation)."),
        ("benchmark run", "Maximum tasks at work at once."),
        ("benchmark run", "Shuffle with --seed."),
        ("benchmark resume", "Continue even if the solver's calls diverge from the recording."),
        ("benchmark export", "One row per attempt, with its reply."),
        ("", "Run a benchmark; resume, watch, compare and report runs."),
        (
            "benchmark run",
            "Cost cap: no call starts that would exceed it, as calls cost so far; the run stops and can be resumed.",
        ),
        ("benchmark run", "The model for a role of the solver, such as judge=openai/gpt-6.1-sol; repeatable."),
        ("memory recall", "Search memories by words, best match first; without words list the most recent ones."),
        ("ui", "Address to bind; 0.0.0.0 exposes it to the network."),
        ("memory serve", "as an MCP server, until the client disconnects."),
    ],
)
def test_help_says_it_in_the_words_of_the_field(command: Command, words: str, said: str) -> None:
    assert said in re.sub(r"\s+", " ", command(*words.split(), "--help-all").out)


@pytest.mark.parametrize(("iterations", "said"), [(1, "PASSED after 1 attempt, "), (2, "PASSED after 2 attempts, ")])
def test_plural_of_one_attempt_is_singular(capsys: pytest.CaptureFixture[str], iterations: int, said: str) -> None:
    StoryPrinter(quiet=False).recorded(judged(0, success=True, iterations=iterations))

    assert said in capsys.readouterr().out


def test_rate_of_a_provider_that_slows_calls_is_told() -> None:
    throttle = SimpleNamespace(provider="openai", pause=0.0, limit=4, ceiling=8)
    view = SimpleNamespace(engine=SimpleNamespace(throttle=[throttle]))

    assert _throttled(cast("Any", view)) == "openai rate-limited to 4 concurrent requests"


def test_watching_a_run_that_no_process_works_on_says_how_to_continue(koderz: Shell, command: Command) -> None:
    command("benchmark", 0, 2, "--model", "simulated", "--mode", "zero-shot", "-q")
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(lines[0])

    done = command("benchmark", "watch", "latest", code=3)

    assert "0 in flight" in done.out
    assert done.err == (
        f"no process is running this run; continue with: koderz benchmark resume {journal.parent.name}\n"
    )


def test_watch_of_a_killed_run_counts_nothing_in_flight(koderz: Shell, command: Command) -> None:
    a_journal(koderz.results, call(0))

    done = command("watch", "latest", code=3)

    assert "0/3 · 0 passed · $0.2500 · 0 tokens/s · 0 in flight" in done.out
    assert done.err.startswith("no process is running this run; continue with: ")


def test_watch_of_an_interrupted_run_says_once_how_to_continue(koderz: Shell, command: Command) -> None:
    records: list[Record] = [call(0), Finished(status="interrupted", reason="interrupted")]
    run = a_journal(koderz.results, *records).name

    done = command("benchmark", "watch", "latest")

    assert done.out.splitlines()[-2:] == ["0/3 · 0 passed · $0.2500 · 0 tokens/s · 0 in flight", "ended: interrupted"]
    assert done.err == f"continue with: koderz benchmark resume {run}\n"


def test_progress_has_room_for_what_is_being_done_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    tally: Any = SimpleNamespace(passed=18, judged=26, faults=1, cost=0.0, ended=range(26))
    pulse = Pulse(127, tally, 0.0, 245.0, 6, doing="c3c1dff baseline, block 12")
    bar = _bar()
    _draw(bar, bar.add_task("", total=127), pulse)
    with bar.console.capture() as captured:
        bar.console.print(bar.get_renderable())
    (line,) = captured.get().splitlines()
    assert " 26/127 18 passed (69%) · 1 fault · 4:05 left · c3c1dff baseline, block 12 ·" in " ".join(line.split())


def test_progress_begins_with_news_in_60_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    tally: Any = SimpleNamespace(passed=79, judged=94, faults=1, cost=0.0, ended=range(94))
    bar = _bar()
    _draw(bar, bar.add_task("", total=328), Pulse(328, tally, 802.0, 30.0, 2, stopping="interrupted"))
    with bar.console.capture() as captured:
        bar.console.print(bar.get_renderable())
    (line,) = captured.get().splitlines()

    assert " 94/328 stopping: 2 in flight; again stops at once" in " ".join(line.split())
    assert len(line) <= 60
    slowed = Pulse(328, tally, 802.0, 30.0, 2, throttled="openai asks to wait 5 s")
    assert slowed.figures().startswith("openai asks to wait 5 s · 79 passed")


def test_graded_runs_show_interval_and_causes(koderz: Shell, command: Command) -> None:
    rows = "".join(f'{{"input": "{n} + 1?", "target": "{n + 1} birds fly"}}\n' for n in range(4))
    (koderz.folder / "q.jsonl").write_text(rows)
    of_file = ("--suite", "qa", "--dataset", "q.jsonl", "--model", "simulated", "--no-sink", "mlflow")

    out = command("benchmark", *of_file, "--scorer", "f1", "-q").out

    assert re.search(r": 95% interval [\d.e-]+ to [\d.]+ \(.+\); not passed: \d \w+", out)


def test_plan_says_a_likely_cost_before_the_most(command: Command) -> None:
    models = ("openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5")
    several = [word for model in models for word in ("--model", model)]
    lines = command("benchmark", 0, 10, "--mode", "zero-shot", *several, "--dry-run").out.splitlines()
    (alone,) = [
        line
        for line in command("benchmark", 0, 10, "--model", models[0], "--dry-run").out.splitlines()
        if "Cost" in line
    ]

    figures = r"about \$[\d.]+ \(at most \$[\d.]+\)"
    assert re.fullmatch(f"Cost: {figures}", alone)
    assert all(any(re.match(rf"  {model} \(main\): about \$", line) for line in lines) for model in models)
    assert lines[-1] == "To ask three tasks and see what they cost: --dry-run --sample 3"


def test_time_alone_is_no_change_of_the_progress() -> None:
    tally: Any = SimpleNamespace(passed=18, judged=26, faults=1, cost=0.0, ended=range(26))
    pulse = Pulse(127, tally, 50.0, 245.0, 6)

    assert replace(pulse, tokens_per_second=40.0, seconds_left=250.0, in_flight=5).change == pulse.change
    assert replace(pulse, throttled="openai asks to wait 5 s").change != pulse.change
    assert replace(pulse, doing="block 3").change != pulse.change


def test_remaining_time_counts_running_experiments_by_half() -> None:
    progress = SimpleNamespace(started=time.monotonic() - 40, done_before=0, planned=27, in_flight=6, tokens_out=0)
    tally = SimpleNamespace(ended=range(1), faults=0, cost=0.0)
    plan = SimpleNamespace(record=SimpleNamespace(parts=(), headline=None))
    view: Any = SimpleNamespace(
        tracker=SimpleNamespace(tally=tally),
        orchestrator=SimpleNamespace(progress=SimpleNamespace(**vars(progress), stopping="", evidence=str)),
        engine=SimpleNamespace(throttle=(), waits=""),
        plan=plan,
    )
    assert pulse_of(view).seconds_left == pytest.approx(23 * 40 / 4, rel=0.05)
