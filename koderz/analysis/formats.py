"""Export formats of suites, solvers and other packages: runs in the form that another tool reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from koderz.analysis.export import FORMATS as TABLES
from koderz.analysis.export import arms_of
from koderz.analysis.story import Experiments, Story
from koderz.errors import KoderzError
from koderz.settings.systems import added
from tracker.records import Plan

Format = Callable[[Iterable[tuple[Plan, Story]], Any], None]
"""Writes experiments, each with its run's plan, to a binary file.

Where it has the attribute `is_folder`, it is handed the path of a folder instead, which exists.
"""


def own_format(name: str | None) -> Format | None:
    """The format with this name; None for one of koderz' tables, which `koderz.analysis.export` writes."""
    if name is None or name in TABLES:
        return None
    return cast("Format | None", added("formats", name))


def takes_folder(format_: Format) -> bool:
    """Whether the format writes several files."""
    return bool(getattr(format_, "is_folder", False))


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
