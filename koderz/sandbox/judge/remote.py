"""The near end of a pipe to a zygote, such as a container's stdin and stdout: `relay` runs at the far one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from koderz.sandbox.frames import HEADER, frame
from koderz.sandbox.judge.relay import END, FULL, READY, SPAWN, Relay
from koderz.sandbox.judge.zygote import ORDER, SECONDS, USED
from koderz.sandbox.launch import ENVIRONMENT
from koderz.sandbox.linux import kernel

_PIPE = subprocess.PIPE
_SANDBOX = Path(__file__).resolve().parents[1]
_MODULES = (
    *("frames", "judge.candidate", "judge.relay", "judge.wire", "judge.zygote"),
    *sorted(f"linux.{path.stem}" for path in _SANDBOX.joinpath("linux").glob("[a-z]*.py")),
)
_PACKAGES = ("koderz", "koderz.sandbox", "koderz.sandbox.judge", "koderz.sandbox.linux")

_BOOT = f"""
import os
def take(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or os._exit(1)
    return data
exec(take(int.from_bytes(take({HEADER.size})[-4:], "little")))
"""
INTERPRETER = ("python", "-s", "-P", "-B", "-S", "-X", "utf8", "-c", _BOOT)
"""The command at the other end, in a container or a machine elsewhere: it takes everything else from its stdin."""

VARIABLES = [f"{name}={value}" for name, value in ENVIRONMENT.items() if name != "PATH"]
"""The variables that it is started with, beside the container's own PATH."""

SOURCE = b"p"  # the kind of frame that it takes first

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
from koderz.sandbox.frames import HEADER, frame
from koderz.sandbox.judge.relay import main
main({setup!r})
"""


def main(control: socket.socket, command: Sequence[str]) -> NoReturn:
    """Stands where a judge has its zygote, which is where `command` leads. `control`: the socket to the judge."""
    kernel.die_with_parent()
    kernel.hide_memory()
    with control.makefile("rb") as line:
        setup = line.readline()
    try:
        process = subprocess.Popen(command, bufsize=0, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE)
    except OSError as error:
        _complain(control, f"{type(error).__name__}: {error}")
        os._exit(0)
    with process:
        assert process.stdin
        assert process.stdout
        end = NearEnd(control, process.stdout.fileno(), process.stdin.fileno())
        end.for_pipe += _package(setup)
        with contextlib.suppress(BrokenPipeError):
            end.run()
        if not end.is_ready:
            _complain(control, _last_words(process))
    os._exit(0)


class NearEnd(Relay):
    """Beside the judge."""

    is_ready = False

    def sources(self) -> list[Any]:
        return [self.control, *([self.source] if len(self.for_candidate) < FULL else [])]

    def obey(self, kind: bytes, _number: int, payload: bytes) -> bool:
        self.is_ready |= kind == READY
        self.control.sendall(payload)
        return True

    def asked(self) -> bool:
        order, descriptors, *_ = socket.recv_fds(self.control, ORDER.size, 1)
        if descriptors:
            self.take_on(socket.socket(fileno=descriptors[0]), self.number + 1)
            self.send(SPAWN, order)
        elif order == USED:
            # the answer would come too late, and behind all that the candidate has to say
            self.control.sendall(SECONDS.pack(0.0))
        elif order:
            self.drop()
            self.send(END)
        return bool(order)


def _complain(control: socket.socket, why: str) -> None:
    control.sendall(json.dumps(why).encode() + b"\n")


def _last_words(process: subprocess.Popen[bytes]) -> str:
    """The last line that the command printed."""
    process.kill()
    lines = process.communicate()[1].decode(errors="replace").split("\n")
    words = [line.strip() for line in lines if line.strip() and not line.startswith("Run 'docker")]
    return words[-1] if words else f"it ended with {process.returncode} and said nothing"


def _package(setup: bytes) -> bytes:
    """All that runs there, as a frame: the other side has none of koderz' files."""
    sources = {
        f"koderz.sandbox.{name}": _SANDBOX.joinpath(*name.split(".")).with_suffix(".py").read_text()
        for name in _MODULES
    }
    script = f"SOURCES = {(dict.fromkeys(_PACKAGES, '') | sources)!r}\n" + _PACKAGE.format(
        setup=setup
    )
    return frame(SOURCE, script.encode())
