"""Processes of `koderz` that are forked from one which has loaded it already: the same command, but it starts at once.

Each has its own session, folder, environment, arguments and standard streams, and ends as any process does. What
Python reads of the environment while it starts is what the first process was started with, but for PYTHONPATH.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

PRELOADED = ("koderz.cli", "koderz.runs", "koderz.engines", "koderz.models", "koderz.suites.code", "koderz.analysis")
_MOST_BYTES = 1 << 17  # of a request


class Forks:
    """A process that forks others. To be used by one thread at a time."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
            env={**environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self.close)

    def run(self, arguments: Sequence[str], folder: Path, environ: Mapping[str, str], streams: Sequence[int]) -> int:
        """Runs `koderz` with three descriptors as its standard streams; its exit code, or minus the signal."""
        request = json.dumps([list(arguments), str(folder), dict(environ)]).encode()
        assert len(request) < _MOST_BYTES
        socket.send_fds(self._socket, [request], list(streams))
        return int(json.loads(self._socket.recv(64)))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def forks() -> Forks:
    """Of this process, which starts it when it is first asked for."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return Forks({**kept, "PYTHONWARNINGS": "error", "HOME": os.devnull})


def _serve(requests: socket.socket) -> None:
    _load()
    while True:
        data, streams, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not data:
            return
        arguments, folder, environ = json.loads(data)
        if child := os.fork():
            for stream in streams:
                os.close(stream)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            requests.send(json.dumps(status).encode())
        else:
            requests.close()
            _become(arguments, folder, environ, streams)


def _load() -> None:
    for name in PRELOADED:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(module.name)


def _become(arguments: Sequence[str], folder: str, environ: Mapping[str, str], streams: Sequence[int]) -> None:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["koderz", *arguments]
    code = 1
    try:
        from koderz.__main__ import main

        main()
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
    _serve(socket.socket(fileno=int(sys.argv[1])))
