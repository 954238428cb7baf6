"""A process that outlives koderz and ends the sandboxes that it left behind: APP TAG VALUE.

Its stdin ends with koderz. Where a byte comes before, there is nothing to be done.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress


def main(arguments: Sequence[str]) -> None:
    """Waits for koderz to end. `arguments`: the app's id, and the name and value of the sandboxes' tag."""
    app, name, value = arguments
    if not os.read(0, 1):
        from modal import exception

        with suppress(exception.Error, OSError):
            asyncio.run(end_sandboxes(app, {name: value}))


async def end_sandboxes(
    app: str, tags: Mapping[str, str], chosen: Callable[[Mapping[str, str]], bool] | None = None
) -> None:
    """Ends the sandboxes of an app, given by its id, that have these tags; `chosen` decides by all tags of each."""
    import modal

    async for sandbox in modal.Sandbox.list.aio(app_id=app, tags=dict(tags)):
        if chosen is None or chosen(await sandbox.get_tags.aio()):
            await sandbox.terminate.aio()
