"""Starting the processes that judge, in an interpreter with nothing of the caller's in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from koderz.sandbox.judge.zygote import END, ENDING, ORDER, SECONDS, USED, Setup
from koderz.sandbox.linux import kernel
from koderz.sandbox.linux import readable as reading

_SANDBOX = Path(__file__).resolve().parents[1]

# The package's own __init__ would load the whole of koderz: stubs with the right paths stand in.
_BOOT = """
import sys, types
for name, path in (("koderz", {package!r}), ("koderz.sandbox", {sandbox!r})):
    stub = sys.modules[name] = types.ModuleType(name)
    stub.__path__ = [path]
from koderz.sandbox.{module} import main
main(sys.argv[1:])
"""

ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set decides no verdict
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Premises:
    """Where and how a judge's candidates are kept."""

    layers: Sequence[str]  # wanted
    packages: Mapping[str, str]  # beyond the standard library: name and folder
    container: Sequence[str] = ()  # the command that starts one; empty: candidates run here
    passed: Sequence[str] = ()  # the variables that this command needs, such as DOCKER_*; no candidate gets them
    start_seconds: float = 30.0  # within which a judge has to be ready
    core: int = -1  # that judge and candidates are bound to, unless negative


def command(module: str, arguments: Iterable[str], *, site: bool = False) -> list[str]:
    """The command line of an interpreter that runs the main of `koderz.sandbox.MODULE`.

    `site` lets it see installed packages.
    """
    boot = _BOOT.format(package=str(_SANDBOX.parent), sandbox=str(_SANDBOX), module=module)
    flags = ["-s", "-P", "-B", "-X", "utf8"] + ([] if site else ["-S"])
    return [sys.executable, *flags, "-c", boot, *arguments]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a candidate ended."""

    status: int  # exit code, or minus the signal
    cpu: float  # seconds
    memory: int  # bytes, the largest resident size
    overdue: bool  # it used up its CPU


def read_ending(data: bytes) -> Ending:
    status, cpu, memory, overdue = ENDING.unpack(data)
    return Ending(os.waitstatus_to_exitcode(status), cpu, memory, overdue)


class Connection(Protocol):
    """A candidate's, as a socket has it."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


class Forks(Protocol):
    """Whatever candidates are forked from, one at a time."""

    def spawn(self, cpu: float, memory: int) -> AbstractContextManager[Connection]:
        """Forks a candidate. `cpu` in seconds, `memory` in bytes."""
        ...

    def used(self) -> float | None:
        """CPU seconds that the candidate has used so far; None where that can't be told in between."""
        ...

    def end(self) -> Ending:
        """Ends the candidate, if it hasn't ended by itself."""
        ...


class Zygote:
    """A zygote as its judge sees it: the other end of its socket, and how its end is waited for.

    `guest`: source whose `serve(descriptor)` is what each candidate is, in place of one that answers calls.
    EOFError from any method when it is gone.
    """

    def __init__(
        self,
        control: socket.socket,
        wait: Callable[[], object],
        layers: Sequence[str],
        packages: Mapping[str, str],
        guest: str = "",
    ) -> None:
        self._control, self._wait = control, wait
        readable = reading.readable(map(Path, packages.values())) if kernel.LINUX else ()
        setup = Setup([*layers], [*map(str, readable)], dict(packages), guest)
        self._control.sendall(json.dumps(setup).encode() + b"\n")
        with self._control.makefile("rb") as answer:
            self.layers: frozenset[str] = frozenset(json.loads(_something(answer.readline())))

    def spawn(self, cpu: float, memory: int) -> socket.socket:
        """Forks a candidate and returns the judge's end of its socket. `memory` in bytes."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [ORDER.pack(cpu, memory)], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise EOFError("the zygote is gone") from error
        return ours

    def used(self) -> float:
        """CPU seconds that the candidate has used so far."""
        try:
            self._control.sendall(USED)
            answer = _something(self._control.recv(SECONDS.size, socket.MSG_WAITALL))
        except OSError as error:
            raise EOFError("the zygote is gone") from error
        return float(SECONDS.unpack(answer)[0])

    def end(self) -> Ending:
        """Ends the candidate, if it hasn't ended by itself."""
        try:
            self._control.sendall(END)
            answer = _something(self._control.recv(ENDING.size, socket.MSG_WAITALL))
        except OSError as error:
            raise EOFError("the zygote is gone") from error
        return read_ending(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._wait()


def started_zygote(layers: Sequence[str], guest: str) -> Zygote:
    """A zygote in an interpreter of its own."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            command("judge.zygote", [str(theirs.fileno())]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=ENVIRONMENT,
            cwd="/",
        )
    return Zygote(ours, process.wait, layers, {}, guest)


def _something(data: bytes) -> bytes:
    if not data:
        raise EOFError("the zygote is gone")
    return data
