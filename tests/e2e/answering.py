"""A model server that answers by a function, for commands that run in processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from koderz.suites.suite import SuiteSource
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.suite import DatasetSuite
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


@cache
def _labels() -> DatasetSuite:
    options = DatasetOptions(demo_datasets=("labels",), train_items=20, validation_items=20, test_items=30)
    return DatasetSuite.load(SuiteSource(None, options))


def labelled(request: Request) -> str:
    """The simulated model's reply to items of the dataset `labels`."""
    return _labels().simulate(request.messages, request.sampling)
