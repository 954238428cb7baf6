"""Data that is printed in a terminal: whatever a model or a file put into it, nothing of it steers."""

from __future__ import annotations

import json
import sys

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Finished, Record
from tests.conftest import Shell
from tests.koderz.cli.conftest import Command
from tests.koderz.cli.test_console import HOSTILE, dangerous
from tests.tracker.builders import attempt, call, judged

EVERYTHING = " | ".join(text for name, text in HOSTILE.items() if name != "half a character")


@pytest.fixture
def run(koderz: Shell) -> str:
    """A run of a model that means ill, its words in every field."""
    records: list[Record] = [
        call(0, reply=EVERYTHING, finish_reason=EVERYTHING),
        attempt(0, verdict="error", cause=EVERYTHING, program=EVERYTHING, detail=EVERYTHING, feedback=EVERYTHING),
        judged(0, False, verdict="error", cause=EVERYTHING, note=EVERYTHING),
        Finished(status="complete"),
    ]
    of = a_plan(1, config={"local_model": EVERYTHING})
    return a_journal(koderz.results, *records, plan=of).name


@pytest.mark.parametrize(
    "words",
    [
        "export RUN --format csv",
        "export RUN --format csv --attempts",
        "export RUN --format jsonl",
        "export RUN --format jsonl --attempts",
        "export RUN --format md",
        "export RUN --format md --attempts",
        "show RUN --json",
        "show RUN --problem 0 --json",
        "show RUN --failures --json",
        "list --json",
    ],
)
def test_data_in_a_terminal_holds_no_character_that_steers_it(
    command: Command, run: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    out = command("benchmark", *words.replace("RUN", run).split()).out

    assert dangerous(out) == []
    assert "\\u001b[31mred" in out or "md" in words
    if "json" in words:
        documents = out.splitlines() if "jsonl" in words else [out]
        assert [json.loads(document) for document in documents]


def test_pipe_gets_data_as_recorded(command: Command, run: str) -> None:
    out = command("benchmark", "export", run, "--format", "csv", "--attempts").out

    assert EVERYTHING in out
