"""Reuse: the replies of other runs that a run takes, and what of its calls is on record before it begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from koderz.engines.resources import places_of
from koderz.errors import Fault, KoderzError, Unreachable
from koderz.experiments.calls import Caller
from koderz.experiments.recording import Ask, checked_messages, refers
from koderz.plans.plan import Identity, Plan
from koderz.solvers.definition import NEEDED
from koderz.types import Message
from koderz_tracker.journal import NAME
from koderz_tracker.recorded import RecordedReplies
from koderz_tracker.runs import find_run, run_folders

_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


def recorded_replies(
    plan: Plan, say: Callable[[str], object] = lambda _: None
) -> RecordedReplies | None:
    """The replies that a run may take, without its own; None for a run that takes none.

    `say` is told of what can't be taken, such as a folder that was deleted since the run was planned.
    """
    settings = plan.settings
    if not settings.reuse:
        return None
    found = run_folders(settings.results)
    for source in settings.reuse_from:
        try:
            found += runs_named(source, settings.results)
        except KoderzError as error:
            say(f"reuse: {error}")
    own = (settings.results / plan.name).resolve()
    others = {run.resolve(): run for run in found}
    return RecordedReplies((run for path, run in others.items() if path != own), plan.privacy, say)


def runs_named(source: str, results: Path) -> list[Path]:
    """The run of this name, or the runs in a results folder. Raises KoderzError if there are none."""
    folder = Path(source)
    if not folder.is_dir() or (folder / NAME).exists():
        return [find_run(results, source)]
    if runs := run_folders(folder):
        return runs
    raise KoderzError(f"--reuse-from {source}: no run lies in it; name a run, or a results folder")


@dataclass(frozen=True, slots=True)
class OnRecord:
    """The calls of a plan that are on record: the first of each experiment, which alone is known beforehand."""

    experiments: int
    known: int  # experiments whose first call is known
    found: int  # experiments whose first call is on record
    runs: int  # that made these calls
    oldest: str  # when the oldest of them was made
    saved: float  # US dollars that they cost
    is_all: bool  # whether no experiment makes another call
    looked_through: int  # calls on record

    @property
    def line(self) -> str:
        """The line on it that is shown before a run begins."""
        if not self.known:
            return f"reuse: calls are looked for as they are made, among {self.looked_through:,} on record"
        what = "calls" if self.is_all else "first calls"
        if not self.found:
            return f"reuse: none of {self.experiments:,} {what} is among the {self.looked_through:,} on record"
        runs = f"{self.runs} run{'s' * (self.runs > 1)}, the oldest {_age(self.oldest)}"
        head = f"reuse: {self.found:,} of {self.experiments:,} {what} are on record ({runs})"
        if not self.is_all:
            return f"{head}, which saves {_dollars(self.saved)}; later calls are looked for as they are made"
        left = self.experiments - self.found
        full = self.saved * self.experiments / self.found
        return (
            f"{head}; {left:,} to make, {_dollars(full - self.saved)} instead of {_dollars(full)}"
        )


def on_record(
    plan: Plan, replies: RecordedReplies, environ: Mapping[str, str] = os.environ
) -> OnRecord:
    """Looks for the first call of each experiment, as its solver would make it; nothing is asked or taken."""
    try:
        places = places_of(plan, environ, plan.record.environment.get("models"))
    except Unreachable:  # which whoever begins the run is told
        places = {}
    caller = Caller(plan.settings, {}, spent=0.0, places=places)
    times: list[str] = []
    runs: set[str] = set()
    saved, experiments, known, is_all = 0.0, 0, 0, True
    for identity in plan.experiments():
        experiments += 1
        is_all = is_all and identity.arm.solver.asks_once and len(identity.arm.models) == 1
        ask, digest = first_ask(plan, identity), ""
        if ask and not refers(ask.messages):
            with suppress(Fault):  # which its experiment will end in
                digest = caller.digest(ask, identity)
        known += bool(digest)
        call = replies.take(digest) if digest else None
        if call and call.reused:
            times.append(call.reused.time)
            runs.add(call.reused.run_id)
            saved += call.cost_saved
    replies.give_back()
    return OnRecord(
        experiments,
        known,
        len(times),
        len(runs),
        min(times, default=""),
        saved,
        is_all,
        replies.calls,
    )


class _Asked(BaseException):
    """Raised in place of an answer, out of reach of a solver's own handlers."""


class _Probe:
    """Handles of which the first to be used ends the solver. One that asks has its request kept."""

    def __init__(self) -> None:
        self.ask_made: Ask | None = None

    async def ask(
        self,
        messages: list[Message],
        model: str | None = None,
        purpose: str = "attempt",
        *,
        depth: int = 0,
        parent: int | None = None,
        known_by: str = "",
        **sampling: Any,
    ) -> None:
        self.ask_made = Ask(
            checked_messages(messages), model, purpose, sampling, depth, parent, known_by
        )
        raise _Asked

    async def judge(self, *_: Any, **__: Any) -> None:
        raise _Asked

    grade = once = recall = judge


def first_ask(plan: Plan, identity: Identity) -> Ask | None:
    """The first call that one of koderz' own solvers makes of a task; None where that isn't known beforehand.

    A user's own isn't run for this, and neither is one that needs something opened first.
    """
    solver, probe = identity.arm.solver, _Probe()
    if (
        solver.is_foreign
        or solver.restarts
        or NEEDED & solver.wants & identity.task.needs
        or "rng" in solver.wants
    ):
        return None
    solving = solver.run(
        probe,
        task=identity.task,
        prompts=plan.prompts,
        recall=probe.recall,
        models=identity.arm.models,
    )
    try:
        solving.send(None)
    except (_Asked, StopIteration):
        return probe.ask_made
    except Exception:  # noqa: BLE001 it fails when it runs, too, and then says so
        return None
    finally:
        solving.close()
    return None


def _age(time: str) -> str:
    try:
        seconds = (datetime.now() - datetime.fromisoformat(time)).total_seconds()
    except (TypeError, ValueError):  # another program wrote it
        return f"of {time:.40}"
    for size, unit in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"of {count} {unit}{'s' * (count > 1)} ago"
    return "less than a minute ago"


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 0.01 or not value else f"${value:.4f}"
