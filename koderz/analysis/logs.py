"""Logs of other tools as runs. Systems read them, and tell by a file's content which they know."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import structs

from koderz.errors import KoderzError
from koderz.settings.systems import names_of, required
from koderz_tracker.runs import RUN_ID
from koderz_tracker.summary import Summary

_S = TypeVar("_S", bound=Summary)
UNNAMED = "(not named) "
"""The beginning of the id of a task that a log counts and doesn't name, with a number after it."""


class Log(Protocol):
    """A log that was read from a path; `koderz.analysis.reader.summary_of_document` makes a summary of rows."""

    def summary(self, path: Path) -> Summary:
        """The log as a run's summary. Raises KoderzError where it has no sample."""

    def values(self, field_name: str, path: Path) -> dict[str, str]:
        """The value of a field by task. Raises KoderzError where no task has it."""


Reader = Callable[[Path], Log]


def read_log(path: Path) -> Summary | None:
    """The summary of another tool's log; None where it is no log that koderz knows.

    Raises KoderzError, one line, for a log that is damaged, holds no sample, or no verdicts.
    """
    reader = reader_of(path)
    return None if reader is None else reader(path).summary(path)


def reader_of(path: Path) -> Reader | None:
    """The function that reads a file or folder as a log; None where no system knows one.

    Systems open only files whose names end as their logs do: to close the memory store's file would end the locks that
    this process has on it. Raises KoderzError for what is a log and has no verdicts, such as a trajectory.
    """
    return next((reader for each in _finders(tuple(sys.path)) if (reader := each(path))), None)


@cache
def _finders(_path: tuple[str, ...]) -> list[Callable[[Path], Reader | None]]:
    """The functions that systems add. One that can't be loaded is left out."""
    found = []
    for name in names_of("logs"):
        with suppress(KoderzError):
            found.append(required("logs", name))
    return found


def logs_in(folder: Path, others_than: Collection[str] = ()) -> Iterator[Path]:
    """The logs directly in a folder, by name, without runs of koderz and what has one of these names.

    Logs that can't be read are among them, so that their reader says why.
    """
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 of 10,000 runs, Paths take the longest
        if (
            name.startswith(".")
            or name in others_than
            or RUN_ID.fullmatch(name.removesuffix(".json"))
        ):
            continue
        path = folder / name
        try:
            is_log = reader_of(path) is not None or (
                path.suffix == ".eval" and bool(names_of("logs"))
            )
        except KoderzError:
            is_log = True
        if is_log:
            yield path


def named_alike(runs: Sequence[_S]) -> list[_S]:
    """The runs, with tasks that one doesn't name under the ids that others give them.

    A submission to SWE-bench names what it solved, and the number of all. What others name and it doesn't is among
    those that it didn't solve; what none names, nobody solved. Raises KoderzError where more are named than there are.
    """
    if not any(map(_counts_unnamed, runs)):
        return [*runs]
    named = {
        result.problem_id: None
        for run in runs
        for result in run.results
        if not result.problem_id.startswith(UNNAMED)
    }
    return [_renamed(run, named) if _counts_unnamed(run) else run for run in runs]


def _counts_unnamed(run: Summary) -> bool:
    return any(result.problem_id.startswith(UNNAMED) for result in run.results[-1:])


def _renamed(run: _S, named: Iterable[str]) -> _S:
    ((name, arm),) = run.arms.items()
    own = {result.problem_id for result in arm.results}
    others = iter([task for task in named if task not in own])
    rest = count(1)
    results = [
        structs.replace(result, problem_id=next(others, None) or f"{UNNAMED}{next(rest)}")
        if result.problem_id.startswith(UNNAMED)
        else result
        for result in arm.results
    ]
    if (task := next(others, None)) is not None:
        raise KoderzError(
            f"the submission of {run.config['local_model']} counts {len(results)} tasks, and there are more with those "
            f"that the others name, as {task}; compare submissions to one split"
        )
    return replace(run, arms={name: replace(arm, results=results)})
