"""Options of the suite `bigcodebench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE
from koderz.suites.options import CodeOptions


@dataclass(frozen=True, slots=True)
class BigCodeBenchOptions(CodeOptions):
    """The prompts and tasks that are asked, and the interpreter with the libraries that they use."""

    split: Literal["complete", "instruct"] = option(
        "complete", "What a model is given: the function's head and docstring, or an instruction.", "KIND"
    )
    hard: bool = option(False, "Ask the published subset of 148 hard tasks, which is a file of its own.")
    python: str | None = option(
        None,
        "The interpreter with the tasks' libraries, in which they are tested. Default: koderz' own.",
        "PATH",
        risk=RUNS_CODE,
    )
