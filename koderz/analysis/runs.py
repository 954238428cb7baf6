"""Runs read back for analysis: from a summary file, also an older one, or a journal that is still growing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from koderz.analysis.blocks import Block, Heading, Table, Text, as_html
from koderz.analysis.logs import logs_in, named_alike, read_log, reader_of
from koderz.analysis.measures import declared, named_average, shown
from koderz.analysis.reader import read_summary
from koderz.errors import KoderzError
from koderz.settings.layers import results_folder
from koderz_tracker.journal import NAME
from koderz_tracker.outline import is_decided, stopped_early, went_on
from koderz_tracker.results import untold
from koderz_tracker.runs import RUN_ID, is_locked, named, require_own, run_folders
from koderz_tracker.summary import Summary, missing_of, summarize

if TYPE_CHECKING:
    from koderz_tracker.breakdown import Slice, Spread
    from koderz_tracker.summary import Figures

Source = Summary | Path | str
"""A run as functions take it: a summary in memory, or what names one to `load_summary`."""

GOING = "running"
FaultsAs = Literal["fail"]
"""The ways to count faults other than neither way."""

FAULT = "fault"  # the verdict of a result that stands for a fault, see `koderz.analysis.completion`
_STATES = {GOING: "is still going", "unfinished": "was left unfinished"}
_CUT_SHORT = ("interrupted", "stopped", "failed", "detached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Summary):
    """One run, wherever it was read from. Its status may also be `running`: a process works on it now."""

    path: Path  # the summary it was read from; of a run without one, its folder

    @property
    def name(self) -> str:
        """A name for the run: its id, or that of its file."""
        return self.run_id or (self.path.stem if self.path.suffix == ".json" else self.path.name)

    @property
    def is_log(self) -> bool:
        """Whether it was read from another tool's log, as it is."""
        return self.run_id is None and "imported" in self.config

    @property
    def model(self) -> str:
        """The models in the role `main`, as named by the user."""
        return ", ".join(self.config.get("models") or ()) or str(
            self.config.get("local_model") or "unknown"
        )

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
        if self.is_decided:
            return False
        return self.status in _CUT_SHORT or (self.status == "incomplete" and left > 0)

    @property
    def is_decided(self) -> bool:
        """Whether it stopped since its arms were told apart, or can't be."""
        return is_decided(self)

    @property
    def progress(self) -> str:
        """A phrase on its state, to follow its name: `is stopped: 3 of 10 experiments are judged`."""
        if self.is_decided and not self.is_going and self.early:
            return self.early
        state = _STATES.get(self.status, f"is {self.status}")
        return f"{state}: {len(self.results)} of {self.planned} experiments are judged"

    @property
    def early(self) -> str:
        """A mark for a run that stopped early: `stopped early: shown after 84 of 164`; empty for any other."""
        return stopped_early(self.decision, went_on=went_on(self))

    def asked_of(self, arm: str) -> str:
        """The tasks that an arm's averages are over, in a run that stopped early; empty for any other."""
        if not self.early or went_on(self) or self.until_decided is None:
            return ""
        asked = len({result.problem_id for result in self.arms[arm].results})
        return f"over the {asked} of {len(self.until_decided.order)} tasks that were asked"

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
        return [
            fault for fault in self.faults if fault.get("arm", fault.get("solver")) in (arm, None)
        ]

    def missing_of(self, arm: str) -> list[dict[str, Any]]:
        """The experiments of an arm that its figures lack, since they could not be judged."""
        return missing_of(self.faults, arm)

    @property
    def cautions(self) -> list[str]:
        """Warnings to be shown wherever the figures are shown."""
        failed = sum(result.verdict == FAULT for result in self.results)
        found = (
            [f"FAULTS AS FAILURES: {failed} of {len(self.results)} results are faults"]
            if failed
            else []
        )
        return [*Summary.cautions.__get__(self), *found]

    def _repr_html_(self) -> str:
        return as_html(run_blocks(self))


