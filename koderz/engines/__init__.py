"""Where experiments run.

An engine is handed experiments, each with what is on record for it, and has them performed. Every reply and
verdict is durable in the engine's own store before the solver sees it; the driver alone writes the journal,
and each line goes into it once. An experiment whose worker died is put back with its recorded calls and
verdicts, and replays them, as in `resume`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from koderz.errors import KoderzError
from koderz.experiments.experiment import Ledger
from koderz.settings.registry import Registry
from koderz.settings.schema import Settings
from koderz.settings.systems import Optioned
from koderz.types import JUDGE
from koderz_tracker.registry import Extensible

if TYPE_CHECKING:
    from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
    from koderz.experiments.replay import Replaying
    from koderz.models.limiter import Throttle
    from koderz.plans.plan import Plan
    from koderz_tracker.recorded import RecordedReplies


class Driver(Ledger, Protocol):
    """Whoever carries out a plan: hands out its experiments and keeps its journal."""

    plan: Plan
    how: Replaying
    spent: float  # US dollars that the run has cost already
    replies: RecordedReplies | None  # replies of other runs that come before a model's
    detach: bool  # whether to leave what was submitted to itself, where the engine can

    @property
    def stopping(self) -> str:
        """Why no more experiments are begun; empty while they are."""

    def work(self) -> Iterator[PendingExperiment]:
        """The remaining experiments, drawn one by one; ends early where no more is to be begun."""

    async def room(self) -> None:
        """Waits until it is time to draw the next experiment, for engines that have several under way at once.

        A run that stops once it is decided would pay in vain for what is begun far beyond what is decided on.
        """

    async def settle(self, outcome: ExperimentOutcome) -> None:
        """Takes note of how an experiment ended."""

    def stop(self, status: str, reason: str) -> None:
        """Hands out no more work, and ends the session with this status when the engine has come to an end."""


class RemoteView(Protocol):
    """A run as an engine elsewhere has it; looking changes nothing."""

    def new_lines(self) -> AsyncIterator[bytes]:
        """Journal lines that are stored there since the last look. Raises Unreachable."""

    async def page(self, experiment_id: str) -> str:
        """Where people can look at an experiment; empty for nowhere."""

    async def is_busy(self) -> bool:
        """Whether anything runs or waits there."""


class StoredRun(Protocol):
    """The store of a run on an engine elsewhere, whoever began the run."""

    async def experiments(self) -> set[str]:
        """The ids of experiments that have lines there."""

    async def lines(self, experiment_id: str) -> list[bytes]:
        """All journal lines of an experiment."""


class Engine(Extensible, ABC):
    """A place where experiments run. An instance carries out one plan.

    A subclass has a `name` and `run`; all else has a default. What is a class attribute or a classmethod here is asked
    before the engine is opened.
    """

    name: str
    """The engine's name in records and on screens."""

    isolation: str = ""
    """What contains candidates there, such as `docker`, for the run's record. Empty where it isn't known."""

    outlives: bool = False
    """Whether experiments that were handed over go on there when this machine stops."""

    notices: Sequence[str] = ()
    """Sentences that are shown once each. Looked at again and again, so it may grow while the run goes on."""

    can: ClassVar[frozenset[str]] = frozenset({JUDGE})
    """The needs of tasks that it meets: `judge`, `session`, `workspace`, `evaluator`, `long_context`, `exclusive`,
    `gpu`, `privacy`, `memory` for the memory store of this machine, and `reuse` for the runs that lie on it. A run of
    other tasks is refused."""

    carries: ClassVar[frozenset[str]] = frozenset()
    """Needs besides `can` that it meets for suites which say of them that they are `portable`."""

    options: ClassVar[type | None] = None
    """The frozen dataclass of the engine's options, see `koderz.settings.options`. `plan.settings.of` gives a value."""

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        self.plan, self.environ = plan, environ

    @classmethod
    def open(cls, plan: Plan, environ: Mapping[str, str]) -> AbstractAsyncContextManager[Engine]:
        """A context manager of the engine for a plan, in an environment of variables.

        Entered once a session of a run, before anything is recorded, and left at the session's end. By default the
        class is called with the plan and the variables. Raises Unreachable where something is missing, KoderzError for
        a plan that can't be carried out there.
        """
        return nullcontext(cls(plan, environ))

    @classmethod
    def settle(cls, settings: Settings, given: Container[str]) -> Settings:  # noqa: ARG003
        """The settings as they are there; `given` has the names of those that the user set. By default the same.

        Called when a run is planned. Raises KoderzError for settings that can't be there.
        """
        return settings

    @classmethod
    def view(
        cls,
        folder: Path,  # noqa: ARG003
        config: Mapping[str, Any],  # noqa: ARG003
        environ: Mapping[str, str],  # noqa: ARG003
    ) -> RemoteView | None:
        """A look at a run there, from the run's folder and recorded settings. Called by `koderz benchmark watch`.

        None, the default: all that there is to see is in the journal. Raises KoderzError if it can't be seen from here.
        """
        return None

    @classmethod
    async def stored(
        cls,
        run_id: str,  # noqa: ARG003
        environ: Mapping[str, str],  # noqa: ARG003
    ) -> tuple[bytes, StoredRun] | None:
        """The plan, as `portable.pack_plan` makes it, and the store of a run that isn't known on this machine.

        Called for each engine when such a run is resumed. None, the default: the engine doesn't have that run.
        """
        return None

    @property
    def throttle(self) -> Sequence[Throttle]:
        """How hard providers are asked at the moment, for the screen. By default nothing is said of it."""
        return ()

    @property
    def waits(self) -> str:
        """A text on what experiments wait for, shown beside the progress. By default empty: for nothing."""
        return ""

    @property
    def rests(self) -> bool:
        """Whether all that is under way waits for what goes on without this process. By default it doesn't.

        Ctrl-C then ends the run at once.
        """
        return False

    async def check(self) -> dict[str, Any]:
        """Facts about models and machines for the run's record. By default none.

        Called before anything is created or spent. Raises Unreachable if the run can't begin, KoderzError if the plan
        can't be carried out there.
        """
        return {}

    @abstractmethod
    async def run(self, driver: Driver) -> None:
        """Perform what `driver.work()` yields, and have the driver `settle` the outcome of each.

        Called once, and again for faults that are tried a second time in the session. Lines are recorded by the driver,
        before the solver sees what they say, and each once. What goes wrong in an experiment is a fault of that
        experiment; what is raised here ends the run.
        """


