"""`python -m tests.loopback_modal`: the loopback Modal as a command."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.loopback_modal.server import ModalServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; 2 for options that can't be."""
    options = _parser().parse_args(arguments)
    try:
        _serve(_server(options))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _server(options: argparse.Namespace) -> ModalServer:
    return ModalServer(
        folder=options.folder,
        secrets=dict(_secret(text) for text in options.secret),
        foreign_volumes=set(options.foreign_volume),
        max_containers=options.max_containers,
        latency=options.latency_ms / 1000,
        port=options.port,
    )


def _secret(text: str) -> tuple[str, dict[str, str]]:
    """`NAME:KEY=VALUE,…` as a secret. Raises ValueError for what isn't of that form."""
    name, colon, pairs = text.partition(":")
    if not colon or not all("=" in pair for pair in filter(None, pairs.split(","))):
        raise ValueError(f"not a secret: {text!r}; write llm-api-keys:OPENAI_API_KEY=x,OTHER=y")
    return name, dict(pair.split("=", 1) for pair in pairs.split(",") if pair)


def _serve(server: ModalServer) -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    with server:
        for name, value in server.environment.items():
            sys.stdout.write(f"export {name}={value}\n")
        sys.stdout.flush()
        stopped.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.loopback_modal",
        description="A loopback Modal: deploy apps and run their functions here, without an account. Prints the "
        "variables to set in another terminal, then nothing; ends on SIGTERM or SIGINT.",
    )
    add = parser.add_argument
    add("--port", type=int, default=0, help="0 takes a free one (default: %(default)s)")
    add("--folder", type=Path, metavar="DIR", help="keeps its state there, to go on with later (default: forgets)")
    add("--secret", action="append", default=[], metavar="NAME:KEY=VALUE,…", help="a secret that is there; repeatable")
    add("--foreign-volume", action="append", default=[], metavar="NAME", help="a volume of somebody else; repeatable")
    add("--max-containers", type=int, default=4, metavar="N", help="at once for a function (default: %(default)s)")
    add("--latency-ms", type=float, default=0.0, metavar="MS", help="of every answer (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
