"""Serves the WASM manager on an address until it is stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from koderz.errors import KoderzError, Unreachable
from koderz.settings.paths import state_folder
from koderz.systems.long_context.wasm.cells import TOKEN_VARIABLE
from koderz.systems.long_context.wasm.image import Say
from koderz.systems.long_context.wasm.manager import Manager, ManagerLimits
from koderz.systems.long_context.wasm.session import Pool
from koderz_tracker.addresses import is_loopback

SHUTDOWN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a manager, and who may use it."""

    host: str = "127.0.0.1"
    port: int = 8080
    token: str = ""
    is_open: bool = False  # to everybody who reaches it, without a token
    hosts: tuple[str, ...] = ()  # names besides its own that requests may come to


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """A manager with the options of `koderz wasm serve`."""

    address: Address = field(default_factory=Address)
    workers: int = 0  # 0: one a core
    limits: ManagerLimits = field(default_factory=ManagerLimits)


def serve(
    offer: ManagerOptions, *, environ: Mapping[str, str], tell: Callable[[str], None], warn: Say
) -> None:
    """Serves until SIGTERM or Ctrl-C. Calls `tell` with the address once it answers, and `warn` with notices.

    Raises KoderzError for an address that anybody could use, Unreachable for one that can't be had, or without the
    extra.
    """
    where = offer.address
    if not is_loopback(where.host) and not where.token:
        if not where.is_open:
            raise KoderzError(
                f"--host {where.host} is reached from elsewhere, where code runs for whoever asks: give a --token (or "
                f"{TOKEN_VARIABLE}), or --open to let everybody in"
            )
        warn(
            f"WARNING: whoever reaches {where.host} runs code here, without a token; {TOKEN_VARIABLE} sets one"
        )
    asyncio.run(_served(offer, environ, tell, warn))


async def _served(
    offer: ManagerOptions, environ: Mapping[str, str], tell: Callable[[str], None], warn: Say
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    where = offer.address
    async with Pool("wasm", offer.workers or os.cpu_count() or 1, say=warn) as pool:
        manager = Manager(pool, offer.limits, token=where.token, hosts=(*where.hosts, where.host))
        runner = web.AppRunner(
            manager.application(),
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            handler_cancellation=True,
        )
        await runner.setup()
        try:
            try:
                await manager.gate.listen(runner, host=where.host, port=where.port)
            except OSError as error:
                taken = f"{where.host}:{where.port} can't be had ({error.strerror})"
                raise Unreachable(f"{taken}; choose another --port, 0 for any") from None
            port = runner.addresses[0][1]
            url = f"http://{f'[{where.host}]' if ':' in where.host else where.host}:{port}"
            note = _note(environ)
            with suppress(OSError):  # it serves all the same
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(json.dumps({"process": os.getpid(), "url": url}))
            tell(f"WASM manager on {url}")
            await stopping.wait()
            note.unlink(missing_ok=True)
        finally:
            await runner.cleanup()


def stop(environ: Mapping[str, str]) -> str:
    """Stops the manager that this user serves; returns its address. Raises Unreachable if there is none."""
    note = _note(environ)
    try:
        found = json.loads(note.read_text())
        process, url = int(found["process"]), str(found["url"])
        command = Path(f"/proc/{process}/cmdline")
        if command.exists() and b"wasm" not in command.read_bytes():
            raise ProcessLookupError  # the id is somebody else's by now
        os.kill(process, signal.SIGTERM)
    except (OSError, ValueError, KeyError, TypeError):
        note.unlink(missing_ok=True)
        raise Unreachable(
            "no WASM manager of yours is running; koderz wasm serve starts one"
        ) from None
    return url


def _note(environ: Mapping[str, str]) -> Path:
    """The file in which the serving process and its address stand for `stop`."""
    return state_folder(environ) / "wasm.json"
