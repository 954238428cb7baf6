"""The tools of `koderz mcp serve --allow-runs`, which spend under its cap.

A run is carried out by a process of its own, which outlives the server. What it may spend is taken from the allowance
before it begins, and is its --max-cost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType

from koderz.errors import KoderzError
from koderz.systems.memory.allowance import Allowance, cost_so_far
from koderz.systems.memory.mcp_tools import Desk, NewRun, Plan, RunName, RunTool, planned
from koderz_tracker.errors import CAUSES
from koderz_tracker.journal import NAME
from koderz_tracker.runs import is_locked, read_plan

MaxCost = Annotated[
    float,
    Meta(
        ge=0,
        description="US dollars that this may cost at most, if less than what is left of the allowance.",
    ),
]
_LOOK = 0.05  # seconds between looks at whether a run has begun


class SpendingTool(RunTool, frozen=True):
    """A tool that begins runs."""

    reads_only: ClassVar[bool] = False


class Run(Plan, frozen=True, kw_only=True):
    """Begin a run; answers with its id at once. Follow it with show_run. It can't cost more than the allowance has."""

    reads_only: ClassVar[bool] = False
    max_cost: MaxCost | UnsetType = UNSET

    async def work(self, desk: Desk) -> Any:
        return await _begin(self, desk, self.max_cost)


class Decide(NewRun, frozen=True, kw_only=True):
    """Compare model B with model A on the same tasks, and stop once it is decided; answers with the run's id at once.
    The mode is zero-shot unless one is given."""

    reads_only: ClassVar[bool] = False
    a: Annotated[str, Meta(description="The model that B is compared with.")]
    b: str
    max_cost: MaxCost | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        from koderz.settings.schema import FIRST_ARM

        if self.a == self.b:
            raise KoderzError(f"A and B are both {self.a}; name two models")
        usual = {} if self.solver or self.mode else {"mode": "zero-shot"}
        models = {"local_model": self.a, "models": (self.a, self.b), "until_decided": FIRST_ARM}
        return {**usual, **NewRun.given(self), **models}

    async def work(self, desk: Desk) -> Any:
        return await _begin(self, desk, self.max_cost)


class Resume(SpendingTool, frozen=True):
    """Go on with a run where it stopped; nothing recorded is asked or paid again. Answers with its id at once."""

    run: RunName
    max_cost: MaxCost | UnsetType = UNSET

    async def work(self, desk: Desk) -> Any:
        return await _take_up(desk, self.run, self.max_cost, "resume")


class Retry(SpendingTool, frozen=True):
    """Run the experiments of a run again that ended in a fault: a server or key that was gone, not the model's doing.
    Answers with the run's id at once."""

    run: RunName
    causes: (
        Annotated[list[str], Meta(description=f"Only faults of these: {', '.join(CAUSES)}.")]
        | UnsetType
    ) = UNSET
    max_cost: MaxCost | UnsetType = UNSET

    async def work(self, desk: Desk) -> Any:
        causes = [word for cause in self.causes or () for word in ("--cause", cause)]
        return await _take_up(desk, self.run, self.max_cost, "retry", *causes)


class Stop(SpendingTool, frozen=True):
    """End a run that was begun here, as Ctrl-C does: what is recorded stays, and resume goes on with it."""

    run: RunName

    async def work(self, desk: Desk) -> Any:
        folder = desk.folder(self.run)
        pid = _allowance(desk).holder(folder.name)
        if pid is None or pid == os.getpid() or not is_locked(folder):
            raise KoderzError(
                f"{folder.name} isn't being worked on by a process that was begun here"
            )
        os.kill(pid, signal.SIGINT)
        return {"run_id": folder.name, "stopping": True}


def _allowance(desk: Desk) -> Allowance:
    if desk.allowance is None:
        raise KoderzError(
            "runs aren't allowed here; a person can: koderz mcp serve --allow-runs --max-cost DOLLARS"
        )
    return desk.allowance