def resolve(
    names: Sequence[str],
    results: Path,
    *,
    allow_simulated: bool = False,
    left_out: list[str] | None = None,
) -> list[Run]:
    """The runs named by ids, prefixes of ids, files, folders of logs, `latest` and `latest~1`.

    `left_out` gets a line for each log in such a folder that can't be read; None: it is an error, too.

    Raises KoderzError for a name that fits none or several, for what can't be read, where generated and published
    tasks are mixed, and where simulated and real runs are without `allow_simulated`.
    """
    found = []
    for name in names:
        # The logs in a folder of several; nothing for any other name.
        folder = Path(name)
        is_folder = _is_foreign(folder) and folder.is_dir() and reader_of(folder) is None
        logs = [*logs_in(folder)] if is_folder else []
        for path in logs or [find(results, name)]:
            try:
                found.append(load_run(path))
            except KoderzError as error:
                if not logs or left_out is None:
                    raise
                left_out.append(f"left out: {error}")
    found = named_alike(found)
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
    logs = [*logs_in(results, others_than=ids)] if names else []
    return sorted([*folders, *bare, *logs], key=_when) if bare or logs else folders


def find(results: Path, name: str) -> Path:
    """The run's folder, or the summary file `name`.

    Raises KoderzError if it names none or several, or where a link is in its place or in it.
    """
    given, exact = Path(name), results / name
    for path in (given, exact):
        if _is_foreign(path) and reader_of(path):
            return path
    if given.suffix == ".json":
        folder = given.with_suffix("")
        return require_own(folder if not _is_there(given) and _is_there(folder / NAME) else given)
    for path in (given, exact):
        if _is_there(path / NAME):
            return require_own(path)
    return require_own(named(run_paths(results), name, results))


def load_run(path: Path) -> Run:
    """The run in a folder, or in a summary file. A summary older than its journal is ignored."""
    if not _is_there(path / NAME):
        return load_summary(path)
    summary, journal = path.with_suffix(".json"), path / NAME
    if summary.exists() and summary.stat().st_mtime_ns >= journal.stat().st_mtime_ns:
        return load_summary(summary)
    run = of_summary(summarize(path), path)
    if run.status == "unfinished" and is_locked(path):
        return replace(run, status=GOING)
    return run


def load_summary(run: Path | str, *, results: Path | None = None) -> Run:
    """Reads a run by its summary file, of this version or an older one, or by its folder, id, prefix or `latest`.

    Its journal isn't needed. `results` is the folder in which it is looked for by name, as of `koderz.resume`. Raises
    KoderzError where there is no such run, and for a file that is truncated, foreign, of a newer version or
    inconsistent.
    """
    path = Path(run)
    if isinstance(run, str) and not _is_there(path):
        path = find(results_folder(results), run)
    if _is_foreign(path) and (log := read_log(path)):
        return of_summary(log, path)
    if _is_there(path / NAME):
        return load_run(path)
    return of_summary(read_summary(path), path)


def run_of(source: Source) -> Run:
    """A run that is given as a summary, or as `load_summary` takes it."""
    return of_summary(source) if isinstance(source, Summary) else load_summary(source)


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
    return [run for run in runs if getattr(run, trait)], [
        run for run in runs if not getattr(run, trait)
    ]


def _when(path: Path) -> str:
    """When a run began, as its name says it; of a log, when it was written."""
    if RUN_ID.fullmatch(path.stem):
        return path.stem.split("_", 2)[2]
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%d_%H%M%S")


def _is_foreign(path: Path) -> bool:
    """Whether a file or folder may be another tool's log: it is there, and koderz didn't make it."""
    return _is_there(path) and not RUN_ID.fullmatch(path.stem) and not _is_there(path / NAME)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for a file is not one
        return False


_MOST_CAUSES = 5
HEADER = (
    "",
    "Arm",
    "n",
    "Success",
    "95%",
    "Score",
    "Cost $",
    "Calls",
    "Depth",
    "Tokens",
    "Seconds",
)
_OPTIONAL = ("Seconds", "95%", "Depth", "Cost $")


def run_blocks(run: Run) -> Iterator[Block]:
    """The blocks of a run: its arms with their figures, and the causes of failures."""
    yield Heading(run.name)
    yield from map(Text, run.cautions)
    for name, arm in run.arms.items():
        yield Text(f"{run.model}, {name}" if len(run.arms) == 1 else name)
        yield figures_table(run, name)
        causes = sorted(arm.summary.causes.items(), key=lambda item: (-item[1], item[0]))[
            :_MOST_CAUSES
        ]
        if causes:
            yield Table(["Not passed", ""], [[cause, str(count)] for cause, count in causes])
    if run.breakdown:
        yield from breakdown_blocks(run.breakdown)


