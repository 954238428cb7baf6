"""Where a candidate's code runs.

A sandbox takes a `Job` and says what became of it. What a suite asks and how its answer becomes a
verdict is the suite's; what contains the candidate is the sandbox's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, cast

from koderz.errors import Fault
from koderz.sandbox.judge.jobs import Job as Job
from koderz.sandbox.judge.jobs import JobResult as JobResult
from koderz.settings.options import option
from koderz.settings.registry import Registry
from koderz.settings.schema import Settings
from koderz.settings.trust import RUNS_CODE

ROOM_MB = 512  # of a container, for its interpreters: beyond what a candidate may use


class Sandbox(Protocol):
    """`judge` raises Fault only where no candidate can be at fault. Entering may raise Unreachable."""

    name: str
    isolation: str  # what contains candidates here, once it is entered

    async def judge(self, job: Job) -> JobResult: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NoSandbox:
    """Stands where no task needs a judge: nothing was started, and nothing can be run."""

    name = "none"
    isolation = ""

    async def judge(self, job: Job) -> JobResult:  # noqa: ARG002 it is a Sandbox
        """Raises Fault."""
        raise Fault(
            "no task of this run says that it needs `judge`, so there is no sandbox to run a program in",
            cause="user_code",
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return


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


class Opening(NamedTuple):
    """What a sandbox is opened with. Each takes what concerns it."""

    judges: int = 1  # how many candidates run at once
    uncontained: bool = False  # programs may run where nothing holds them back
    memory_mb: int = 1024  # the most that any job will ask for
    options: Any = None  # those that the sandbox has of its own


SANDBOXES = Registry(
    "sandbox",
    "sandboxes",
    {
        "contained": "koderz.sandbox.contained:opened",
        "docker": "koderz.sandbox.docker:opened",
        "local": "koderz.sandbox.contained:opened",
        "modal": "koderz.modal.sandbox:ModalSandbox",
        "uncontained": "koderz.sandbox.contained:opened",
    },
    {"sandbox.docker": "koderz.sandbox:DockerOptions"},
)
"""Functions that take an `Opening`."""


def open_sandbox(
    name: str, *, judges: int, own_programs: bool = False, memory_mb: int = 1024, settings: Settings | None = None
) -> Sandbox:
    """A sandbox by its name, not yet entered. KoderzError for an unknown one.

    `own_programs`: nobody else's program is going to be run, so it doesn't matter if nothing holds them back.
    """
    make = cast("Callable[[Opening], Sandbox]", SANDBOXES.find(name))
    return make(Opening(judges, own_programs or name == "uncontained", memory_mb, SANDBOXES.options_in(name, settings)))
