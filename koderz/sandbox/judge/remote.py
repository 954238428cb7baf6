"""A zygote at the other end of a pipe, such as a container's stdin and stdout: `relay` runs there."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from koderz.sandbox.judge.forks import Ending, read_ending
from koderz.sandbox.judge.relay import DATA, END, GONE, READY, SPAWN, framed, taken
from koderz.sandbox.judge.zygote import ORDER

_SANDBOX = Path(__file__).resolve().parents[1]
_MODULES = (
    *("judge.candidate", "judge.relay", "judge.wire", "judge.zygote"),
    *sorted(f"linux.{path.stem}" for path in _SANDBOX.joinpath("linux").glob("[a-z]*.py")),
)
_PACKAGES = ("koderz", "koderz.sandbox", "koderz.sandbox.judge", "koderz.sandbox.linux")

BOOT = """
import os
def take(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or os._exit(1)
    return data
exec(take(int.from_bytes(take(4), "little")))
"""
"""What an interpreter at the other end has to run, by `-c`: it takes everything else from its stdin."""

_PACKAGE = """
import importlib.abc, importlib.util, sys
class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=not SOURCES[name])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(SOURCES[module.__name__], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Sources())
from koderz.sandbox.judge.relay import main
main({layers!r})
"""


class RemoteZygote:
    """The same as `launch.Zygote`, with candidates that run where `command` leads. EOFError when it is gone."""

    def __init__(self, command: Sequence[str], layers: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._buffer = bytearray()
        self._number = 0
        self._torn = False  # an alarm may have cut off a frame in the middle
        try:
            self._write(_package(layers))
            self.layers: frozenset[str] = frozenset(json.loads(self._awaited(READY)))
        except (EOFError, OSError) as error:
            raise EOFError(self._complaint()) from error

    def spawn(self, cpu: float, memory: int) -> RemoteCandidate:
        """Forks a candidate there. `memory` in bytes."""
        self._number += 1
        self.send(SPAWN, ORDER.pack(cpu, memory))
        return RemoteCandidate(self)

    def used(self) -> None:
        """Can't be told: an alarm that asks could come in the middle of a message."""

    def end(self) -> Ending:
        """Ends the candidate, if it hasn't ended by itself."""
        if self._torn:
            raise EOFError("an alarm came in the middle of a message")
        try:
            self.send(END)
            return read_ending(self._awaited(END))
        except OSError as error:
            raise EOFError("the zygote is gone") from error

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._write(framed(kind, self._number, payload))

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Kinds and payloads of what comes from the present candidate, and of it alone."""
        while True:
            for kind, number, payload in taken(self._buffer):
                if number in (0, self._number):
                    yield kind, payload
            self._fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _awaited(self, wanted: bytes) -> bytes:
        return next(payload for kind, payload in self.frames() if kind == wanted)

    def _write(self, data: bytes) -> None:
        self._torn = True
        view = memoryview(data)
        while view:
            view = view[os.write(self._to, view) :]
        self._torn = False

    def _fill(self) -> None:
        select.select([self._from], [], [])  # where an alarm does no harm
        self._torn = True
        data = os.read(self._from, 1 << 20)
        self._buffer += data
        self._torn = False
        if not data:
            raise EOFError("the zygote is gone")

    def _complaint(self) -> str:
        """What the command had to say, in a line."""
        self._process.kill()
        lines = self._process.communicate()[1].decode(errors="replace").split("\n")
        told = [line.strip() for line in lines if line.strip() and not line.startswith("Run 'docker")]
        return told[-1] if told else f"it ended with {self._process.returncode} and said nothing"


class RemoteCandidate:
    """A candidate's connection, used as a socket is."""

    def __init__(self, zygote: RemoteZygote) -> None:
        self._zygote = zygote

    def recv(self, _size: int) -> bytes:
        """What has come, and empty when it has hung up. OSError when the zygote is gone."""
        try:
            return next(payload for kind, payload in self._zygote.frames() if kind in (DATA, GONE))
        except EOFError as error:
            raise ConnectionResetError from error

    def sendall(self, data: bytes) -> None:
        self._zygote.send(DATA, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """`RemoteZygote.end` has ended it."""


def _package(layers: Sequence[str]) -> bytes:
    """All that runs there, preceded by its size: the other side has none of koderz' files."""
    sources = {
        f"koderz.sandbox.{name}": _SANDBOX.joinpath(*name.split(".")).with_suffix(".py").read_text()
        for name in _MODULES
    }
    script = f"SOURCES = {(dict.fromkeys(_PACKAGES, '') | sources)!r}\n" + _PACKAGE.format(layers=[*layers])
    data = script.encode()
    return len(data).to_bytes(4, "little") + data
