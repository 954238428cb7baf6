"""Ways out for a word: what listens on this machine hears nothing of a program, and no name outside can be probed."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from koderz.sandbox import Job
from koderz.sandbox.linux import isolation
from tests.koderz.sandbox.conftest import LEVELS, Judges

KINDS = {"datagram": socket.SOCK_DGRAM, "stream": socket.SOCK_STREAM, "packets": socket.SOCK_SEQPACKET}
TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n"

SPEAK = """
import array, contextlib, ctypes, os, platform, signal, socket
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
libc = ctypes.CDLL(None, use_errno=True)
SEND, SEND_MESSAGE, CONNECT, BIND = dict(x86_64=(44, 46, 42, 49), aarch64=(206, 211, 203, 200))[platform.machine()]
names = [{folder!r} + "/" + kind for kind in ("datagram", "stream", "packets")]
names += ["\\0" + name for name in names]
heard = []
def tried(what, *arguments):
    with contextlib.suppress(OSError, ValueError):
        heard.append(what(*arguments))
def words(end, name):
    descriptors = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
    tried(end.sendto, b"word", name)
    tried(end.sendmsg, [b"word"], descriptors, 0, name)
    address = b"\\x01\\x00" + os.fsencode(name)
    for number in (SEND, BIND, CONNECT):
        libc.syscall(number, end.fileno(), *((b"word", 4, 0) if number == SEND else ()), address, len(address))
    tried(lambda: (end.connect(name), end.send(b"word")))
    tried(end.bind, name + "-of-mine")
def add(x, y):
    for kind in (1, 2, 3, 4, 5, 10):
        for more in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC):
            with contextlib.suppress(OSError):
                end, other = socket.socketpair(socket.AF_UNIX, kind | more)
                if kind != socket.SOCK_STREAM: return 3
                end.setblocking(False)
                for name in names: words(end, name)
            for name in names: tried(lambda: words(socket.socket(socket.AF_UNIX, kind | more), name))
    for number in range(64):
        with contextlib.suppress(OSError):
            for name in names: words(socket.socket(fileno=os.dup(number)), name)
    for way in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_NONBLOCK, os.O_RDONLY | os.O_NONBLOCK):
        tried(lambda: os.write(os.open({folder!r} + "/pipe", way), b"word"))
    return 4
"""

PROBE = """
import os
def told(name):
    found = []
    for look in (os.stat, os.lstat, os.readlink, os.listdir, os.statvfs, lambda name: os.access(name, os.F_OK),
                 lambda name: os.open(name, os.O_PATH), lambda name: os.open(name, os.O_RDONLY),
                 lambda name: os.open(name + "/..", os.O_PATH)):
        try: found.append(look(name) is True)
        except OSError as error: found.append(error.errno)
    return found
def add(x, y):
    return 3 if all(told(name) == told(name + "-that-isnt-there") for name in {names!r}) else 4
"""


class Outside:
    """Whatever of this machine might hear a program speak."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sockets = [self._listening(name, kind) for name in self._names() for kind in KINDS.values()]
        os.mkfifo(folder / "pipe")
        self._pipe = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    def heard(self) -> list[str]:
        """Who has heard anything."""
        told = [str(each) for each in self._sockets if self._has_heard(each)]
        return [*told, "pipe"] if self._piped() else told

    def close(self) -> None:
        os.close(self._pipe)
        for each in self._sockets:
            each.close()

    def _names(self) -> list[str]:
        return [f"{self.folder}/", f"\0{self.folder}/"]

    def _listening(self, prefix: str, kind: int) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, kind)
        listening.bind(prefix + next(name for name, each in KINDS.items() if each == kind))
        listening.setblocking(False)
        if kind != socket.SOCK_DGRAM:
            listening.listen()
        return listening

    def _has_heard(self, listening: socket.socket) -> bool:
        try:
            listening.recv(1) if listening.type == socket.SOCK_DGRAM else listening.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def _piped(self) -> bool:
        try:
            return os.read(self._pipe, 1) != b""
        except BlockingIOError:
            return True  # somebody holds its other end


@pytest.fixture
def outside() -> Iterator[Outside]:
    with tempfile.TemporaryDirectory() as folder:  # a short path: a socket's has 107 bytes
        Path(folder).chmod(0o755)
        found = Outside(Path(folder))
        yield found
        found.close()


def test_sockets_and_pipes_outside_hear_nothing(outside: Outside, layers: Sequence[str], judged: Judges) -> None:
    source = SPEAK.format(folder=str(outside.folder))
    (outcome,) = judged(Job(source, TEST, "add"), layers=layers, alone=True)
    assert (outcome.verdict, outside.heard()) == ("failed", []), outcome.message


def test_listeners_would_hear_an_uncontained_program(outside: Outside) -> None:
    """Else the test above shows nothing."""
    namespace: dict[str, object] = {}
    exec(SPEAK.format(folder=str(outside.folder)), namespace)
    words = cast("Callable[[socket.socket, str], None]", namespace["words"])
    for name in cast("list[str]", namespace["names"]):
        with socket.socket(socket.AF_UNIX, KINDS[name.rpartition("/")[2]]) as end:
            words(end, name)
    writing = os.open(outside.folder / "pipe", os.O_WRONLY)
    assert len(outside.heard()) == 2 * len(KINDS) + 1
    os.close(writing)


@pytest.mark.parametrize("layers", ["with namespaces"], indirect=True)
def test_names_of_files_outside_cannot_be_probed(
    layers: Sequence[str], judged: Judges, holds: frozenset[str], tmp_path: Path
) -> None:
    if isolation.MOUNTS not in holds:
        pytest.skip("this machine allows no mounts")
    (tmp_path / "link").symlink_to("/etc/passwd")
    names = ["/etc/passwd", "/home", "/proc/1", "/tmp", "/dev/tty", "/usr/bin", __file__, sys.executable]
    names += [str(path) for path in (Path(pytest.__file__), tmp_path, tmp_path / "link")]
    (outcome,) = judged(Job(PROBE.format(names=names), TEST, "add"), layers=layers, alone=True)
    assert outcome.verdict == "passed", outcome.message


def test_refused_mounts_are_told_by_the_rung() -> None:
    assert isolation.label({*isolation.LAYERS, isolation.MOUNTS}) == "namespaces+landlock+seccomp"
    assert isolation.label(isolation.LAYERS) == "namespaces without mounts+landlock+seccomp"
    assert isolation.label(LEVELS["without namespaces"]) == "landlock+seccomp"
