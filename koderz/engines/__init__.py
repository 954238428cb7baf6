"""Where experiments run.

An engine is handed experiments, each with what is on record for it, and has them performed. Every reply and
verdict is durable in the engine's own store before the solver sees it; the driver alone writes the journal,
and each line goes into it once. An experiment whose worker died is put back with its recorded calls and
verdicts, and replays them, as in `resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from koderz.experiments.experiment import Ledger
from tracker.registry import find

if TYPE_CHECKING:
    from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
    from koderz.experiments.replay import Replaying
    from koderz.models.limiter import Throttle
    from koderz.plans.plan import Plan


class Driver(Ledger, Protocol):
    """Whoever carries out a plan: hands out its experiments and keeps its journal."""

    plan: Plan
    how: Replaying
    spent: float  # US dollars that the run has cost already
    detach: bool  # whether to leave what was submitted to itself, where the engine can

    @property
    def stopping(self) -> str:
        """Why no more experiments are begun; empty while they are."""
        ...

    def work(self) -> Iterator[PendingExperiment]:
        """What is left to be performed, drawn one by one; ends early where no more is to be begun."""
        ...

    async def settle(self, outcome: ExperimentOutcome) -> None:
        """Takes note of how an experiment ended."""
        ...

    def stop(self, status: str, reason: str) -> None:
        """Hands out no more work, and ends the session with this status when the engine has come to an end."""
        ...


class Engine(Protocol):
    """Somewhere that experiments run. Made by an opener, see `ENGINES`."""

    name: str
    isolation: str  # what contains candidates there
    outlives: bool  # whether what it was handed goes on there without this machine
    notices: Sequence[str]  # what users should hear once; grows

    @property
    def throttle(self) -> Sequence[Throttle]:
        """How hard providers are asked at the moment."""
        ...

    async def check(self) -> dict[str, Any]:
        """What goes into the run's record about models and machines.

        Asked before anything is created. Raises Unreachable where the run could not begin, KoderzError where
        the plan can't be carried out there.
        """
        ...

    async def run(self, driver: Driver) -> None:
        """Performs what `driver.work()` yields and settles each. What goes wrong in one is that one's fault."""
        ...


Opener = Callable[["Plan", Mapping[str, str]], AbstractAsyncContextManager[Engine]]
"""Opens an engine for a plan, in an environment of variables."""

ENGINES: Mapping[str, str] = {
    "local": "koderz.engines.local:open_local",
    "modal": "koderz.modal.engine:open_modal",
}
"""Name → `module:opener`. Other packages add theirs by the entry-point group `koderz.engines`."""


def open_engine(plan: Plan, environ: Mapping[str, str]) -> AbstractAsyncContextManager[Engine]:
    """The engine that a plan names. KoderzError for an unknown one."""
    return cast("Opener", find("engine", plan.settings.engine, ENGINES, "koderz.engines"))(plan, environ)
