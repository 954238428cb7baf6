"""Sinks of a run and its documents, fed while it goes on, and brought up to date when it is over.

Files that follow from the journal, which are the summary, the documents and what the plan's own sinks write, are left
to no other process: whoever ends a session writes them.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from koderz.errors import KoderzError, Unreachable
from koderz.settings.installation import dependency_command
from koderz.settings.schema import Settings
from koderz.settings.systems import required
from koderz.settings.trust import is_trusted
from koderz_tracker.errors import StorageError
from koderz_tracker.files import before_resuming
from koderz_tracker.records import Experiment, Fault, Record
from koderz_tracker.runs import find_run, is_locked, plan_and_line, run_folders
from koderz_tracker.scrubber import secret_variables
from koderz_tracker.sinks import JSON, KNOWN, SinkDown
from koderz_tracker.sinks.feeder import HUNG, Job, Projection, SinkBusy, is_level, start_again
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.sinks.process import SinkProcess, Submission, Watch
from koderz_tracker.sinks.standing import choose_sinks, mark_up_to_date, standing_of
from koderz_tracker.summary import Summary

if TYPE_CHECKING:
    from koderz.plans.plan import Plan


QUICK = ("memory",)
"""The sinks that a command always waits for, besides the summary, since their target is in the results folder."""

ANOTHER = "another koderz process works on this run"
# seconds between two looks of a plan's own sinks, or times what a look takes
_FOLLOW_EVERY, _PAUSES = 1.0, 20
# seconds that the process has which has fed a run a moment ago, and looks whether it goes on
_TO_LET_GO = 10.0


def left_out(names: Iterable[str], say: Callable[[str], None], *, named: bool) -> tuple[str, ...]:
    """The sinks whose library isn't installed, after saying so. Raises Unreachable if they were named."""
    if "mlflow" not in names or find_spec("mlflow") is not None:
        return ()
    command = dependency_command("mlflow")
    if named:
        raise Unreachable(f"the sink mlflow needs MLflow, which isn't installed; run: {command}")
    say(
        f"MLflow isn't installed, so nothing is recorded there; to have it: {command}; then: koderz sync --sink mlflow"
    )
    return ("mlflow",)


def start_sinks(plan: Plan, folder: Path, environ: Mapping[str, str]) -> Submission | None:
    """Starts feeding the chosen sinks from the journal in `folder`, except files that koderz writes itself.

    None where there are none; a single experiment has none.
    """
    if plan.record.run_id is None:
        return None
    settings, own = plan.settings, own_sinks(plan)
    chosen = tuple(dict.fromkeys((*settings.chosen_sinks, *own)))
    choose_sinks(folder, chosen, KNOWN)
    jobs = _jobs(folder, [name for name in chosen if name not in own], settings)
    process = SinkProcess(folder.parent, environ, secret_variables(plan.record))
    for name in own:
        process.queue.drop(folder.name, name)
    return Submission(process, folder, jobs) if jobs else None


def own_sinks(plan: Plan) -> list[str]:
    """The sinks of a run's suite and solvers, which are files."""
    if plan.record.run_id is None:
        return []
    return [name for name in plan.own_sinks if name not in plan.settings.no_sinks]


@contextmanager
def following_sinks(
    plan: Plan, folder: Path, environ: Mapping[str, str]
) -> Iterator[Callable[[Record], None]]:
    """A function to call with each record of a run, which now and then brings the plan's own sinks up to date.

    What goes wrong is left to `write_own`, which says so once everything is on record.
    """
    held: dict[str, Projection] = {}
    next_at = 0.0

    def take(_: Record) -> None:
        nonlocal next_at
        began = time.monotonic()
        if began < next_at:
            return
        for name in own_sinks(plan):
            with suppress(KoderzError):
                projection = held.pop(name, None) or _opened(plan, folder, name, environ)
                with ExitStack() as stack:
                    stack.callback(projection.close)
                    projection.catch_up()
                    stack.pop_all()
                held[name] = projection
        now = time.monotonic()
        next_at = now + max(_FOLLOW_EVERY, _PAUSES * (now - began))

    try:
        yield take
    finally:
        for projection in held.values():
            projection.close()


def write_own(plan: Plan, folder: Path, environ: Mapping[str, str]) -> None:
    """Brings a plan's own sinks up to date after a session. Raises SinkDown if one can't be written."""
    for name in own_sinks(plan):
        try:
            projection = _opened(plan, folder, name, environ, _TO_LET_GO)
            with closing(projection):
                projection.catch_up()
        except KoderzError as error:
            raise SinkDown(left_behind(name, str(error), folder.name)) from None


