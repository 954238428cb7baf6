"""`koderz judge serve`: a judge over HTTP, for rewards in training."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import say, warn
from koderz.cli.flags import Trust
from koderz.cli.options import with_settings
from koderz.errors import KoderzError
from koderz.settings.schema import OF_JUDGING

if TYPE_CHECKING:
    from koderz.settings.schema import Settings
    from koderz.systems.rewards.service import ServiceAddress

_OPTIONS = (*(name for name in OF_JUDGING if name not in ("suite", "dataset", "judges")), "results")
_LEAST_TOKEN = 16  # characters


@with_settings(*_OPTIONS)
def serve(
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASKS...", help="Suites, SUITE=FILE, or files in HumanEval's format."
        ),
    ],
    given: dict[str, Any],
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address.")] = "127.0.0.1:8600",
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The variable that holds the token. Without it only loopback is served.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Programs judged at once. Default: one a core.", min=1, max=256
        ),
    ] = None,
    queue: Annotated[
        int,
        typer.Option(metavar="N", help="Replies that may wait; beyond it requests get 429.", min=1),
    ] = 4096,
    max_reply: Annotated[
        int, typer.Option(metavar="BYTES", help="The longest reply.", min=1)
    ] = 1_000_000,
    record: Annotated[
        bool,
        typer.Option("--record", help="Write each score to a journal in the results folder first."),
    ] = False,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUITE|FILE", help="Tasks that are kept for measuring, and refused; repeatable."
        ),
    ] = None,
    trust_config: Trust = False,
) -> None:
    """Serve scores of replies over HTTP until SIGTERM or Ctrl-C; what was taken by then is still answered.

    Where clients find it: the first line on standard output. docs/how-to/train.md has the requests, and trainers.

    Examples:
        koderz judge serve humaneval --http 127.0.0.1:8080
    """
    from koderz.engines.sources import read_sources, require_sandbox

    sources = read_sources(given, names=_OPTIONS, schema=None, trust_config=trust_config)
    require_sandbox(sources.settings, given)
    kept = [*(held_out or ()), *sources.config.held_out]
    address = _address(http, token_env, os.environ)
    wanted = {"workers": workers, "queue": queue, "record": record, "held_out": kept}
    asyncio.run(_serve(tasks, address, sources.settings, max_reply, wanted))


async def _serve(
    tasks: list[str],
    address: ServiceAddress,
    settings: Settings,
    max_reply: int,
    wanted: Mapping[str, Any],
) -> None:
    from koderz.systems.rewards.judging import open_judge
    from koderz.systems.rewards.service import RewardService

    async with open_judge(*tasks, settings=settings, **wanted) as judge:
        for note in judge.notes:
            warn(f"note: {note}")
        if judge.folder:
            warn(f"recorded in {judge.folder}")
        await RewardService(judge, address, max_reply=max_reply).serve(say)


def _address(http: str, token_env: str | None, environ: Mapping[str, str]) -> ServiceAddress:
    from koderz.systems.rewards.service import ServiceAddress
    from koderz_tracker.addresses import is_loopback

    host, colon, port = http.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise KoderzError(f"--http {http}: write HOST:PORT, such as 127.0.0.1:8600")
    if token_env is None:
        if not is_loopback(host):
            raise KoderzError(
                f"--http {http}: without --token-env only this machine is served, at 127.0.0.1"
            )
        return ServiceAddress(host, int(port))
    token = environ.get(token_env, "")
    if len(token) < _LEAST_TOKEN:
        raise KoderzError(
            f"--token-env {token_env}: it has to hold a token of at least {_LEAST_TOKEN} characters"
        )
    return ServiceAddress(host, int(port), token)