class Traits(NamedTuple):
    """The attribute `traits` of a function that opens an engine which isn't a subclass of `Engine`."""

    can: frozenset[str] = Engine.can
    settle: Callable[[Settings, Container[str]], Settings] = lambda settings, _: settings
    view: Callable[[Path, Mapping[str, Any], Mapping[str, str]], RemoteView] | None = None
    stored: Callable[[str, Mapping[str, str]], Awaitable[tuple[bytes, StoredRun] | None]] | None = (
        None
    )
    carries: frozenset[str] = Engine.carries


def _as_class(found: Any, name: str) -> type[Engine]:
    """The class of an engine: itself, or one whose engines are those that a plain function opens."""
    if isinstance(found, type) and issubclass(found, Engine):
        return found
    if not callable(found):
        raise KoderzError(
            f"the engine {name} is no subclass of koderz.extend.Engine: {found!r:.80}"
        )
    traits: Traits = getattr(found, "traits", Traits())

    class AdaptedEngine(_PlainEngine):
        can, carries = traits.can, traits.carries
        options = found.options if isinstance(found, Optioned) else None

        @classmethod
        @asynccontextmanager
        async def open(cls, plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[Engine]:
            async with found(plan, environ) as plain:
                yield cls(plan, environ, plain)

        @classmethod
        def settle(cls, settings: Settings, given: Container[str]) -> Settings:
            return traits.settle(settings, given)

        @classmethod
        def view(
            cls, folder: Path, config: Mapping[str, Any], environ: Mapping[str, str]
        ) -> RemoteView | None:
            return traits.view(folder, config, environ) if traits.view else None

        @classmethod
        async def stored(
            cls, run_id: str, environ: Mapping[str, str]
        ) -> tuple[bytes, StoredRun] | None:
            return await traits.stored(run_id, environ) if traits.stored else None

    AdaptedEngine.__doc__ = found.__doc__
    return AdaptedEngine


class _PlainEngine(Engine):
    """An engine whose members are those of a plain object."""

    def __init__(self, plan: Plan, environ: Mapping[str, str], plain: Any) -> None:
        super().__init__(plan, environ)
        self.name, self.isolation, self.outlives = plain.name, plain.isolation, plain.outlives
        self.notices, self._plain = plain.notices, plain

    @property
    def throttle(self) -> Sequence[Throttle]:
        found: Sequence[Throttle] = self._plain.throttle
        return found

    @property
    def waits(self) -> str:
        return getattr(self._plain, "waits", "")

    async def check(self) -> dict[str, Any]:
        facts: dict[str, Any] = await self._plain.check()
        return facts

    async def run(self, driver: Driver) -> None:
        await self._plain.run(driver)


ENGINES: Registry[type[Engine]] = Registry(
    "engine",
    "engines",
    _as_class,
    {"local": "koderz.engines.local:LocalEngine"},
    {"engine.local": "koderz.settings.requests:BatchOptions"},
)
"""The engines that there are: each name stands for a subclass of `Engine`."""


def open_engine(plan: Plan, environ: Mapping[str, str]) -> AbstractAsyncContextManager[Engine]:
    """The engine that a plan names. KoderzError for an unknown one."""
    return ENGINES.load(plan.settings.engine).open(plan, environ)


async def stored_run(run_id: str, environ: Mapping[str, str]) -> tuple[bytes, StoredRun] | None:
    """The plan and the store of a run that some engine elsewhere keeps; None where none does."""
    for name in ENGINES.names():
        if found := await ENGINES.load(name).stored(run_id, environ):
            return found
    return None


def require_able(plan: Plan) -> None:
    """KoderzError where a task needs what the plan's engine hasn't got."""
    from koderz.plans.plan import needs_of  # which no help needs

    name = plan.settings.engine
    met = ENGINES.load(name).can | carried(plan)
    for need in sorted(needs_of(plan) - met):
        task = next(task.id for task, _, _ in plan.cells() if need in task.needs)
        raise KoderzError(
            f"{task} needs {need}, which the engine {name} hasn't got; choose another with --engine"
        )


def carried(plan: Plan) -> frozenset[str]:
    """The plan's needs that its suite meets in sandboxes of its own, wherever the engine has it loaded."""
    from koderz.plans.plan import needs_of

    return needs_of(plan) & ENGINES.load(plan.settings.engine).carries & plan.suite.portable