def figures_table(run: Run, arm: str) -> Table:
    """A table of one arm: success, the suite's measures, and costs."""
    figures = run.arms[arm].summary
    interval, method = figures.success_rate_interval, figures.success_rate_interval_method
    cells = {"Success rate": rate_of(figures)}
    if interval:
        cells[f"95% interval ({method})"] = f"{interval[0]:.1f}% to {interval[1]:.1f}%"
    else:
        cells["95% interval"] = method or ""
    if bounds := figures.success_rate_bounds:
        cells["Faults failed to passed"] = bounds_of(bounds)
    if figures.unread:
        cells["Unread"] = f"{figures.unread.rate:.1f}% ({figures.unread.count})"
    if len(figures.pass_at_k) > 1:
        cells |= {name: f"{100 * value:.1f}%" for name, value in [*figures.pass_at_k.items()][1:]}
        cells |= {name: each.text for name, each in [*figures.pass_hat_k.items()][1:]}
    for name, measure in declared([run]).items():
        if mean := figures.measures.get(name):
            cells[named_average(measure)] = shown(mean.mean, measure)
            if mean.interval and mean.interval_method:
                low, high = (shown(limit, measure) for limit in mean.interval)
                cells[f"95% interval ({name}, {mean.interval_method})"] = f"{low} to {high}"
    has_cost = "cost" not in untold(run.arms[arm].results)
    cells |= {
        "Total cost": f"${figures.total_cost:.4f}" if has_cost else "",
        "Avg cost": f"${figures.avg_cost:.5f}" if has_cost else "",
        "Avg iterations": "" if figures.avg_iterations is None else f"{figures.avg_iterations:.1f}",
        "Faults": str(run.faults_of(arm)),
    }
    if figures.reused_calls:
        cells |= {
            "Reused calls": f"{figures.reused_calls:,}",
            "Saved cost": f"${figures.saved_cost:.4f}",
        }
    return Table(list(cells), [list(cells.values())], optional=["Avg iterations", "Avg cost"])


def rate_of(figures: Figures) -> str:
    """A success rate with its counts."""
    judged = figures.total_problems
    return f"{figures.rate:.1f}% ({figures.successes}/{judged})" if judged else "no results"


def bounds_of(bounds: tuple[float, float] | None) -> str:
    """The success rates with all faults failed and all passed, as text for a table; empty without faults."""
    return "{:.1f}% to {:.1f}%".format(*bounds) if bounds else ""


def breakdown_blocks(slices: Sequence[Slice]) -> Iterator[Block]:
    """A legend, and the table of slices."""
    yield Text("By arm and task; cost, calls, depth, tokens and seconds of a task: median / p95")
    if clusters := slices[0].clusters:
        yield Text(
            f"Tasks are in {clusters} cluster{'s' * (clusters > 1)}, which the intervals take into account."
        )
    if any(one.success_rate_interval is None for one in slices):
        yield Text("Where all tasks of a row are of one cluster, there is no interval.")
    yield Table(HEADER, list(breakdown_rows(slices)), optional=_OPTIONAL)


def breakdown_rows(slices: Sequence[Slice]) -> Iterator[Sequence[str]]:
    """A row for each slice; the first of several arms has the slice's name."""
    for (by, value), same in groupby(slices, key=lambda one: (one.by, one.value)):
        for number, one in enumerate(same):
            yield (
                "" if number else f"{by} {value}".strip() or "all",
                one.arm,
                str(one.results),
                f"{one.success_rate:.0f}%",
                "{:.0f}-{:.0f}%".format(*one.success_rate_interval)
                if one.success_rate_interval
                else "-",
                f"{one.score.mean:.2f}" if one.score else "",
                _spread(one.cost, ".4f"),
                _spread(one.calls, "g"),
                _spread(one.depth, "g"),
                _spread(one.tokens, ",.0f"),
                _spread(one.seconds, ".1f"),
            )


def _spread(found: Spread, form: str) -> str:
    return f"{found.median:{form}} / {found.p95:{form}}"
