"""Real servers for tests of sinks: MLflow's own, and PostgreSQL. All on loopback, on ports that are free."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_START_SECONDS = 180.0
_NOBODY = 65534


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class MlflowServer:
    """`mlflow server` on SQLite, which can be killed and started again."""

    def __init__(self, folder: Path, store: str | None = None) -> None:
        self._folder, self._port = folder, free_port()
        self._store = store or f"sqlite:///{folder / 'server.db'}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns once it answers."""
        own = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self._port)]
        command += ["--backend-store-uri", self._store, "--artifacts-destination", str(self._folder / "artifacts")]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **own},
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, "mlflow server ended"
            assert time.monotonic() < deadline, "mlflow server doesn't answer"
            time.sleep(0.2)

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of a new database on a server of its own; the test is skipped where it or its driver is missing."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL isn't installed here")
    pytest.importorskip("psycopg2", reason="PostgreSQL's driver for Python isn't installed here")
    port = free_port()
    # In no folder of pytest's, which each of its sessions closes to other users; PostgreSQL refuses to run as root.
    with TemporaryDirectory(prefix="koderz-postgresql-") as data:
        user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        if user:
            os.chown(data, _NOBODY, _NOBODY)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
        initdb = [str(programs / "initdb"), "-D", data, "-U", "koderz", "--auth", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, **quiet, **user)  # type: ignore[call-overload]
        server = subprocess.Popen(
            [str(programs / "postgres"), "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", data],
            **quiet,  # type: ignore[call-overload]
            **user,
        )
        try:
            _wait_for(port, server)
            yield f"postgresql+psycopg2://koderz@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def _programs() -> Path | None:
    if found := shutil.which("initdb"):
        return Path(found).parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return installed[-1].parent if installed else None


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    import psycopg2

    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg2.connect(host="127.0.0.1", port=port, user="koderz", dbname="postgres").close()
        except psycopg2.OperationalError:
            assert server.poll() is None, "PostgreSQL ended"
            assert time.monotonic() < deadline, "PostgreSQL doesn't answer"
            time.sleep(0.1)
        else:
            return
