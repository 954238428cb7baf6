"""`koderz ui`: MLflow's UI, served on this project's own store."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Annotated

import typer

from koderz.cli.console import say, warn
from koderz.cli.flags import Results
from koderz.errors import KoderzError, Unreachable
from koderz.settings.installation import dependency_command
from koderz_tracker.runs import read_plan, run_folders
from koderz_tracker.sinks.mlflow.target import (
    is_server,
    page_of,
    store_file,
    target_of,
    tracking_uri,
    without_password,
)
from koderz_tracker.sinks.standing import standing_of

_DEFAULT_PORT = 5000

_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # two processes in place of nine
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "PYTHONWARNINGS": "ignore",
}
_START_SECONDS = 180.0
_STOP_SECONDS = 5.0
_LOOK_EVERY, _TELL_EVERY = 0.2, 5.0  # seconds
_LAST_RUNS = 50  # that are looked at for the page of the latest


def ui(
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Default: 5000, or a free one if that is taken.", min=0, max=65535
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="H", help="Address to bind; 0.0.0.0 exposes it to the network.")
    ] = "127.0.0.1",
    open_: Annotated[
        bool, typer.Option("--open", help="Open the latest run in a browser.")
    ] = False,
    *,
    results: Results,
) -> None:
    """Serve MLflow's UI on the runs in the results folder until Ctrl-C, and print the link to the latest.

    With MLFLOW_TRACKING_URI set to a server, only the links are printed: its UI is there already.

    Examples:
        koderz ui
        koderz ui --port 5001 --open
    """
    page = _latest_page(results, os.environ)
    uri = tracking_uri(results, os.environ)
    if is_server(uri) and (server := without_password(uri).rstrip("/")):
        _show(server, page, open_=open_)
        return
    if find_spec("mlflow") is None:
        raise Unreachable(
            f"the UI is MLflow's, which isn't installed; run: {dependency_command('mlflow')}"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), _served(results, host, port, os.environ) as address:
        _show(address, page, open_=open_)
        warn("Ctrl-C stops it")
        signal.pause()


def _show(address: str, page: str | None, *, open_: bool) -> None:
    say(f"MLflow UI: {address}")
    if page:
        say(f"latest run: {address}/{page}")
    if open_:
        webbrowser.open(f"{address}/{page or ''}")


def _latest_page(results: Path, environ: Mapping[str, str]) -> str | None:
    """The path within the UI of the page of the latest run that is in MLflow."""
    for folder in reversed(run_folders(results)[-_LAST_RUNS:]):
        mlflow = standing_of(folder).get("mlflow")
        experiment = mlflow.options.get("mlflow_experiment") if mlflow else None
        if page := page_of(
            folder, target_of(results, read_plan(folder).suite, environ, experiment).name
        ):
            return page
    return None


@contextmanager
def _served(
    results: Path, host: str, port: int | None, environ: Mapping[str, str]
) -> Iterator[str]:
    """Serves the UI while the block runs; yields its address once it answers.

    `port` None: 5000, or a free one where that is taken. Raises KoderzError where there is no store yet or the port is
    taken, Unreachable where MLflow doesn't start.
    """
    uri = tracking_uri(results, environ)
    if not environ.get("MLFLOW_TRACKING_URI") and not store_file(results).exists():
        raise KoderzError(
            f"{results} has no MLflow store yet; make a run (koderz benchmark 0 10), or: koderz sync --all"
        )
    found = _bound(host, _DEFAULT_PORT if port is None else port)
    if found is None and port is not None:
        raise KoderzError(f"--port {port} is taken; choose another, or leave it out")
    port = found or _bound(host, 0) or 0
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-P", "-m", "koderz.cli.ui", host, str(port)]
        artifacts = (results.resolve() / "mlartifacts").as_uri()
        # a password isn't for `ps`
        own = {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_DEFAULT_ARTIFACT_ROOT": artifacts}
        server = subprocess.Popen(
            command,
            env={**environ, **_ENVIRONMENT, **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is ours to hand on
        )
        try:
            address = f"http://{_reachable(host)}:{port}"
            _wait(server, address, log)
            yield address
        finally:
            # Ends the server with all its processes.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(server.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    server.wait(_STOP_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def _bound(host: str, port: int) -> int | None:
    """The port, or a free one for 0; None if it is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror:
            raise KoderzError(f"--host {host}: there is no such address here") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise KoderzError(f"--host {host}: port {port}: {error.strerror}") from None
        return int(probe.getsockname()[1])


def _reachable(host: str) -> str:
    """The host name by which a browser on this machine can reach the server."""
    known = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}  # noqa: S104 it is what --host may say
    return known.get(host, f"[{host}]" if ":" in host else host)


def _wait(server: subprocess.Popen[str], address: str, log: IO[str]) -> None:
    """Waits until the server answers, and says so at once and every 5 s. Raises Unreachable where it doesn't start."""
    began, tell_at = time.monotonic(), 0.0
    while not _answers(address):
        passed = time.monotonic() - began
        if server.poll() is not None:
            log.seek(0)
            lines = [line.strip() for line in log.read().splitlines() if line.strip()]
            raise Unreachable(
                f"MLflow's UI didn't start: {lines[-1] if lines else 'it said nothing'}"
            )
        if passed > _START_SECONDS:
            raise Unreachable(
                f"MLflow's UI didn't answer at {address} within {_START_SECONDS:.0f} s"
            )
        if passed >= tell_at:
            tell_at = passed + _TELL_EVERY
            warn(
                f"starting MLflow's UI… {passed:.0f} s" if passed >= 1 else "starting MLflow's UI…"
            )
        time.sleep(_LOOK_EVERY)


def _answers(address: str) -> bool:
    from koderz.connections import certificates, httpx

    with suppress(httpx.TransportError):  # no proxy is between this machine and itself
        return httpx.get(
            f"{address}/health", verify=certificates(address), timeout=2, trust_env=False
        ).is_success
    return False


def _serve(host: str, port: str) -> None:
    """Runs MLflow's server in this process; its own command would load all of MLflow and start a second process.

    How that one hands on what to serve is MLflow's own business; a version that does it otherwise gets its command.
    """
    import uvicorn  # which MLflow looks for, to know that it is a server

    store, artifacts = (
        os.environ["MLFLOW_BACKEND_STORE_URI"],
        os.environ["MLFLOW_DEFAULT_ARTIFACT_ROOT"],
    )
    try:
        from mlflow.server import constants
        from mlflow.server.fastapi_app import app
        from mlflow.server.handlers import initialize_backend_stores

        variables = {
            constants.BACKEND_STORE_URI_ENV_VAR: store,
            constants.REGISTRY_STORE_URI_ENV_VAR: store,
            constants.ARTIFACT_ROOT_ENV_VAR: artifacts,
            constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts,
            constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        }
    except (ImportError, AttributeError):
        command = ["-P", "-m", "mlflow", "server", "--host", host, "--port", port, "--workers", "1"]
        os.execv(sys.executable, [sys.executable, *command])  # noqa: S606
    os.environ.update(variables)
    initialize_backend_stores(store, store, artifacts)
    uvicorn.run(app, host=host, port=int(port), log_level="warning")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
