"""Where a candidate's code runs.

A sandbox takes a `Job` and says what became of it. What a suite asks and how its answer becomes a
verdict is the suite's; what contains the candidate is the sandbox's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from koderz.errors import Fault, KoderzError
from koderz.sandbox.judge.jobs import Job as Job
from koderz.sandbox.judge.jobs import JobResult as JobResult
from koderz.settings.options import option
from koderz.settings.registry import Registry
from koderz.settings.schema import Settings
from koderz.settings.systems import Optioned
from koderz.settings.trust import RUNS_CODE
from koderz_tracker.registry import Extensible

if TYPE_CHECKING:
    from koderz.sandbox.workspace import Backend

ROOM_MB = 512  # of a container, for its interpreters: beyond what a candidate may use


class Opening(NamedTuple):
    """Arguments with which a sandbox is opened. Each sandbox uses those that concern it."""

    judges: int = 1  # the number of candidates that run at once
    uncontained: bool = False  # programs may run where nothing holds them back
    memory_mb: int = 1024  # the most that any job will ask for
    options: Any = None  # a value of the sandbox' own dataclass of options; None if it has none
    # a program that takes long lets others go first, where the sandbox can see to it
    yields: bool = False


class Sandbox(Extensible, ABC):
    """A place where candidates' programs run, so that they can do no harm and forge no verdict.

    A subclass has a `name` and `judge`; all else has a default. It is an async context manager, entered before the
    first program and left after the last.
    """

    name: str
    """The sandbox' name in records and messages."""

    isolation: str = ""
    """What contains candidates, for the run's record, once the sandbox is entered: `docker`, `modal`, …."""

    is_calibrated: bool = False
    """Whether `speed` is measured when the sandbox is opened. Only for one that multiplies CPU limits by it, and whose
    programs all run on one machine, or on equal ones."""

    speed: float = 1.0
    """The factor by which CPU limits are multiplied, on a machine slower than the one that they are meant for."""

    options: ClassVar[type | None] = None
    """The frozen dataclass of the sandbox' options, see `koderz.settings.options`. `open` gets its value."""

    @classmethod
    def open(cls, wanted: Opening) -> Sandbox:  # noqa: ARG003
        """A sandbox, not yet entered. By default the class is called without arguments."""
        return cls()

    @classmethod
    def open_workspaces(cls, settings: Settings) -> Backend:
        """The backend in which commands of agents and of measured patches run, not yet entered.

        Called for runs whose tasks need `workspace`. Raises KoderzError if the sandbox runs no such commands, as by
        default.
        """
        raise KoderzError(
            f"--sandbox {settings.sandbox}: no commands of agents or patches can be run there"
        )

    @abstractmethod
    async def judge(self, job: Job) -> JobResult:
        """Run a program and its tests, and say what became of it. Any number may be asked for at once.

        The outcome of an equal job may be used again. Raises Fault only if no candidate can be to blame.
        """

    async def judge_anew(self, job: Job) -> JobResult:
        """Run a program even if an equal job was judged before. Called to measure `speed`. By default `judge`."""
        return await self.judge(job)

    async def __aenter__(self) -> Self:
        """Start it. Raises Unreachable, which says what is missing, if programs can't be contained here."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, and every process in it."""
        return


class NoSandbox(Sandbox):
    """A sandbox in which nothing can be run, for runs whose tasks need no judge of programs."""

    name = "none"

    async def judge(self, job: Job) -> JobResult:  # noqa: ARG002 it is a Sandbox
        """Raises Fault."""
        raise Fault(
            "no task of this run says that it needs `judge`, so there is no sandbox to run a program in",
            cause="user_code",
        )


FULL = "namespaces+landlock+seccomp"
"""The isolation level with everything that a kernel has to offer."""


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The options of the sandbox `docker`."""

    docker_image: str = option(
        "python:3.12-slim",
        "The image for --sandbox docker, with Python 3.11 or later; never pulled.",
        "IMAGE",
        risk=RUNS_CODE,
    )


def _as_class(found: Any, name: str) -> type[Sandbox]:
    """The class of a sandbox: itself, or one whose sandboxes are those that a plain function opens."""
    if isinstance(found, type) and issubclass(found, Sandbox):
        return found
    if not callable(found):
        raise KoderzError(
            f"the sandbox {name} is no subclass of koderz.extend.Sandbox: {found!r:.80}"
        )

    class AdaptedSandbox(_PlainSandbox):
        options = found.options if isinstance(found, Optioned) else None

        @classmethod
        def open(cls, wanted: Opening) -> Sandbox:
            return cls(found(wanted))

    AdaptedSandbox.__doc__ = found.__doc__
    return AdaptedSandbox


class _PlainSandbox(Sandbox):
    """A sandbox whose members are those of a plain object."""

    def __init__(self, plain: Any) -> None:
        self._plain, self.name = plain, plain.name
        is_scaled = hasattr(plain, "speed") and hasattr(plain, "judge_anew")
        self.is_calibrated = is_scaled and not getattr(plain, "many_machines", False)

    @property
    def speed(self) -> float:
        return float(self._plain.speed) if self.is_calibrated else 1.0

    @speed.setter
    def speed(self, factor: float) -> None:
        self._plain.speed = factor

    async def judge(self, job: Job) -> JobResult:
        found: JobResult = await self._plain.judge(job)
        return found

    async def judge_anew(self, job: Job) -> JobResult:
        anew = self._plain.judge_anew if self.is_calibrated else self._plain.judge
        found: JobResult = await anew(job)
        return found

    async def __aenter__(self) -> Self:
        await self._plain.__aenter__()
        self.isolation = self._plain.isolation
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._plain.__aexit__(kind, error, trace)


SANDBOXES: Registry[type[Sandbox]] = Registry(
    "sandbox",
    "sandboxes",
    _as_class,
    {
        "contained": "koderz.sandbox.contained:ContainedSandbox",
        "docker": "koderz.sandbox.contained:DockerSandbox",
        "podman": "koderz.sandbox.contained:PodmanSandbox",
        "local": "koderz.sandbox.contained:ContainedSandbox",
        "uncontained": "koderz.sandbox.contained:UncontainedSandbox",
    },
    {
        "sandbox.docker": "koderz.sandbox:DockerOptions",
        "sandbox.podman": "koderz.sandbox:DockerOptions",
    },
)
"""The sandboxes that there are: each name stands for a subclass of `Sandbox`."""


def open_sandbox(
    name: str,
    *,
    judges: int,
    own_programs: bool = False,
    memory_mb: int = 1024,
    settings: Settings | None = None,
    yields: bool = False,
) -> Sandbox:
    """A sandbox by its name, not yet entered. KoderzError for an unknown one.

    `own_programs`: nobody else's program is going to be run, so it doesn't matter if nothing holds them back.
    """
    options = SANDBOXES.options_in(name, settings)
    return SANDBOXES.load(name).open(Opening(judges, own_programs, memory_mb, options, yields))
