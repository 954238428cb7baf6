"""A model server that answers by a function, for commands that run in processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from koderz.testing import ModelServer
from koderz.testing.wire import Request
from koderz.types import Message
from tests.conftest import PATIENCE


@contextmanager
def answering(
    reply: Callable[[Request], str | Awaitable[str]], latency: float, server: Callable[..., ModelServer] = ModelServer
) -> Iterator[tuple[dict[str, str], list[Sequence[Message]]]]:
    """A server that replies after so many seconds; the variables by which it is found, and what it has been asked."""
    asked: list[Sequence[Message]] = []
    ready, over = threading.Event(), threading.Event()
    environ: dict[str, str] = {}

    def answer(request: Request) -> str | Awaitable[str]:
        asked.append(request.messages)
        return reply(request)

    async def serve() -> None:
        async with server(answer, latency=latency) as begun:
            environ.update(OPENAI_BASE_URL=f"{begun.url}/v1", OPENAI_API_KEY="sk-test")
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield environ, asked
    finally:
        over.set()
        thread.join()