def _opened(
    plan: Plan, folder: Path, name: str, environ: Mapping[str, str], patience: float = 0.0
) -> Projection:
    projection = Projection(folder, name, _options_of(plan.settings), environ)
    projection.open(patience)
    return projection


def left_behind(name: str, reason: str, *runs: str) -> str:
    """The message about a sink that was given up."""
    what, command = (
        ("this run", f"koderz sync {runs[0]}")
        if len(runs) == 1
        else (f"{len(runs)} runs", "koderz sync")
    )
    return f"the sink {name} lacks some of {what} ({reason}); bring it up to date with: {command}"


def write_results(folder: Path, environ: Mapping[str, str] = os.environ) -> tuple[Path, Summary]:
    """Writes a run's summary, which is the sink `json`, and its documents. Raises StorageError if the disk refuses."""
    path, summary = write_summary(folder)
    write_documents(folder, summary, environ)
    mark_up_to_date(folder, JSON)
    return path, summary


@dataclass(frozen=True, slots=True)
class Backlog:
    """A run, and the sinks that have to be brought up to date with it."""

    folder: Path
    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of syncing one sink of one run."""

    run_id: str
    sink: str
    state: str  # "up to date" or "behind"
    reason: str = ""  # why it is behind; what a sink refuses for good that is up to date


@dataclass(frozen=True, slots=True)
class Choice:
    """The sinks and runs to be synced."""

    # in whose results folder; its sinks are on where a run doesn't say otherwise
    settings: Settings
    runs: Sequence[str] = ()  # as users name them; none: all that lack something
    named: bool = False  # whether the sinks were asked for, so that a run has no say
    refused: Sequence[str] = ()  # left as they are, whatever a run says
    rebuild: bool = False
    patient: bool = False  # try again where a sink is down


def choose_work(choice: Choice) -> list[Backlog]:
    """The work to do, oldest run first. Raises KoderzError for a run that doesn't exist.

    A run that another process works on is left out unless it was named: that process feeds its sinks.
    """
    results = choice.settings.results
    folders = [find_run(results, name) for name in choice.runs] or run_folders(results)
    work = [Backlog(folder, _lacking(folder, choice)) for folder in dict.fromkeys(folders)]
    return [each for each in work if each.sinks and (choice.runs or not is_locked(each.folder))]


def _lacking(folder: Path, choice: Choice) -> tuple[str, ...]:
    """The sinks that aren't up to date, or all if they are to be made anew; never one that is turned off."""
    standings, options = standing_of(folder), _options_of(choice.settings)
    on = [name for name, standing in standings.items() if standing.state != "off"]
    lacking = []
    for name in dict.fromkeys((*choice.settings.chosen_sinks, *(() if choice.named else on))):
        standing = standings.get(name)
        if name in choice.refused or (standing and standing.state == "off" and not choice.named):
            continue
        is_wanted = choice.rebuild or not is_level(standing, name, options)
        # documents shared with other runs count only if the run is named
        if name == JSON and not is_wanted:
            is_wanted = not folder.with_suffix(".json").exists() or lacks_documents(
                folder, shared=bool(choice.runs)
            )
        if is_wanted:
            lacking.append(name)
    return tuple(lacking)


def sync_runs(
    work: Sequence[Backlog], choice: Choice, showing: Callable[[str], AbstractContextManager[Watch]]
) -> Iterator[Synced]:
    """Does the work run by run and yields the result for each sink; a sink that hangs is not tried again.

    `showing` is called with each run's id for what shows its progress. Raises KoderzError where a sink that is
    to be made anew is in use.
    """
    if choice.rebuild:
        # Every position is reset before a target is made anew, so that a crash in between loses nothing.
        for each in work:
            for name in each.sinks:
                try:
                    if name != JSON:
                        start_again(each.folder, name, _TO_LET_GO)
                except SinkBusy as error:
                    raise KoderzError(
                        f"{each.folder.name}, sink {name}: {error}; wait for it to end"
                    ) from None
    renew = (
        {name for each in work for name in each.sinks}
        if choice.rebuild and not choice.runs
        else set()
    )
    hopeless: dict[str, str] = {}
    process_of = functools.cache(lambda results: SinkProcess(results, os.environ))
    for each in work:
        yield from _summary_of(each)
        hopeful = [name for name in each.sinks if name not in hopeless]
        jobs = _jobs(each.folder, hopeful, choice.settings, patient=choice.patient, renew=renew)
        behind: Mapping[str, str] = {}
        notes: Mapping[str, str] = {}
        if jobs:
            submission = Submission(process_of(each.folder.parent), each.folder, jobs)
            with showing(each.folder.name) as watch:
                behind = submission.wait(watch)
            notes = submission.notes()
        behind = {**hopeless, **behind}
        hopeless |= {
            name: why for name, why in behind.items() if choice.rebuild or why.startswith(HUNG)
        }
        renew -= {job.sink for job in jobs}
        for name in (name for name in each.sinks if name != JSON):
            state, reason = (
                ("behind", behind[name]) if name in behind else ("up to date", notes.get(name, ""))
            )
            yield Synced(each.folder.name, name, state, reason)


