"""`modal deploy benchmark_worker.py` is `koderz modal deploy`: the app whose containers run experiments."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import modal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from koderz.errors import KoderzError
from koderz.systems.modal.admin import describe
from koderz.systems.modal.app import app, volume
from koderz.systems.modal.cloud import require_access, spoken

__all__ = ["app"]


async def _say_what_is_deployed() -> None:
    await require_access()
    with spoken("the volume of the app"):
        await volume.hydrate.aio()
        await describe()


if modal.is_local() and "deploy" in sys.argv:
    try:
        asyncio.run(_say_what_is_deployed())
    except KoderzError as error:
        sys.stderr.write(f"koderz: {error}\n")
        sys.exit(error.exit_code)
