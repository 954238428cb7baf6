"""Where experiments run.

An engine is handed experiments, each with what is on record for it, and has them performed. Every reply and
verdict is durable in the engine's own store before the solver sees it; the driver alone writes the journal,
and each line goes into it once. An experiment whose worker died is put back with its recorded calls and
verdicts, and replays them, as in `resume`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from koderz.errors import KoderzError
from koderz.experiments.experiment import Ledger
from koderz.settings.registry import Registry
from koderz.settings.schema import Settings
from koderz.types import JUDGE

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

    def work(self) -> Iterator[PendingExperiment]:
        """What is left to be performed, drawn one by one; ends early where no more is to be begun."""

    async def settle(self, outcome: ExperimentOutcome) -> None:
        """Takes note of how an experiment ended."""

    def stop(self, status: str, reason: str) -> None:
        """Hands out no more work, and ends the session with this status when the engine has come to an end."""


class Engine(Protocol):
    """Somewhere that experiments run. Made by an opener, see `ENGINES`."""

    name: str
    isolation: str  # what contains candidates there
    outlives: bool  # whether what it was handed goes on there without this machine
    notices: Sequence[str]  # what users should hear once; grows

    @property
    def throttle(self) -> Sequence[Throttle]:
        """How hard providers are asked at the moment."""

    async def check(self) -> dict[str, Any]:
        """What goes into the run's record about models and machines.

        Asked before anything is created. Raises Unreachable where the run could not begin, KoderzError where
        the plan can't be carried out there.
        """

    async def run(self, driver: Driver) -> None:
        """Performs what `driver.work()` yields and settles each. What goes wrong in one is that one's fault."""


Opener = Callable[["Plan", Mapping[str, str]], AbstractAsyncContextManager[Engine]]
"""Opens an engine for a plan, in an environment of variables. It may have `traits`, see `Traits`."""


class RemoteView(Protocol):
    """A run as an engine elsewhere has it; looking changes nothing."""

    def new_lines(self) -> AsyncIterator[bytes]:
        """Journal lines that are stored there since the last look. Raises Unreachable."""

    async def page(self, experiment_id: str) -> str:
        """Where people can look at an experiment; empty for nowhere."""

    async def is_busy(self) -> bool:
        """Whether anything runs or waits there."""


class StoredRun(Protocol):
    """What an engine elsewhere keeps of a run, whoever began it."""

    async def experiments(self) -> set[str]:
        """Those that it has lines of."""

    async def lines(self, experiment_id: str) -> list[bytes]:
        """All journal lines of an experiment."""


class Traits(NamedTuple):
    """What an engine says of itself before it is opened: the attribute `traits` of its opener."""

    can: frozenset[str] = frozenset({JUDGE})  # which needs of tasks it meets; `memory`: the store of this machine
    settle: Callable[[Settings, Container[str]], Settings] = lambda settings, _: settings
    """The settings as they are there, where the user has given those that are named. Raises KoderzError."""
    view: Callable[[Path, Mapping[str, Any], Mapping[str, str]], RemoteView] | None = None
    """Looks at a run there, from the run's folder, its config and variables of the environment."""
    stored: Callable[[str, Mapping[str, str]], Awaitable[tuple[bytes, StoredRun] | None]] | None = None
    """The plan (see `portable.pack_plan`) and the store of the run of an id; None where it isn't there."""
    carries: frozenset[str] = frozenset()  # needs besides `can` that it meets for suites which are `portable`


ENGINES = Registry(
    "engine",
    "engines",
    {"local": "koderz.engines.local:open_local", "modal": "koderz.modal.engine:open_modal"},
    {"engine.modal": "koderz.modal.names:ModalOptions"},
)
"""Openers, see above."""


def open_engine(plan: Plan, environ: Mapping[str, str]) -> AbstractAsyncContextManager[Engine]:
    """The engine that a plan names. KoderzError for an unknown one."""
    return _opener(plan.settings.engine)(plan, environ)


def traits_of(name: str) -> Traits:
    """What the engine of a name says of itself. KoderzError for an unknown one."""
    return getattr(_opener(name), "traits", Traits())


async def stored_run(run_id: str, environ: Mapping[str, str]) -> tuple[bytes, StoredRun] | None:
    """The plan and the store of a run that some engine elsewhere keeps; None where none does."""
    for name in ENGINES.names():
        if (stored := traits_of(name).stored) and (found := await stored(run_id, environ)):
            return found
    return None


def require_able(plan: Plan) -> None:
    """KoderzError where a task needs what the plan's engine hasn't got."""
    from koderz.plans.plan import needs_of  # which no help needs

    name = plan.settings.engine
    lacking = needs_of(plan) - traits_of(name).can - carried(plan)
    for need in sorted(lacking):
        task = next(task.id for task, _, _ in plan.cells() if need in task.needs)
        raise KoderzError(f"{task} needs {need}, which the engine {name} hasn't got; choose another with --engine")


def carried(plan: Plan) -> frozenset[str]:
    """The plan's needs that its suite meets in sandboxes of its own, wherever the engine has it loaded."""
    from koderz.plans.plan import needs_of

    return needs_of(plan) & traits_of(plan.settings.engine).carries & plan.suite.portable


def _opener(name: str) -> Opener:
    return cast("Opener", ENGINES.find(name))
