"""What is drawn: the tables as promised, and nothing that could steer the terminal that it is drawn on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koderz.cli import console
from koderz.cli.console import OutputOptions
from koderz.cli.session import SessionScreen
from koderz.runs.observer import NOTHING_TO_DO
from koderz.runs.orchestrator import SessionEnd
from koderz.runs.session import SessionResult
from koderz.streams import plain
from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Finished, Plan, Record
from koderz_tracker.summary import summarize
from tests.conftest import PATIENCE, Shell
from tests.koderz.world import write_tasks
from tests.tracker import builders
from tests.tracker.builders import call, fault, judged

HOSTILE = {
    "colour": "\x1b[31mred",
    "cursor": "\x1b[2J\x1b[1;1H",
    "8-bit control sequence": "\x9b31m",
    "title": "\x1b]0;title\x07",
    "hyperlink": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "device control": "\x1bPq\x1b\\",
    "8-bit string": "\x90q\x9c\x9d0;t\x9c",
    "carriage return": "rm -rf /\rls      ",
    "backspace": "bad\b\b\bgood",
    "bell and null": "\x07\x00",
    "delete": "\x7f",
    "vertical tab and form feed": "\x0b\x0c",
    "next line": "\x85",
    "line separators": "\u2028\u2029",
    "right-to-left override": "\u202egnp.exe",
    "isolates": "\u2066a\u2067b\u2068c\u2069",
    "marks": "\u200e\u200f\u061c",
    "zero widths": "a\u200bb\u200cc\u200dd\ufeff",
    "tags": "\U000e0001\U000e0041",
    "half a character": "\ud83d \udc00",
    "no character": "\ufffe\U0010ffff",
    "private": "\ue000\uf8ff",
}


def dangerous(text: str) -> list[str]:
    return [
        char for char in text if char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]


@pytest.mark.parametrize("case", HOSTILE)
def test_control_characters_are_made_visible(case: str) -> None:
    shown = plain(f"before {HOSTILE[case]} after")

    assert dangerous(shown) == []
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert shown.encode("utf-8")
    assert len(shown) >= len(f"before {HOSTILE[case]} after")  # shown, not swallowed


@given(st.text(st.characters(exclude_categories=())))
def test_control_characters_are_removed_from_any_text(text: str) -> None:
    shown = plain(text)

    assert dangerous(shown) == []
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert plain(shown) == shown


@pytest.mark.parametrize(
    "text", ["", "plain", "a\n\tb", "äöü 漢字 한글 عربى עברית", "🙂👍🏽", "naïve \u00a0\u3000", "a\\x1b[31m", "'\"`"]
)
def test_harmless_text_is_unchanged(text: str) -> None:
    assert plain(text) == text


# Tables


def shown(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *records: Record,
    of: Plan | None = None,
    reason: str = "",
    **how: Any,
) -> tuple[list[str], list[str]]:
    """The lines that a session ends with, on standard output and beside it."""
    folder = a_journal(tmp_path, *records, plan=of)
    summary = summarize(folder)
    session = SessionResult(SessionEnd(summary.status, reason), folder, summary, folder.with_suffix(".json"))
    SessionScreen(OutputOptions(**how)).results(session)
    printed = capsys.readouterr()
    return printed.out.splitlines(), printed.err.splitlines()


def test_comparison_has_the_promised_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zero = [judged(i, i == 0, cost=0.0004) for i in range(3)]
    iterative = [judged(i, i < 2, solver="iterative", cost=0.0011, iterations=[1, 4, 5][i]) for i in range(3)]
    out, err = shown(
        tmp_path,
        capsys,
        *zero,
        *iterative,
        Finished(status="complete"),
        of=a_plan(3, arms=("zero-shot", "iterative")),
    )

    assert out[:8] == [
        "COMPARATIVE BENCHMARK RESULTS",
        "Mode            | Success Rate    | Avg Cost     | Avg Iterations",
        "----------------+-----------------+--------------+----------------",
        "Zero-Shot       |  33.3% ( 1/ 3)  | $  0.0004    |            1.0",
        "Iterative       |  66.7% ( 2/ 3)  | $  0.0011    |            3.3",
        "----------------+-----------------+--------------+----------------",
        "Improvement     | +33.3% points   | $  +0.0007   |           +2.3",
        "",
    ]
    assert out[-2:] == ["BENCHMARK SUMMARY SAVED", f"File: {tmp_path}/{builders.RUN}.json"]
    assert err == []


def test_comparison_lines_up_at_164_problems_and_large_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zero = [judged(i, i < 148, cost=123.4) for i in range(164)]
    iterative = [judged(i, True, solver="iterative", cost=0.5) for i in range(164)]
    plan = a_plan(164, arms=("zero-shot", "iterative"))
    out, _ = shown(tmp_path, capsys, *zero, *iterative, Finished(status="complete"), of=plan)

    assert out[1:7] == [
        "Mode            | Success Rate     | Avg Cost     | Avg Iterations",
        "----------------+------------------+--------------+----------------",
        "Zero-Shot       |  90.2% (148/164) | $ 123.4000   |            1.0",
        "Iterative       | 100.0% (164/164) | $  0.5000    |            1.0",
        "----------------+------------------+--------------+----------------",
        "Improvement     |  +9.8% points    | $ -122.9000  |           +0.0",
    ]


def test_single_mode_has_the_promised_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [judged(i, i < 3, solver="iterative", cost=0.00246, iterations=[1, 1, 6, 3, 10][i]) for i in range(5)]
    out, _ = shown(tmp_path, capsys, *records, Finished(status="complete"), of=a_plan(5, arms=["iterative"]))

    assert out[:7] == [
        "BENCHMARK COMPLETE",
        "Mode: iterative",
        "Problems: 5",
        "Successes: 3 (60.0%)",
        "Total Cost: $0.0123",
        "Avg Cost per Problem: $0.00246",
        "Avg Iterations per Problem: 4.2",
    ]


def test_samples_are_not_called_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [judged(i, i < 3, sample=sample) for i in range(5) for sample in range(4)]
    out, _ = shown(tmp_path, capsys, *records, Finished(status="complete"), of=a_plan(5, samples=4))

    assert "Problems: 5 (20 samples)" in out
    assert "Successes: 12 (60.0%)" in out
    assert "Avg Cost per Sample: $0.25000" in out
    assert "Avg Iterations per Sample: 1.0" in out
    assert not [line for line in out if "per Problem" in line]


def test_tables_of_nothing_judged_have_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single, _ = shown(tmp_path / "a", capsys, fault(0), Finished(status="incomplete"))
    both, _ = shown(tmp_path / "b", capsys, judged(0), of=a_plan(1, arms=("zero-shot", "iterative")))

    assert single[2:7] == [
        "Problems: 0",
        "Successes: 0 (-)",
        "Total Cost: $0.0000",
        "Avg Cost per Problem: $0.00000",
        "Avg Iterations per Problem: -",
    ]
    assert both[3:7] == [
        "Zero-Shot       | 100.0% ( 1/ 1)  | $  0.2500    |            1.0",
        "Iterative       |      - ( 0/ 0)  | $  0.0000    |              -",
        "----------------+-----------------+--------------+----------------",
        "Improvement     |             -   | $  +0.0000   |              -",
    ]


def test_improvement_names_its_tasks_where_modes_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = a_plan(3, arms=("zero-shot", "iterative"))
    both = [judged(0, False), judged(0, solver="iterative"), judged(1), judged(1, solver="iterative")]
    unlike, _ = shown(tmp_path / "a", capsys, *both, judged(2), Finished(status="stopped"), of=of)
    alike, _ = shown(tmp_path / "b", capsys, *both, Finished(status="stopped"), of=of)

    assert "improvement: over the 2 experiments judged in both modes" in unlike
    assert not [line for line in alike if line.startswith("improvement: ")]


def test_incomplete_run_says_so_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(tmp_path, capsys, judged(0), Finished(status="stopped", reason="the cost cap is reached"))

    assert out[0] == "BENCHMARK STOPPED"
    assert err == [
        "stopped after 1 of 3 experiments: the cost cap is reached",
        f"continue with: koderz benchmark resume {builders.RUN}",
    ]


def test_interrupted_run_tells_its_reason_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = shown(tmp_path, capsys, judged(0), Finished(status="interrupted", reason="interrupted"))

    assert err[0] == "interrupted after 1 of 3 experiments"


def test_faults_are_told_with_the_first_reason_and_the_way_to_retry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [fault(1, reason="the server is gone\x1b[31m"), fault(2)]
    _, err = shown(tmp_path, capsys, judged(0), *faults, Finished(status="incomplete"))

    assert err == [
        "2 of 3 experiments ended in a fault, the first with: the server is gone\\x1b[31m",
        f"run them again with: koderz benchmark retry {builders.RUN}",
    ]


def test_retry_is_not_advised_where_tasks_are_at_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [fault(1, cause="task"), fault(2, cause="task")]
    _, err = shown(tmp_path, capsys, judged(0), *faults, Finished(status="incomplete"))
    assert err[1] == "their tasks are at fault, so that running them again can't help"

    _, err = shown(tmp_path / "b", capsys, judged(0), faults[0], fault(2), Finished(status="incomplete"))
    assert "koderz benchmark retry" in err[1]


def test_submitted_run_draws_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handed_over = Finished(status="detached", reason="3 experiments are with Modal")

    heading, check = shown(tmp_path / "a", capsys, handed_over)[0]
    assert heading == "BENCHMARK DETACHED"
    assert check.startswith("Check it with: koderz benchmark watch bench_")
    assert "Problems: 1" in shown(tmp_path / "b", capsys, judged(0), handed_over)[0]


def test_simulated_model_is_named_before_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(tmp_path, capsys, judged(0), of=a_plan(simulated=True))

    assert out[0].startswith("SIMULATED MODEL: these figures say nothing")


def test_unknown_price_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(tmp_path, capsys, judged(0, cost_known=False))

    assert any("what some calls cost is unknown, so costs are too low" in line for line in out)


def test_finished_run_says_that_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = shown(tmp_path, capsys, judged(0), Finished(status="complete"), reason=NOTHING_TO_DO)

    assert err == [f"{builders.RUN}: nothing to do"]


def test_json_draws_nothing_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(tmp_path, capsys, fault(0), Finished(status="incomplete"), json=True)

    assert out == []
    assert len(err) == 2


@pytest.mark.parametrize(
    ("environment", "terminal", "live"),
    [({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False)],
)
def test_animation_is_off_where_it_is_unwelcome(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], terminal: bool, live: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)

    assert console.is_live() is live


# The real command against a model that means ill


@contextmanager
def answering(status: int, document: Any) -> Iterator[str]:
    """The base URL of an OpenAI-compatible server that says the same to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def printed(koderz: Shell, *arguments: object, **environment: str) -> tuple[int, str]:
    """The exit code, and all that the command prints, to the byte."""
    done = subprocess.run(
        [sys.executable, "-m", "koderz", *map(str, arguments)],
        cwd=koderz.folder,
        env=koderz.environment(environment),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).decode("utf-8")


