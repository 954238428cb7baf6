"""Processes of `koderz` that are forked from one which has loaded it already: the same command, but it starts at once.

Each has its own session, folder, environment, arguments and standard streams, and ends as any process does, or with
the process that asked for it. What Python reads of the environment while it starts is what the first process was
started with, but for PYTHONPATH.

A shell asks for one by a program that `write_command` writes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO

PACKAGES = """
koderz.cli koderz.runs koderz.engines koderz.models koderz.analysis koderz.solvers
koderz.systems.long_context.recursive koderz.systems koderz.systems.rollouts koderz.systems.optimizers
koderz.systems.patches koderz.systems.serving koderz.systems.rollouts.agents koderz.systems.optimizers.solvers
koderz.systems.code koderz.systems.code.extraction koderz.systems.optimizers.datasets koderz.systems.long_context
koderz.systems.long_context.browsecomp_plus koderz.systems.long_context.ruler koderz.systems.long_context.oolong
koderz.systems.optimizers.analysis koderz.systems.publishing koderz.systems.reports koderz.systems.memory
koderz.systems.rollouts.tasks koderz.systems.rollouts.environments koderz.systems.rollouts.dockerfiles
koderz.systems.rollouts.workspaces koderz.systems.rollouts.grading koderz.systems.rollouts.checking
koderz.systems.rollouts.results koderz.systems.rollouts.commands koderz.systems.rollouts.helps koderz_tracker
"""
MODULES = """
_strptime certifi modal koderz.systems.modal.admin koderz.systems.modal.engine koderz.sandbox.contained
koderz.sandbox.judge.pool koderz.sandbox.process koderz.systems.workspaces.local
koderz.systems.long_context.wasm.session koderz.systems.rollouts.suite koderz.systems.patches.suite
koderz.testing.server koderz.testing.streaming koderz_tracker.credentials filelock
importlib.metadata jinja2 scipy.stats tenacity tomllib
"""
_MOST_BYTES = 1 << 17  # of a request
_COMMAND = """#!{python} -SE
import sys

sys.path.insert(0, {root!r})
from tests.forks import become_fork

become_fork({address!r}, ["koderz", *sys.argv[1:]])
"""


class Fork:
    """A process that was forked, to be used as a `subprocess.Popen` whose output is text."""

    def __init__(self, ending: socket.socket, stdout: IO[str] | None = None, stderr: IO[str] | None = None) -> None:
        self.pid = int(ending.recv(64) or "the process that forks has ended")
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._ending = ending
        self._readers: list[threading.Thread] = []

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ending], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal. Raises TimeoutError."""
        if self.returncode is None:
            self._ending.settimeout(timeout)
            self.returncode = int(self._ending.recv(64))
            self._ending.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it prints, once it has ended. Raises TimeoutError."""
        printed = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            with stream:
                printed[number] = stream.read()

        streams = [(number, stream) for number, stream in enumerate((self.stdout, self.stderr)) if stream]
        self._readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()
        self.wait(timeout)
        for reader in self._readers:
            reader.join()
        return printed[0], printed[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def kill_group(self) -> None:
        """Kills it and its children, as nothing can be ended more abruptly, unless it is over."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills it if it goes on, and closes what it printed into."""
        self.kill_group()
        self.wait()
        for reader in self._readers:
            reader.join()
        for stream in filter(None, (self.stdout, self.stderr)):
            stream.close()