def leave_runs(work: Sequence[Backlog], choice: Choice) -> list[Submission]:
    """Leaves the work to the background process, except the summary files. Raises KoderzError if one of these fails."""
    submissions = []
    for each in work:
        for synced in _summary_of(each):
            if synced.reason:
                raise KoderzError(synced.reason)
        if jobs := _jobs(each.folder, each.sinks, choice.settings, patient=choice.patient):
            submissions.append(
                Submission(SinkProcess(each.folder.parent, os.environ), each.folder, jobs)
            )
    return submissions


def _jobs(
    folder: Path,
    sinks: Sequence[str],
    settings: Settings,
    *,
    patient: bool = True,
    renew: Collection[str] = (),
) -> list[Job]:
    run, options, patience = folder.name, _options_of(settings), settings.sink_patience
    return [
        Job(
            run=run,
            sink=name,
            options=options,
            patience=patience,
            patient=patient,
            renew=name in renew,
        )
        for name in sinks
        if name != JSON
    ]


def _options_of(settings: Settings) -> dict[str, object]:
    """The options that sinks receive from the settings."""
    return {
        "mlflow_detail": settings.mlflow_detail,
        "mlflow_experiment": settings.mlflow_experiment,
    }


def _summary_of(work: Backlog) -> Iterator[Synced]:
    if JSON not in work.sinks:
        return
    reason = ANOTHER if is_locked(work.folder) else ""
    try:
        if not reason:
            write_results(work.folder)
    except KoderzError as error:
        reason = str(error)
    yield Synced(work.folder.name, JSON, "behind" if reason else "up to date", reason)


class Document(Protocol):
    """Some files of a run. Raises OSError for whatever goes wrong."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The documents of the run in `folder`; `about` holds their folder (`output`), names (`files`), and more.

        Where it says `is_own`, no other run writes these files.
        """

    def take(self, outcome: Experiment | Fault) -> None:
        """Takes in the end of an experiment while the run goes on."""

    def write(self, summary: Summary) -> None:
        """Writes all files, each whole."""


def documented(plan: Plan, name: str, about: Mapping[str, Any]) -> Plan:
    """The plan with one more document, of that name."""
    documents = {**plan.record.basis.documents, name: about}
    return plan.having(details=plan.record.details | {"documents": documents})


def following(folder: Path, environ: Mapping[str, str] = os.environ) -> Callable[[Record], None]:
    """A function to call with each record of a run, which keeps the run's documents up to date.

    What goes wrong is left to `write_documents`, which says so once everything is on record.
    """
    documents = _documents(folder, environ)

    def take(record: Record) -> None:
        if isinstance(record, Experiment | Fault):
            for document, _ in documents:
                with suppress(Exception):
                    document.take(record)

    return take


def write_documents(
    folder: Path, summary: Summary, environ: Mapping[str, str] = os.environ
) -> None:
    """Writes the documents that the plan of the run in `folder` names; none if the run was begun elsewhere.

    Raises StorageError where the disk refuses.
    """
    for document, about in _documents(folder, environ):
        try:
            document.write(summary)
        except OSError as error:
            raise StorageError(
                f"the files in {about['output']} can't be written ({error.strerror}); "
                f"{before_resuming(error)}koderz benchmark resume {folder.name}"
            ) from None


def lacks_documents(
    folder: Path, environ: Mapping[str, str] = os.environ, *, shared: bool = True
) -> bool:
    """Whether a document is missing. With `shared`, documents that other runs write into count too."""
    found = [about for _, about in _documents(folder, environ) if shared or about.get("is_own")]
    return any(
        not Path(about["output"], file).exists() for about in found for file in about["files"]
    )


def _documents(
    folder: Path, environ: Mapping[str, str]
) -> list[tuple[Document, Mapping[str, Any]]]:
    """The documents of a plan, each with its entry under `details.documents`."""
    plan, line = plan_and_line(folder)
    found = plan.basis.documents
    if not found or not is_trusted(line, environ):
        return []
    kinds = {name: cast("type[Document]", required("documents", name)) for name in found}
    return [(kinds[name](folder, about), about) for name, about in found.items()]