EVERYTHING = " | ".join(HOSTILE.values())


@pytest.fixture
def tasks(koderz: Shell) -> Path:
    return write_tasks(koderz.folder, 2)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "benchmark"])
def test_hostile_reply_reaches_the_terminal_escaped(koderz: Shell, tasks: Path, command: str) -> None:
    raised = EVERYTHING.replace(HOSTILE["half a character"], "")
    reply = f"Well {EVERYTHING}\n```python\ndef f0():\n    raise ValueError({raised!r})\n```\n"
    document = {
        "model": EVERYTHING,
        "choices": [{"message": {"role": "assistant", "content": reply}, "finish_reason": EVERYTHING}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    what = ("run", "T/0") if command == "run" else ("benchmark", 0, 1)
    with answering(200, document) as url:
        code, text = printed(
            koderz, *what, "--dataset", tasks, "--model", "openai/m", "--base-url", url, "--mode", "zero-shot"
        )

    assert dangerous(text) == []
    assert code == (1 if command == "run" else 0), text
    if command == "run":
        assert "Well \\x1b[31mred" in text
        assert "ValueError" in text


def test_program_that_raises_half_a_character_is_judged(koderz: Shell, tasks: Path) -> None:
    reply = "```python\ndef f0():\n    raise ValueError('\\ud83d')\n```\n"
    with answering(200, {"choices": [{"message": {"role": "assistant", "content": reply}}]}) as url:
        where = ("--dataset", tasks, "--model", "openai/m", "--base-url", url, "--mode", "zero-shot")
        code, text = printed(koderz, "run", "T/0", *where)

    assert code == 1, text
    assert "verdict: error (exception:ValueError)" in text


def test_hostile_error_reaches_the_terminal_escaped(koderz: Shell, tasks: Path) -> None:
    with answering(400, {"error": {"message": f"no {EVERYTHING}", "code": EVERYTHING}}) as url:
        code, text = printed(koderz, "run", "T/0", "--dataset", tasks, "--model", "openai/m", "--base-url", url)

    assert dangerous(text) == []
    assert code == 3
    assert "fault: " in text


@pytest.mark.slow
def test_hostile_words_in_options_files_and_names_are_told_harmlessly(koderz: Shell, tasks: Path) -> None:
    word = "".join(
        HOSTILE[name] for name in ("colour", "clipboard", "right-to-left override", "8-bit control sequence")
    )
    (koderz.folder / "own.py").write_text(f"raise ValueError({word!r})\n")
    (koderz.folder / "koderz.toml").write_text('"\\u001b[31m\\u202e" = 1\n')
    for arguments in (
        ("benchmark", word),
        ("benchmark", 0, 1, "--mode", word),
        ("benchmark", 0, 1),
        ("benchmark", "resume", word, "--results", "."),
    ):
        code, text = printed(koderz, *arguments)
        assert dangerous(text) == [], arguments
        assert code == 2
    (koderz.folder / "koderz.toml").unlink()
    code, text = printed(koderz, "benchmark", 0, 1, "--solver", "own.py:solve", "--dataset", tasks)
    assert dangerous(text) == []
    assert "can't be loaded: ValueError: \\x1b[31m" in text


def test_ascii_terminal_is_supported(koderz: Shell, tasks: Path) -> None:
    code, text = printed(koderz, "run", "T/0", "--dataset", tasks, "--model", "simulated", PYTHONIOENCODING="ascii")

    assert code in (0, 1)
    assert "Traceback" not in text


@pytest.mark.slow
def test_resumed_single_experiment_has_no_summary_file(koderz: Shell, tasks: Path) -> None:
    printed(koderz, "run", "T/0", "--dataset", tasks, "--model", "simulated")
    (folder,) = koderz.results.glob("exp_*")

    _, text = printed(koderz, "benchmark", "resume", folder.name)

    assert "None" not in text


def test_broken_pipe_is_no_error(koderz: Shell, tasks: Path) -> None:
    running = koderz.start("benchmark", 0, 2, "--dataset", tasks, "--model", "simulated", "--mode", "zero-shot")
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    said = running.stderr.read()
    running.wait(PATIENCE)
    running.stderr.close()

    assert "Traceback" not in said


def test_calls_that_were_paid_are_told_with_their_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(tmp_path, capsys, call(0, cost=1.25), judged(0, cost=1.25), Finished(status="complete"))

    assert "Total Cost: $1.2500" in out


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0:00"), (59.9, "0:59"), (3599, "59:59"), (3600, "1:00:00"), (90_061, "25:01:01")]
)
def test_duration_shows_all_its_hours(seconds: float, told: str) -> None:
    assert console.elapsed(seconds) == told
