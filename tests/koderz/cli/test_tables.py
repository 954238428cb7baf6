"""Tables on terminals of every width: nothing runs over, no word or number is broken, and pipes get all of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.cells import cell_len

from koderz.analysis.blocks import Block, Table, Text
from koderz.cli import tables
from koderz_tracker.sinks.standing import Standing, State, record_standings
from tests.conftest import PATIENCE, Shell
from tests.koderz.analysis import builders
from tests.koderz.cli.conftest import Command
from tests.koderz.cli.test_console import HOSTILE, dangerous

MODELS = ("openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5", f"hf.co/team/{'a-rather-long-name-' * 4}q4_K_M")
WIDTHS = (80, 100, 120, 200)

Printed = Callable[[int | None, Sequence[Block]], list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """The lines of some blocks on a terminal with so many columns, or in a pipe."""

    def lines(width: int | None, blocks: Sequence[Block]) -> list[str]:
        monkeypatch.setattr(tables, "terminal_width", lambda: width)
        tables.print_blocks(blocks)
        return capsys.readouterr().out.splitlines()

    return lines


LIST = Table(
    ["RUN", "MODEL", "SUITE", "RATE", "STATUS"],
    [
        ["bench_0a1b2c3d_20260131_120000", "openai/gpt-4o-mini", "humaneval", "62.5%", "complete #nightly #second"],
        ["", "", "", "100.0%", ""],
    ],
    ["SUITE", "STATUS"],
    ruled=False,
)


def test_table_with_enough_room_is_unchanged(printed: Printed) -> None:
    expected = [
        "RUN                             MODEL               SUITE        RATE  STATUS",
        "bench_0a1b2c3d_20260131_120000  openai/gpt-4o-mini  humaneval   62.5%  complete #nightly #second",
        "                                                               100.0%",
    ]
    assert printed(None, [LIST]) == printed(96, [LIST]) == expected


def test_texts_fold_between_words_before_a_column_goes(printed: Printed) -> None:
    assert printed(82, [LIST])[1:3] == [
        "bench_0a1b2c3d_20260131_120000  openai/gpt-4o-mini  humaneval   62.5%  complete",
        "                                                                       #nightly",
    ]


def test_columns_go_in_their_order_and_that_is_said(printed: Printed) -> None:
    narrow = printed(70, [LIST])

    assert narrow[0] == "RUN                             MODEL                 RATE  STATUS"
    assert narrow[-1] == "(hidden to fit 70 columns: SUITE; a pipe shows all)"
    assert printed(60, [LIST])[-1] == "(hidden to fit 60 columns: SUITE, STATUS; a pipe shows all)"


def test_word_is_broken_at_a_joint_as_a_last_resort(printed: Printed) -> None:
    narrow = printed(50, [LIST])

    assert narrow[:3] == [
        "RUN                             MODEL         RATE",
        "bench_0a1b2c3d_20260131_120000  openai/      62.5%",
        "                                gpt-4o-",
    ]


def test_sentence_folds_and_its_command_stays_whole(printed: Printed) -> None:
    command = "koderz benchmark retry bench_0a1b2c3d_20260131_120000"
    told = Text(f"  6 faults, not counted as failures; run again with: {command}")

    assert printed(70, [told]) == ["  6 faults, not counted as failures; run again with:", f"    {command}"]
    assert printed(None, [told]) == [told.text]


RUNS = Table(
    ["RUN", "MODEL", "SUITE", "PASSED", "COST", "STATUS"],
    [
        ["bench_0a1b2c3d_20260131_120000", "openai/gpt-4o-mini", "humaneval", "8/10", "$0.1000", "complete"],
        ["bench_0a1b2c3e_20260131_130000", "simulated", "ruler", "2/10", "$0.2000", "complete"],
        ["", "", "", "6/10", "$0.3000", ""],
    ],
    ["SUITE", "MODEL"],
    ruled=False,
    under={"SUITE": "RUN", "MODEL": "RUN"},
)


def test_column_of_one_value_goes_first_and_its_value_is_told(printed: Printed) -> None:
    assert printed(79, [RUNS]) == [
        "RUN                             MODEL               SUITE      PASSED     COST",
        "bench_0a1b2c3d_20260131_120000  openai/gpt-4o-mini  humaneval    8/10  $0.1000",
        "bench_0a1b2c3e_20260131_130000  simulated           ruler        2/10  $0.2000",
        "                                                                 6/10  $0.3000",
        "(in each row: STATUS complete)",
    ]


def test_columns_move_under_another_where_they_can(printed: Printed) -> None:
    narrow = printed(50, [RUNS])

    assert narrow[0].split() == ["RUN", "PASSED", "COST"]
    assert narrow[1].split() == ["SUITE", "·", "MODEL"]
    assert narrow[2].split() == ["bench_0a1b2c3d_20260131_120000", "8/10", "$0.1000"]
    assert narrow[3].split() == ["humaneval", "·", "openai/gpt-4o-mini"]


def test_column_is_dropped_before_a_head_takes_three_lines(printed: Printed) -> None:
    table = Table(["NAME", "GAIN [95 %]", "N"], [["first", "+0.6", "5"], ["second", "+0.2", "6"]], ["N"], ruled=False)

    lines = printed(18, [table])

    assert lines[:2] == ["NAME   GAIN [95 %]", "first         +0.6"]
    assert lines[3:] == ["(hidden to fit", "  18 columns: N; a", "  pipe shows all)"]


CELLS = st.text(max_size=60) | st.sampled_from([*HOSTILE.values(), "漢字 " * 9, "12.5%", "a" * 99, "x/" * 40])


@given(
    columns=st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=5),
    ruled=st.booleans(),
    width=st.integers(30, 130),
)
def test_table_lines_fit_and_are_escaped_for_any_content(columns: list[list[str]], ruled: bool, width: int) -> None:
    table = Table(*_by_row(columns), optional=[columns[-1][0]], ruled=ruled)

    lines = list(tables._table_lines(table, width))

    assert all(cell_len(line) <= width for line in lines)
    assert dangerous("".join(lines)) == []


@given(columns=st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=5), width=st.integers(30, 130))
def test_folding_loses_no_character(columns: list[list[str]], width: int) -> None:
    table = Table(*_by_row(columns))
    assume(not any(column.same(ruled=True) for column in tables._columns(table)))  # which may be said once instead
    whole, folded = ("".join(tables._table_lines(table, w)) for w in (None, width))

    assert sorted(re.sub(r"[\s|+-]", "", folded)) == sorted(re.sub(r"[\s|+-]", "", whole))


def _by_row(columns: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    header, *rows = (list(row) for row in zip(*columns, strict=True))
    return header, rows


# The commands


@pytest.fixture
def runs(koderz: Shell) -> Path:
    """Five runs with long names, one of them cut short, one comparative."""
    for number, model in enumerate((*MODELS, *MODELS[:2])):
        run_id = f"bench_0000000{number}_20260131_12000{number}"
        tags = ["nightly", "after-the-change-of-prompts", HOSTILE["colour"]]
        more: dict[str, Any] = {"run_id": run_id, "config": {"local_model": model, "suite": "humaneval", "tags": tags}}
        outcomes = {f"HumanEval/{task}": [(task + number) % 3 > 0] for task in range(20 + number)}
        summary = builders.document(outcomes, **more) if number else builders.comparative(outcomes, outcomes, **more)
        if number == 3:
            summary |= {"status": "interrupted", "planned": 60}
        builders.write(koderz.results / f"{run_id}.json", summary)
    return koderz.results


ALL = ("list", "compare latest~1 latest", "compare latest latest~1 latest~2", "problems", "show latest")


@pytest.mark.parametrize("width", WIDTHS)
def test_command_neither_runs_over_nor_breaks_a_word(
    command: Command, runs: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    for words in ALL:
        monkeypatch.setattr(tables, "terminal_width", lambda: width)
        lines = command("benchmark", *words.split()).out.splitlines()
        monkeypatch.setattr(tables, "terminal_width", lambda: None)
        whole = set(command("benchmark", *words.split()).out.split())

        assert [line for line in lines if cell_len(line) > width] == []
        cells = re.sub(
            r"\((hidden|in each row|runs by)[^)]*\)|\S*-\+-\S*|STARTED|(?<![\d-])\d\d-\d\d \d\d:\d\d",
            "",
            "\n".join(lines),
        )
        told = set(cells.split())
        assert [word for word in told - whole if not any(_is_part(word, long) for long in whole)] == []


def _is_part(text: str, word: str) -> bool:
    """Whether a word may be broken into this text and others."""
    if "…" in text or re.fullmatch(r"bench_[0-9a-f]{8}:?", text):  # cut, with the whole of it in a pipe
        return text.strip("…:") in word
    return len(word) > 16 and text in word and (text[-1] in "/:,@-" or word.endswith(text))


def test_list_at_80_columns_keeps_arm_date_and_interval(command: Command, runs: Path) -> None:
    run_id = "bench_00000009_20260131_120009"
    config = {"local_model": "qwen3:32b", "suite": "mbpp+"}
    summary = builders.document({"Mbpp/2": [True]}, run_id=run_id, config=config)
    summary["summary"]["total_cost"] = 0.01
    builders.write(runs / f"{run_id}.json", summary)

    head, *lines = [line.split() for line in _in_a_terminal(command, 80, "list")]

    assert head == ["RUN", "SUITE", "MODEL", "RATE", "95%", "INTERVAL", "PASSED", "COST"]
    assert lines[0] == ["STARTED", "STATUS", "ARM"]
    assert lines[1] == ["bench_00000009", "mbpp+", "qwen3:32b"]
    date, time, status, arm, rate, *interval, passed, cost = lines[2]
    assert (date, status, arm, rate, passed, cost) == ("01-31", "complete", "zero-shot", "100.0%", "1/1", "$0.0100")
    assert re.fullmatch(r"\d\d:\d\d", time)
    assert interval == ["20.7", "to", "100.0"]
    assert [line[0] for line in lines if line[0].startswith("bench_") and line[0][-1] != ":"] == [
        f"bench_0000000{number}" for number in (9, 4, 3, 2, 1, 0)
    ]
    (start,) = [number for number, line in enumerate(lines) if line[0] == "bench_00000000"]
    assert [[word for word in line if word in ("zero-shot", "iterative")] for line in lines[start + 1 : start + 3]] == [
        ["zero-shot"],
        ["iterative"],
    ]
    assert any(" ".join(line).startswith("(hidden to fit: TIME") for line in lines)
    assert ["bench_00000003:", "interrupted", "23/60"] in lines


def test_list_cuts_what_has_no_room_and_keeps_the_end_of_models(command: Command, runs: Path) -> None:
    lines = _in_a_terminal(command, 80, "list")

    (cut,) = [line for line in lines if line.startswith("bench_00000002")]
    assert re.search(r" …\S*q4_K_M$", cut)
    assert max(map(len, lines)) <= 80


def test_list_says_once_what_sinks_lack(command: Command, koderz: Shell) -> None:
    states: tuple[State, ...] = ("down", "down", "behind")
    for number, state in enumerate(states):
        run_id = f"bench_0000000{number}_20260131_12000{number}"
        builders.write(koderz.results / f"{run_id}.json", builders.document(run_id=run_id))
        (koderz.results / run_id).mkdir()
        record_standings(koderz.results / run_id, partial(_replaced, {"mlflow": Standing(state=state)}))

    told = [line for line in _in_a_terminal(command, 200, "list") if "MLflow" in line or "mlflow" in line]

    assert told == ["3 runs are not in MLflow yet: koderz sync"]


def _replaced(standings: Mapping[str, Standing], _: Mapping[str, Standing]) -> Mapping[str, Standing]:
    return standings


def test_list_names_no_method_of_intervals_that_may_have_several(command: Command, runs: Path) -> None:
    head = command("benchmark", "list").out.splitlines()[0]

    assert "  95% INTERVAL  " in head
    assert "WILSON" not in head


def _in_a_terminal(command: Command, width: int, *words: str) -> list[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "terminal_width", lambda: width)
        return command("benchmark", *words).out.splitlines()


def test_terminal_width_folds_and_a_pipe_gets_everything(koderz: Shell, runs: Path) -> None:
    shell, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
    arguments = [sys.executable, "-m", "koderz", "benchmark", "list"]
    process = subprocess.Popen(
        arguments, cwd=koderz.folder, env=koderz.environment(), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    while chunk := _read(shell):
        shown += chunk
    process.wait(timeout=PATIENCE)
    os.close(shell)
    piped = koderz("benchmark", "list", env={"COLUMNS": "80"}).out.splitlines()

    lines = shown.decode().splitlines()
    assert max(map(len, lines)) <= 90
    assert "(runs by the beginning of their ids; a pipe shows all columns)" in lines
    assert [line.count("bench_") for line in piped] == [0, 1, 1, 1, 1, 1, 0]
    assert all(model in "\n".join(piped) for model in MODELS)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # whoever wrote has ended
        return b""
