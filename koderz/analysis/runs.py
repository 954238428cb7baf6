"""Runs read back for analysis: from a summary file, also an older one, or a journal that is still growing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from koderz.analysis.blocks import as_html
from koderz.analysis.reader import read_summary
from koderz.analysis.run_view import run_blocks
from koderz.errors import KoderzError
from tracker.journal import NAME
from tracker.runs import RUN_ID, is_locked, named, run_folders
from tracker.summary import Summary, summarize

GOING = "running"
_STATES = {GOING: "is still going", "unfinished": "was left unfinished"}
_CUT_SHORT = ("interrupted", "stopped", "failed", "detached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Summary):
    """One run, wherever it was read from. Its status may also be `running`: a process works on it now."""

    path: Path  # the summary it was read from; of a run without one, its folder

    @property
    def name(self) -> str:
        """A name for the run: its id, or that of its file."""
        return self.run_id or self.path.stem

    @property
    def model(self) -> str:
        """The models in the role `main`, as named by the user."""
        return ", ".join(self.config.get("models") or ()) or str(self.config.get("local_model") or "unknown")

    @property
    def suite(self) -> str:
        return self.generated or str(self.config.get("suite") or "humaneval")

    @property
    def source(self) -> str:
        """The source of its tasks: the name of the given file or folder, else the suite."""
        dataset = self.config.get("dataset")
        return Path(dataset).name if isinstance(dataset, str) and not self.generated else self.suite

    @property
    def is_going(self) -> bool:
        """Whether more results may come."""
        return self.status in (GOING, "unfinished")

    @property
    def is_cut_short(self) -> bool:
        """Whether it ended before all planned experiments, so that it can be resumed."""
        left = self.planned - len(self.results) - len(self.faults)
        return self.status in _CUT_SHORT or (self.status == "incomplete" and left > 0)

    @property
    def progress(self) -> str:
        """A phrase on its state, to follow its name: `is stopped: 3 of 10 experiments are judged`."""
        state = _STATES.get(self.status, f"is {self.status}")
        return f"{state}: {len(self.results)} of {self.planned} experiments are judged"

    @property
    def folder(self) -> Path | None:
        """The folder of its journal, if that exists."""
        folder = self.path if self.path.is_dir() else self.path.with_suffix("")
        return folder if (folder / NAME).exists() else None

    def faults_of(self, arm: str) -> int:
        """The number of an arm's experiments that could not be judged."""
        return len(self.faulted(arm))

    def faulted(self, arm: str) -> list[dict[str, Any]]:
        """The experiments of an arm that could not be judged."""
        return [fault for fault in self.faults if fault.get("arm", fault.get("solver")) in (arm, None)]

    def _repr_html_(self) -> str:
        return as_html(run_blocks(self))


def resolve(names: Sequence[str], results: Path, *, allow_simulated: bool = False) -> list[Run]:
    """The runs named by ids, prefixes of ids, files, `latest` and `latest~1`.

    Raises KoderzError for a name that fits none or several, for what can't be read, where generated and published
    tasks are mixed, and where simulated and real runs are without `allow_simulated`.
    """
    found = [load_run(find(results, name)) for name in names]
    refuse_generated(found)
    if not allow_simulated:
        refuse_simulated_runs(found)
    return found


def run_paths(results: Path) -> list[Path]:
    """Every run, oldest first: its folder, or its summary if there is no journal."""
    folders = run_folders(results)
    ids = {folder.name for folder in folders}
    names = os.listdir(results) if results.is_dir() else ()  # noqa: PTH208 of 10,000 runs, Paths take the longest
    stems = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    bare = [results / f"{stem}.json" for stem in sorted(stems - ids) if RUN_ID.fullmatch(stem)]
    return sorted([*folders, *bare], key=lambda path: path.stem.split("_", 2)[2]) if bare else folders


def find(results: Path, name: str) -> Path:
    """The run's folder, or the summary file `name`. Raises KoderzError if it names none or several."""
    given, exact = Path(name), results / name
    if given.suffix == ".json":
        folder = given.with_suffix("")
        return folder if not _is_there(given) and _is_there(folder / NAME) else given
    for path in (given, exact):
        if _is_there(path / NAME):
            return path
    return named(run_paths(results), name, results)


def load_run(path: Path) -> Run:
    """The run in a folder, or in a summary file. A summary older than its journal is ignored."""
    if not path.is_dir():
        return load_summary(path)
    summary, journal = path.with_suffix(".json"), path / NAME
    if summary.exists() and summary.stat().st_mtime_ns >= journal.stat().st_mtime_ns:
        return load_summary(summary)
    return _from_journal(path)


def load_summary(path: Path | str) -> Run:
    """Reads the run in a summary file, of this version or an older one; its journal isn't needed.

    Raises KoderzError where the file is truncated, foreign, of a newer version or inconsistent.
    """
    path = Path(path)
    return load_run(path) if path.is_dir() else of_summary(read_summary(path), path)


def of_summary(summary: Summary, path: Path | None = None) -> Run:
    """A summary in memory as a run for analysis."""
    if isinstance(summary, Run):
        return summary
    given = {item.name: getattr(summary, item.name) for item in fields(summary)}
    return Run(**given, path=path or Path(summary.run_id or "summary"))


def refuse_generated(runs: Sequence[Run]) -> None:
    """Raises KoderzError if some runs have generated tasks and others published ones."""
    generated, published = _parted(runs, "generated")
    if generated and published:
        raise KoderzError(
            f"the tasks of {generated[0].name} are generated ({generated[0].generated}), those of {published[0].name} "
            "aren't, so their figures don't belong into one table; name runs of one kind"
        )


def refuse_simulated_runs(runs: Sequence[Run]) -> None:
    """Raises KoderzError if some runs use the simulated model alone and others don't."""
    simulated, real = _parted(runs, "simulated")
    if simulated and real:
        raise KoderzError(
            f"{simulated[0].name} is of the SIMULATED model, {real[0].name} of a real one, so together they mean "
            "nothing; to see them side by side all the same: --allow-simulated"
        )


def _parted(runs: Sequence[Run], trait: str) -> tuple[list[Run], list[Run]]:
    """The runs with the trait, and those without it."""
    return [run for run in runs if getattr(run, trait)], [run for run in runs if not getattr(run, trait)]


def _from_journal(folder: Path) -> Run:
    run = of_summary(summarize(folder), folder)
    if run.status == "unfinished" and is_locked(folder):
        return replace(run, status=GOING)
    return run


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for a file is not one
        return False
