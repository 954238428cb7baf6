"""Export formats of suites, solvers and other packages: runs in the form that another tool reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from koderz.analysis.export import FORMATS as TABLES
from koderz.analysis.export import arms_of
from koderz.analysis.story import Experiments, Story
from koderz.errors import KoderzError
from koderz.settings.systems import added
from koderz_tracker.records import Plan

INSPECT = "inspect"
"""The name of koderz' own format of logs, which fits every system."""

Stories = Iterable[tuple[Plan, Story]]
"""Experiments, each with its run's plan."""


@dataclass(frozen=True, slots=True)
class Format:
    """An export format: a function that writes experiments into a binary file, or as several files into a folder."""

    function: Callable[[Stories, Any], None]
    """The function. Its second argument is the open file, or the path of the folder, which exists."""

    is_folder: bool = False
    """Whether it is handed a folder."""

    def __call__(self, stories: Stories, target: Any) -> None:
        """Write the experiments."""
        self.function(stories, target)

    @classmethod
    def of(cls, found: Any, name: str) -> Format:
        """The format that was loaded under a name: a Format, or a function that may have the attribute `is_folder`.

        Raises KoderzError for anything else.
        """
        if isinstance(found, cls):
            return found
        if not callable(found):
            raise KoderzError(f"the format {name} is no function: {found!r:.80}")
        return cls(found, bool(vars(found).get("is_folder", False)))


def folder_format(function: Callable[[Stories, Path], None]) -> Format:
    """Decorator that makes a `Format` of a function which writes into a folder."""
    return Format(function, is_folder=True)


def own_format(name: str | None) -> Format | None:
    """The format with this name; None for one of koderz' tables, which `koderz.analysis.export` writes."""
    if name is None or name in TABLES:
        return None
    if name == INSPECT:
        from koderz.analysis.eval_logs import inspect

        return Format(inspect, is_folder=True)
    found = added("formats", name)
    return None if found is None else Format.of(found, name)


def write_own(format_: Format, folders: Sequence[Path], target: IO[bytes] | Path, *, arm: str | None = None) -> int:
    """Writes these runs, or one arm of each, in an own format. Returns the number of experiments.

    Raises KoderzError for an arm that a run doesn't have.
    """
    found = [(each, arms_of(each.plan, arm)) for each in map(Experiments, folders)]
    stories = [(each.plan, story) for each, arms in found for story in each.of(arms)]
    try:
        format_(stories, target)
    except (KoderzError, OSError):
        raise
    except Exception as error:  # it may be anybody's code
        raise KoderzError(f"the format can't be written: {type(error).__name__}: {error}") from error
    return len(stories)
