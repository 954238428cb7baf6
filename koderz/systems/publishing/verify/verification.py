"""The verification of one run, from its files to its findings."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from koderz.errors import KoderzError, Unreachable
from koderz.plans.ids import planned_ids
from koderz.plans.plan import Identity
from koderz.systems.publishing.share import SCHEMES, fetched, unpack_run
from koderz.systems.publishing.verify.conclusions import (
    check_calibrations,
    check_decisions,
    check_summary,
)
from koderz.systems.publishing.verify.files import ExperimentLines, RunFiles, check_sums
from koderz.systems.publishing.verify.findings import ON_TRUST, Verification, trusted_replies
from koderz.systems.publishing.verify.lines import (
    JournalCheck,
    PlannedExperiment,
    Sessions,
    check_missing_ends,
)
from koderz.systems.publishing.verify.redo import Redoing, open_offline
from koderz.systems.publishing.verify.subject import (
    RestoredRun,
    check_plan,
    foreign_parts,
    restored_run,
)
from koderz_tracker.index import experiment_number, without_caches
from koderz_tracker.journal import NAME
from koderz_tracker.records import Basis, Cell, Plan
from koderz_tracker.runs import find_run, refuse_log, require_own


class FoundRun(NamedTuple):
    """A run's folder, and its summary beside it if there is one."""

    folder: Path
    summary: Path | None


@contextmanager
def found_run(name: str, results: Path, *, max_size: int) -> Iterator[FoundRun]:
    """The run that a name, path or address stands for. `max_size`: the bytes that an archive may unpack to.

    Raises KoderzError where there is no run, or an archive that could write elsewhere or unpacks to more.
    """
    scheme, separator, rest = name.partition("://")
    if separator and scheme == "file":
        name = rest
    elif separator:
        if scheme not in SCHEMES:
            raise KoderzError(
                f"{name}: an address begins with {', '.join(f'{each}://' for each in SCHEMES)}"
            )
        with TemporaryDirectory(prefix="koderz-verify-") as temporary:
            yield _only_run(fetched(name, Path(temporary), max_size=max_size), name)
        return
    path = Path(name)
    if path.is_file() and path.suffix != ".json":
        with TemporaryDirectory(prefix="koderz-verify-") as temporary:
            unpack_run(path, Path(temporary), max_size=max_size)
            yield _only_run(Path(temporary), name)
        return
    folder = find_run(results, name)
    yield FoundRun(folder, _summary_of(folder))


def _only_run(place: Path, name: str) -> FoundRun:
    """The one run below a folder. Raises KoderzError where there is none, or several."""
    journals = sorted(path for path in place.rglob(NAME) if path.is_file())
    if len(journals) != 1:
        there = f"{len(journals)} runs" if journals else "no run"
        raise KoderzError(
            f"{name} holds {there}; give an archive or address of one, with its journal {NAME}"
        )
    folder = journals[0].parent
    return FoundRun(folder, _summary_of(folder))


def _summary_of(folder: Path) -> Path | None:
    beside = folder.with_name(f"{folder.name}.json")
    return beside if beside.is_file() else None


_MOST_PLANNED = 10_000_000  # experiments


async def verify_run(
    folder: Path,
    *,
    summary: Path | None = None,
    dataset: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[int, int], None] = lambda done, planned: None,  # noqa: ARG005
) -> Verification:
    """Verifies the run in `folder`, with the summary beside it if there is one.

    `dataset`: the file that has the tasks of a suite which the run read from a file of its own. `tell` is called
    with the experiments done so far and those planned. Raises JournalError where the folder holds no run, and
    KoderzError for a link in it.
    """
    began = time.monotonic()
    result = Verification(None)
    require_own(folder)
    check_sums(folder, summary, result)
    with without_caches():
        files = RunFiles(folder, result)
        result.run_id = files.plan.run_id
        if files.plan.planned > _MOST_PLANNED:
            raise KoderzError(
                f"{folder.name} plans {files.plan.planned:,} experiments; at most {_MOST_PLANNED:,} are verified"
            )
        refuse_log(files.plan)
        _check_name(folder, files.plan, result)
        if not check_plan(files.plan, result):
            return result
        restored = restored_run(files.plan, dataset, result)
        if restored is None:
            result.lacks("the plan, which can't be made anew without its suite")
        how = Sessions(files, result)
        if restored:
            files.open_private(restored.plan.privacy)
        await _experiments(files, restored, how, environ, tell)
        check_calibrations(files, result)
        if foreign_parts(files.plan):
            result.note("figures are as recorded")
        else:
            check_summary(folder, summary, result)
    result.seconds = time.monotonic() - began
    return result