async def _begin(new: NewRun, desk: Desk, most: float | UnsetType) -> Any:
    """Begins a new run with what it may cost at most, which is taken from the allowance first."""
    from koderz.analysis.forecast import forecast_of
    from koderz.runs.session import lay_down

    allowance = _allowance(desk)
    # with a cap, so that its prices have to be known
    draft, _ = await planned(new, desk, max_cost=0.0)
    forecast = await asyncio.to_thread(forecast_of, draft, desk.environ)
    # Without a price it is refused as soon as it is laid down.
    least, likely = forecast.estimate.cost or (0.0, allowance.cap)
    left = max(0.0, allowance.left())
    if likely > 0 and left <= (least if most is UNSET else 0):
        raise KoderzError(
            f"${left:.4f} is left of the allowance of ${allowance.cap:g}, and this costs ${least:.4f} and more"
        )
    wanted = min(likely, left, likely if most is UNSET else most)
    plan, notes = await planned(new, desk, max_cost=wanted)
    _refuse_elsewhere(plan.record)
    held = allowance.hold(plan.name, wanted)
    try:
        if held < wanted:
            raise KoderzError(f"only ${held:.4f} is left of the allowance by now; ask again")
        await lay_down([plan], desk.environ)
        await asyncio.to_thread(_start, desk, plan.settings.results / plan.name, "resume", held)
    except KoderzError:  # not where the client called it off: the run may have begun
        allowance.give_back(plan.name)
        raise
    return {
        "run_id": plan.name,
        "max_cost": held,
        "allowance_left": allowance.left(),
        "notes": notes,
    }


async def _take_up(desk: Desk, name: str, most: float | UnsetType, how: str, *more: str) -> Any:
    """Goes on with a run, which may then cost as much more as the allowance has, or as the client said."""
    allowance, folder = _allowance(desk), desk.folder(name)
    record = read_plan(folder)
    _refuse_elsewhere(record)
    if len(record.together) > 1:
        raise KoderzError(
            f"{folder.name} goes on with the runs that were planned together with it: koderz resume"
        )
    if desk.is_worked_on(folder):
        raise KoderzError(
            f"{folder.name} is being worked on; follow it with show_run, or end it with stop"
        )
    before = await asyncio.to_thread(cost_so_far, folder)
    held = allowance.hold(folder.name, allowance.cap if most is UNSET else most, before)
    try:
        await asyncio.to_thread(_start, desk, folder, how, before + held, *more)
    except KoderzError:  # not where the client called it off: the run may have begun
        allowance.give_back(folder.name)
        raise
    return {"run_id": folder.name, "max_cost": held, "allowance_left": allowance.left()}


def _refuse_elsewhere(record: Any) -> None:
    """Refuses plans that spend more than calls cost: machines are paid by time, which no cap counts."""
    from koderz.engines.sources import schema_of_plan
    from koderz.settings.trust import SPENDS, risks_of

    risks = risks_of(
        schema_of_plan(record).fields, {**record.config, "results": None}, lambda *_: False
    )
    if paid := [name for name, risk in risks.items() if risk == SPENDS]:
        raise KoderzError(
            f"{', '.join(paid)}: it spends what --max-cost doesn't count; begin it by koderz benchmark"
        )


def _start(desk: Desk, folder: Path, how: str, cap: float, *more: str) -> None:
    """Starts a process for the run, and returns once it works on it. Raises KoderzError if it refuses."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "koderz",
        "benchmark",
        how,
        folder.name,
        "--results",
        str(folder.parent),
    ]
    command += ["--max-cost", repr(cap), "--quiet", *more]
    journal, was = folder / NAME, (folder / NAME).stat().st_size
    with tempfile.TemporaryFile() as said:
        streams: list[Any] = [
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)
        ]
        streams.append((os.POSIX_SPAWN_DUP2, said.fileno(), 2))
        # In a session of its own, so that Ctrl-C at the server is none of its business, and the server's end neither.
        pid = os.posix_spawn(
            sys.executable, command, dict(desk.environ), file_actions=streams, setsid=True
        )
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and journal.stat().st_size == was:
            time.sleep(_LOOK)
        if (
            ended[0]
            and os.waitstatus_to_exitcode(ended[1]) in (2, 4)
            and journal.stat().st_size == was
        ):
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise KoderzError(
                lines[-1].removeprefix("koderz: ") if lines else f"{how} of {folder.name} failed"
            )
    _allowance(desk).hand_over(folder.name, pid)


SPENDING: tuple[type[RunTool], ...] = (Run, Resume, Retry, Decide, Stop)
