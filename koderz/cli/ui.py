"""`koderz ui`: MLflow's UI on this project's runs."""

from __future__ import annotations

import os
import signal
import webbrowser
from contextlib import suppress
from types import FrameType
from typing import Annotated, NoReturn

import typer

from koderz.cli.console import say, warn
from koderz.cli.flags import Results


def ui(
    port: Annotated[
        int | None, typer.Option(metavar="N", help="Default: 5000, or a free one if that is taken.", min=0, max=65535)
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="H", help="Address to bind; 0.0.0.0 exposes it to the network.")
    ] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open", help="Open the latest run in a browser.")] = False,
    *,
    results: Results,
) -> None:
    """Serve MLflow's UI on the runs in the results folder until Ctrl-C, and print the link to the latest.

    With MLFLOW_TRACKING_URI set to a server, only the links are printed: its UI is there already.
    """
    from koderz.ui import latest_page, remote_server, served

    page = latest_page(results, os.environ)
    if server := remote_server(results, os.environ):
        _show(server, page, open_=open_)
        return
    signal.signal(signal.SIGTERM, _interrupt)
    with suppress(KeyboardInterrupt), served(results, host, port, os.environ, waiting=_tell_waiting) as address:
        _show(address, page, open_=open_)
        warn("Ctrl-C stops it")
        signal.pause()


def _show(address: str, page: str | None, *, open_: bool) -> None:
    say(f"MLflow UI: {address}")
    if page:
        say(f"latest run: {address}/{page}")
    if open_:
        webbrowser.open(f"{address}/{page or ''}")


def _tell_waiting(seconds: float) -> None:
    warn(f"starting MLflow's UI… {seconds:.0f} s" if seconds >= 1 else "starting MLflow's UI…")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 a signal handler's form
    raise KeyboardInterrupt
