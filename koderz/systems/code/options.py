"""Options of the suites `bigcodebench` and `livecodebench`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal

from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE
from koderz.suites.options import CodeOptions


@dataclass(frozen=True, slots=True)
class BigCodeBenchOptions(CodeOptions):
    """The prompts and tasks that are asked, and the interpreter with the libraries that they use."""

    split: Literal["complete", "instruct"] = option(
        "complete",
        "What a model is given: the function's head and docstring, or an instruction.",
        "KIND",
    )
    hard: bool = option(
        False, "Ask the published subset of 148 hard tasks, which is a file of its own."
    )
    python: str | None = option(
        None,
        "The interpreter with the tasks' libraries, in which they are tested. Default: koderz' own.",
        "PATH",
        risk=RUNS_CODE,
    )


RELEASES = {
    "v1": date(2024, 3, 31),
    "v2": date(2024, 5, 31),
    "v3": date(2024, 7, 31),
    "v4": date(2024, 9, 30),
    "v5": date(2025, 1, 31),
    "v6": date(2025, 4, 30),
}
"""The releases, each with the last day whose contests it may hold."""

TASKS = {"v1": 400, "v2": 511, "v3": 612, "v4": 713, "v5": 880, "v6": 1055}
"""The number of tasks that each release was published with."""


def _wrong_day(text: str | None) -> str:
    try:
        if text is not None:
            date.fromisoformat(text)
    except ValueError:
        return f"{text!r} is no date; write it as 2024-09-30"
    return ""


@dataclass(frozen=True, slots=True)
class LiveCodeBenchOptions(CodeOptions):
    """The contests that tasks are taken from, and the way programs are run."""

    since: str | None = option(
        None,
        "The first day of contests whose tasks are asked, such as 2024-09-30.",
        "DATE",
        check=_wrong_day,
    )
    until: str | None = option(
        None, "The last day of contests whose tasks are asked.", "DATE", check=_wrong_day
    )
    release: Literal["v1", "v2", "v3", "v4", "v5", "v6"] | None = option(
        None, "A release of LiveCodeBench: the tasks up to its last day.", "RELEASE"
    )
    io: Literal["official", "process"] = option(
        "official",
        "How a program meets its input: as in LiveCodeBench's own harness, or as a process with a real stdin.",
        "KIND",
    )

    @property
    def last_day(self) -> date | None:
        """The last day of contests by `until` and `release`; None where neither is named."""
        days = [date.fromisoformat(self.until)] if self.until else []
        return min([*days, *([RELEASES[self.release]] if self.release else [])], default=None)
