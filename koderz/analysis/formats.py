"""Export formats of systems and other packages: runs in the form that another tool or a public registry reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from koderz.analysis.export import FORMATS as TABLES
from koderz.analysis.export import arms_of
from koderz.analysis.runs import FaultsAs
from koderz.analysis.story import Experiments, Story
from koderz.errors import KoderzError
from koderz.settings.systems import added
from koderz_tracker.records import Plan

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


Relationship = Literal["first_party", "third_party", "collaborative", "other"]
"""The evaluator's relation to the model, in Every Eval Ever's words."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The facts that a registry asks for and a run doesn't hold."""

    organization: str | None = None  # that publishes the result
    relationship: Relationship | None = None
    model_id: str | None = None  # as the registry has it: DEVELOPER/NAME
    source_url: str | None = None  # of the published run
    hf_dataset: str | None = None  # the dataset on the Hub
    hf_task: str | None = None  # the task of its leaderboard


@dataclass(frozen=True, slots=True)
class Extent:
    """The arm that is written of each run, and how results that are missing are dealt with."""

    arm: str | None = None  # None: all
    faults: FaultsAs | None = None  # how faults count; None: neither way
    # whether an arm is written although not all that was planned is judged
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class RegistryFormat:
    """The format of a public registry of results, which asks for more than a run holds."""

    function: Callable[[Sequence[Path], Any, Publication, Extent], int | None]
    """It writes the runs in folders, and returns the number of samples that it wrote, if it counts any."""

    is_folder: bool = False
    """Whether it is handed a folder, which needn't exist."""


OwnFormat = Format | RegistryFormat


def own_format(name: str | None) -> OwnFormat | None:
    """The format with this name; None for one of koderz' tables, which `koderz.analysis.export` writes."""
    if name is None or name in TABLES:
        return None
    found = added("formats", name)
    return found if found is None or isinstance(found, RegistryFormat) else Format.of(found, name)


_UNSAID, _ALL = Publication(), Extent()


def write_own(
    own: OwnFormat,
    folders: Sequence[Path],
    target: IO[bytes] | Path,
    about: Publication = _UNSAID,
    extent: Extent = _ALL,
) -> int | None:
    """Writes these runs, or one arm of each, in an own format. Returns the number of experiments that it counts.

    Raises KoderzError for an arm that a run doesn't have.
    """
    if isinstance(own, RegistryFormat):
        return own.function(folders, target, about, extent)
    found = [(each, arms_of(each.plan, extent.arm)) for each in map(Experiments, folders)]
    stories = [(each.plan, story) for each, arms in found for story in each.of(arms)]
    if isinstance(target, Path):
        target.mkdir(parents=True, exist_ok=True)
    try:
        own(stories, target)
    except (KoderzError, OSError):
        raise
    except Exception as error:  # it may be anybody's code
        raise KoderzError(
            f"the format can't be written: {type(error).__name__}: {error}"
        ) from error
    return len(stories)
