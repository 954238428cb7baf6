"""Commands in prepared repositories, of what isn't trusted: an agent, a patch, its tests.

What a command is and is held to, and what a backend is that runs it. The system `workspaces` has those
of koderz. The cost of rented sandboxes is noted by a meter.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

CHECKOUT = "/workspace"  # where a command sees the checkout that it works in
HOME = "/home/user"  # and its home, which is kept from one command to the next, as is /tmp

BRIDGE_PORT = 16161  # of a command's own loopback, where what serves its bridge is reached
BRIDGE_URL = f"http://127.0.0.1:{BRIDGE_PORT}"

Serve = Callable[[socket.socket], Awaitable[None]]
"""Answers whoever connects to a socket that listens."""

Beside = Callable[[str, str], Awaitable[bytes]]
"""Runs Python beside a command, as whoever watches that: takes source and stdin, gives stdout, or raises OSError."""

Enforcer = Literal["cgroup", "affinity", "watched", "container", "no"]
"""How a limit is enforced: by the kernel's groups, by cores, by ending what exceeds it, by the container, or not."""

Cause = Literal["", "timeout", "memory", "processes", "disk"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a command may use, all its processes together."""

    seconds: float = 1800.0
    cpus: float = 0.0  # cores; 0: all that there are
    memory_mb: int = 4096
    processes: int = 512  # threads count too
    disk_mb: int = 4096  # of its checkout, home and /tmp, with what was there before
    output_bytes: int = 1 << 20  # of what it prints; what is beyond is dropped from the middle
    grace: float = 5.0  # seconds between being asked to end and being ended


@dataclass(frozen=True, slots=True)
class Mount:
    """Something of the host that a command sees."""

    source: Path
    target: str
    writable: bool = False
    # as what a backend of other machines keeps it itself, and takes that instead of the source
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """Image that holds the programs beside the checkout, for backends that have images."""

    context: Path  # a folder with a Dockerfile
    digest: str  # another one where any of its files is
    name: str = ""  # what it is called; empty: by its digest
    arguments: Mapping[str, str] = field(default_factory=dict, hash=False)  # of the Dockerfile
    hidden: Collection[str] = ()  # paths in the folder that it isn't made of
    # of its ENV
    environment: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True, slots=True)
class Services:
    """The services that commands reach by their names, where a backend has compose."""

    # as compose has them, nothing to fill in
    services: Mapping[str, Mapping[str, Any]] = field(hash=False, repr=False)
    volumes: Mapping[str, Any] = field(hash=False)
    folder: Path  # of what they are built of and see, but for what is hidden
    main: str  # the name by which they reach the command
    hidden: Collection[str] = ()

    @property
    def images(self) -> Sequence[str]:
        """The images that aren't built."""
        return [table["image"] for table in self.services.values() if "image" in table]


@dataclass(frozen=True, slots=True)
class RewardChannel:
    """The channel by which a verifier gives its rewards, guarded against the agent's programs that it starts.

    A program is the agent's if it is one of the files that it changed, or made of them: see `inside.channel` there.
    """

    folder: Path
    target: str = "/logs/verifier"  # where it is seen
    hidden: Sequence[str] = ()  # what the agent's programs can't read
    agents: Collection[str] = ()  # the files that the agent changed, as they are seen
    homes: Sequence[str] = ()  # the folders in which its files may lie
    lifted: Sequence[str] = ()  # of `CHANNEL_GUARDS`

    def facts(self) -> dict[str, Any]:
        """The channel as process 1 of a sandbox takes it; the folder goes to it as a handle."""
        lists = {
            "hidden": self.hidden,
            "agents": self.agents,
            "homes": self.homes,
            "lifted": self.lifted,
        }
        return {"target": self.target, **{name: [*values] for name, values in lists.items()}}


CHANNEL_GUARDS = ("tests-readable", "rewards-writable", "signals", "loaders-write")
"""The guards of a channel that can be lifted: hidden files, rewards that the agent's programs write, signals, rewards
that programs of the verifier write once they have loaded the agent's code.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its surroundings. Its network is its own loopback alone unless it asks for more."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # beside PATH, HOME and the like
    mounts: Sequence[Mount] = ()
    checkout: str = CHECKOUT  # where it sees the checkout, in which it begins
    image: Image | str | None = None  # one of that name; None: the backend's usual one
    # as whom it runs in an image: a name or a number of there; empty: the image's own, or koderz' user
    user: str = ""
    # whether it works in the image's own folder `checkout`, over which no checkout lies
    in_image: bool = False
    read_only: bool = False  # whether the checkout is
    home: bool = False  # whether `HOME` is there in any image, be it nobody's home
    core: int = -1  # the only one that it runs on, unless negative
    # whether it sees the host's python3 wherever that lies, where there are no images
    python: bool = True
    forks: bool = True  # whether it may start other processes; threads it always may
    limits: Limits = field(default_factory=Limits)
    # what `python3 -I -B` runs, where it lies here; may be forked from where it was loaded
    script: Path | None = None
    # is handed the socket that listens at BRIDGE_PORT of the command's loopback
    bridge: Serve | None = None
    # to which a proxy connects it, in containers, where it has no network
    allowed_hosts: Sequence[str] = ()
    network: bool = False  # whether it has one, where a backend has images
    secrets: Sequence[str] = ()  # names of koderz' own variables that it has, too, there
    gpus: str = ""  # those that it has, as TYPE:COUNT, there
    # whether koderz may talk to what listens on its loopback; not beside a bridge
    reachable: bool = False
    # begun with the first command of a place, and gone with the place
    services: Services | None = None
    channel: RewardChannel | None = None  # of a verifier, where a backend guards channels

    @property
    def variables(self) -> Mapping[str, str]:
        """Its environment over that of its Dockerfile, for backends without images; an image has that already."""
        return (
            {**self.image.environment, **self.environment}
            if isinstance(self.image, Image)
            else self.environment
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int  # exit code, or minus the signal; 127: there is no such program
    output: str  # of both streams, in the order of writing
    cause: Cause = ""  # the limit that it was ended for
    seconds: float = 0.0  # wall
    cpu: float = 0.0  # seconds, of all its processes that had ended
    # the agent's code that a verifier has loaded; None: it wasn't guarded
    loaded: Sequence[str] | None = None
    refused: Sequence[str] = ()  # what the agent's programs were refused


class Bridging(AbstractAsyncContextManager["Bridging"], Protocol):
    """The server that answers a working agent's requests."""

    async def begin(
        self, run: Callable[[Command, Path], Awaitable[Ended]], command: Command, place: Path
    ) -> None:
        """Prepares what the agent works with; `command` is like the agent's. Raises Fault where that isn't possible."""
        ...

    async def serve(self, listening: socket.socket) -> None:
        """See `Serve`."""
        ...

    async def beside(self, working: Awaitable[Ended]) -> Ended:
        """How the agent ended. Raises the fault that left it without answers."""
        ...

    def record(self) -> Mapping[str, Any]:
        """The record of its answers, complete once the agent has ended."""
        ...


class Launch(NamedTuple):
    """A command that is an agent, and what it is given."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folders: Sequence[str]  # of the host, or files, that it sees at the same place, read-only
    bridge: Bridging
    version: Sequence[str] = ()  # the command that prints the agent's version; empty: there is none


class Unseen(NamedTuple):
    """Nanoseconds of work that the clocks of a command's processes miss, or may miss. 0: none, or it can't be told."""

    hidden: int = 0  # of `Running.cpu`, what processes took that ended and that nobody waited for
    # the time on its core but for that in which the core had nothing to do, since some moment
    busy: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """A command that has begun, and that koderz talks to."""

    channel: socket.socket  # what its descriptor 4 writes and its descriptor 3 reads; doesn't block
    ended: asyncio.Task[Ended]
    # nanoseconds that it has used, read from outside; OSError once it is gone
    cpu: Callable[[], Awaitable[int]]
    unseen: Callable[[], Unseen] = Unseen  # OSError once it is gone
    output: Callable[[], str] = str  # what it has printed so far
    # makes TCP sockets of its network, for what listens there
    sockets: Callable[[object], socket.socket] | None = None
    beside: Beside | None = None  # where its network is out of reach


class Backend(Protocol):
    """Somewhere that commands run. Entering raises Unreachable where it can't run here."""

    name: str
    isolation: str  # what contains commands, once it is entered
    # whether commands run on every `Command.image`; else, but for those of a store, on this machine's
    has_images: bool
    guards_channels: bool  # whether it guards `Command.channel`; else a verifier has no channel
    cost: float  # US dollars a second, at least, for each command that runs
    # how it holds commands to `cpus`, `memory_mb`, `storage_mb` and `network`
    enforces: Mapping[str, Enforcer]

    async def run(self, command: Command, place: Path) -> Ended:
        """Runs a command in a folder of `sandbox.scratch`, until its whole process tree has ended.

        Raises Fault where it can't be started.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class Timed(Backend, Protocol):
    """A backend whose commands can be talked to and timed."""

    def started(self, command: Command, place: Path) -> AbstractAsyncContextManager[Running]:
        """The command at work; it is ended when this is left. Its CPU is that of all threads of its process, and
        of other processes where it may start any. Raises Fault where it can't be started.
        """
        ...


@runtime_checkable
class ManyMachines(Protocol):
    """A backend whose commands run on many machines, none of them this one."""

    def apart(self) -> AbstractAsyncContextManager[None]:
        """Commands within run on one machine, one after the other."""
        ...


class Images(Backend, Protocol):
    """A backend that has images."""

    async def look_up(self, images: Sequence[Image | str | None], *, push: bool = False) -> None:
        """Makes sure that all images are to be had, before any is fetched. Those that can be built are where they
        are nowhere else, and with `push` handed on. Raises Unreachable with the name of the first that is missing."""
        ...

    async def copy_out(self, image: Image | str, folder: str, target: Path) -> None:
        """Puts what the image has in a folder into `target`; nothing where it hasn't got that. Raises Fault."""
        ...


@dataclass(slots=True)
class Meter:
    """The time of an experiment's sandboxes, and their cost."""

    seconds: float = 0.0
    cost: float = 0.0  # US dollars, at least
    is_known: bool = True  # whether all prices are

    def add(self, seconds: float, price: float, *, is_known: bool = True) -> None:
        """Adds seconds at a price in US dollars a second."""
        self.seconds += seconds
        self.cost += seconds * price
        self.is_known = self.is_known and is_known


_CURRENT: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Notes all sandboxes rented in the block, also by tasks that begin there."""
    meter = Meter()
    token = _CURRENT.set(meter)
    try:
        yield meter
    finally:
        _CURRENT.reset(token)


def current() -> Meter | None:
    """The meter of the running experiment; None if nobody records the cost."""
    return _CURRENT.get()