class Forks:
    """A process that forks others, to be used by one thread at a time. `site`: where koderz is, if not here."""

    def __init__(self, site: Path | None = None) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        threads = {"OPENBLAS_NUM_THREADS": "1"}  # a process with several threads is not one to fork
        path = os.pathsep.join(map(str, [*filter(None, [site]), Path(__file__).parents[1]]))
        environ = {**kept, **threads, "PYTHONWARNINGS": "error", "HOME": os.devnull, "PYTHONPATH": path}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")  # a name that the kernel chooses, which needs no file
        listener.listen()
        self._address = listener.getsockname()
        files = [theirs.fileno(), listener.fileno()]
        self._process: Fork | subprocess.Popen[bytes]
        if site:  # what koderz uses is loaded already, by the one that forks this one
            self._process = forks().run(["tests.forks", "0", "1"], Path("/"), environ, [*files, 2])
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", *map(str, files)],
                env=environ,
                cwd="/",  # not where there is another koderz
                stdin=subprocess.DEVNULL,
                pass_fds=files,
            )
        theirs.close()
        listener.close()
        atexit.register(self.close)

    def write_command(self, path: Path) -> None:
        """Make `path` a program that is `koderz`, but forked."""
        root = str(Path(__file__).parents[1])
        path.write_text(_COMMAND.format(python=sys.executable, root=root, address=self._address))
        path.chmod(0o755)

    def run(self, command: Sequence[str], folder: Path, environ: Mapping[str, str], streams: Sequence[int]) -> Fork:
        """Begins `python -m` with these words, and with three descriptors as its standard streams."""
        return _ask(self._socket, command, folder, environ, streams)

    def start(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Fork:
        """As `run`, with nothing to read and what it prints to be read here."""
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        forked = self.run(command, folder, environ, [nothing, to_out, to_err])
        for each in (nothing, to_out, to_err):
            os.close(each)
        forked.stdout, forked.stderr = open(out), open(err)  # noqa: PTH123, SIM115 # descriptors
        return forked

    def close(self) -> None:
        atexit.unregister(self.close)
        self._socket.close()
        self._process.wait()


@cache
def forks() -> Forks:
    """Of this process, which starts it when it is first asked for."""
    return Forks()


def become_fork(address: bytes, command: Sequence[str]) -> None:
    """End as a process that is forked by the one at `address`, with this one's folder, environment and streams."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as requests:
        requests.connect(address)
        forked = _ask(requests, command, Path.cwd(), os.environ, [0, 1, 2])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(forked.pid, number))
    code = forked.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _ask(
    requests: socket.socket, command: Sequence[str], folder: Path, environ: Mapping[str, str], streams: Sequence[int]
) -> Fork:
    request = json.dumps([list(command), str(folder), dict(environ)]).encode()
    assert len(request) < _MOST_BYTES
    ending, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(requests, [request], [theirs.fileno(), *streams])
    return Fork(ending)


def _serve(owner: socket.socket, listener: socket.socket) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("koderz", "koderz_tracker")]:
        del sys.modules[name]  # of another place, where this was forked itself
    from koderz.sandbox.linux.kernel import die_with_parent  # not above: whoever asks loads nothing of koderz

    _load()
    with owner, listener, selectors.DefaultSelector() as ready:
        ready.register(owner, selectors.EVENT_READ)
        ready.register(listener, selectors.EVENT_READ)
        asking = ready.register(os.pidfd_open(os.getppid()), selectors.EVENT_READ).fileobj
        while True:
            for key, _ in ready.select():
                if key.fileobj == asking:  # it has ended, and others may hold its end of the socket
                    return
                if key.data:
                    ready.unregister(key.fileobj)
                    _tell_end(key.fd, *key.data)
                    continue
                requests = owner
                if key.fileobj == listener:
                    requests, _ = listener.accept()
                data, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, 4)
                if requests is not owner:
                    requests.close()
                elif not data:
                    return
                command, folder, environ = json.loads(data)
                ending, *streams = files
                if not (child := os.fork()):
                    die_with_parent()
                    owner.close()
                    listener.close()
                    _become(command, folder, environ, streams)
                for stream in streams:
                    os.close(stream)
                os.write(ending, str(child).encode())
                ready.register(os.pidfd_open(child), selectors.EVENT_READ, (child, ending))


def _tell_end(pidfd: int, child: int, ending: int) -> None:
    os.close(pidfd)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with socket.socket(fileno=ending) as teller:
        teller.send(str(status).encode(), socket.MSG_NOSIGNAL)


def _load() -> None:
    for name in PACKAGES.split():
        if package := _imported(name):
            for found in pkgutil.iter_modules(package.__path__, f"{name}."):
                _imported(found.name)
    for name in MODULES.split():
        _imported(name)
    prices = importlib.import_module("koderz.models.prices")
    prices.could_spend(["simulated"], {"gpt-4o": (0.0, 0.0)})  # which loads those that are published
    gc.freeze()  # no collection of a forked process touches what is shared with it


def _imported(name: str) -> ModuleType | None:
    """The module; None where it is of a system that was deleted, or stands on one."""
    from koderz.settings.systems import OWN  # which who only asks for a fork has no need of

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in {f"koderz.systems.{system}" for system in OWN}:
            raise
        return None


def _become(command: Sequence[str], folder: str, environ: Mapping[str, str], streams: Sequence[int]) -> None:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 # descriptors
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # TMPDIR says where
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [*command]
    code = 1
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading._shutdown()  # type: ignore[attr-defined] # as an interpreter that ends does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