async def _experiments(
    files: RunFiles,
    restored: RestoredRun | None,
    how: Sessions,
    environ: Mapping[str, str],
    tell: Callable[[int, int], None],
) -> None:
    """Checks each planned experiment, and whether there are others on record."""
    result, left = files.result, files.experiments()
    journal = JournalCheck(files.plan, how, result)

    def planned() -> Iterator[tuple[Identity | None, ExperimentLines]]:
        for done, (name, planned, identity) in enumerate(_planned(files.plan, restored)):
            number = experiment_number(name)
            left.discard(number)
            tell(done, files.plan.planned)
            place = f"{name} ({planned.task}, {planned.arm}{f', sample {planned.sample}' if planned.sample else ''})"
            found = files.lines_of(number, place)
            journal.check(place, found, planned)
            yield identity, found

    if restored is None:
        for _ in planned():
            pass
    else:
        await _redo(planned(), restored, how, environ, result)
    if left:
        result.differs(
            "plan",
            f"exp_{min(left):016x}",
            f"{len(left)} experiments on record that aren't planned",
            "none",
        )
    files.conclude()
    journal.conclude()
    check_decisions(files, restored.plan if restored else None, result)
    _say_trust(files.plan, journal, files, result)


async def _redo(
    experiments: Iterator[tuple[Identity | None, ExperimentLines]],
    restored: RestoredRun,
    how: Sessions,
    environ: Mapping[str, str],
    result: Verification,
) -> None:
    """Does the experiments anew, as many at once as there are judges for. Without a sandbox none is done anew."""
    try:
        async with open_offline(restored.plan, environ) as resources:
            redoing = Redoing(restored, resources, result, how.is_rescored)

            async def lane() -> None:
                for identity, found in experiments:
                    if identity:
                        await redoing.experiment(identity, found)

            async with asyncio.TaskGroup() as group:
                for _ in range(2 * restored.plan.settings.judge_count):
                    group.create_task(lane())
            await redoing.settle()
            check_missing_ends(redoing.missing_ends, how, result)
            if redoing.redacted:
                planned = restored.plan.record.planned
                result.gaps.append(
                    f"{redoing.redacted} of {planned} experiments hold texts that were redacted"
                )
    except Unreachable as error:
        result.lacks(f"verdicts: {error}")
        for _ in experiments:
            pass


def _planned(
    plan: Plan, restored: RestoredRun | None
) -> Iterator[tuple[str, PlannedExperiment, Identity | None]]:
    """The planned experiments: the id of each, what the plan says of it, and its identity if that can be had here."""
    arms = {arm.name: arm for arm in plan.arms}

    def named(task: str, arm: str, sample: int) -> PlannedExperiment:
        return PlannedExperiment(task, arms[arm].solver, arm, sample, plan.model_of(arm))

    if restored:
        for each in restored.plan.experiments():
            yield each.experiment_id, named(each.task.id, each.arm.name, each.sample), each
        return
    for name, task, arm, sample in planned_ids(plan):
        yield name, named(task, arm, sample), None


def _check_name(folder: Path, plan: Plan, result: Verification) -> None:
    if plan.run_id is None:
        return
    if folder.name != plan.run_id:
        result.note(f"its folder is called {folder.name}")
    stamp = plan.run_id.partition("_")[2].partition("_")[2]
    try:
        off = abs(
            (
                datetime.strptime(stamp, "%Y%m%d_%H%M%S") - datetime.fromisoformat(plan.time)
            ).total_seconds()
        )
    except ValueError:
        off = float("inf")
    if off > 60:
        result.differs("order", "run_id", plan.run_id, f"a plan of {plan.time}")


def _say_trust(plan: Plan, journal: JournalCheck, files: RunFiles, result: Verification) -> None:
    """Says what no record can show of this run: the sentences on the kinds of lines that it has."""
    if journal.models:
        result.trusts(trusted_replies(sorted(journal.models)))
        result.trusts("sampling, as far as it is what servers were sent")
    if plan.config.get("imported"):
        result.trusts("where the imported file came from")
    of_run = {
        type(line)
        for _, line in files.lines("resumed", "finished", "decision", "calibration", "batch")
    }
    of_plan = (Plan, Basis, *([Cell] if any(cell.names for cell in plan.cells or ()) else []))
    kinds: tuple[type[Any], ...] = (
        *of_plan,
        *sorted(journal.kinds | of_run, key=lambda kind: kind.kind),
    )
    for kind in kinds:
        for sentence in ON_TRUST.get(kind, {}).values():
            result.trusts(sentence)
