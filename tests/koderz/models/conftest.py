"""A real server on loopback that answers as a test tells it to, and a clock that no test waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import respx

from koderz.models import Endpoint, Model, ModelName, Price
from koderz.models.limiter import Limiter
from koderz.models.pool import ModelPool
from koderz.models.providers import provider_of
from koderz.testing import routed
from koderz.types import Message

from .loopback import Routes, Server, serving

OWN = {"m": Price(0.0, 0.0), "claude-x": Price(0.0, 0.0)}


class Clock:
    """Time that passes only when someone sleeps."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


@dataclass
class Models:
    """Opens models at an endpoint."""

    base_url: str
    clock: Clock
    stack: AsyncExitStack
    pool: ModelPool = field(init=False)

    async def pooled(self, *, prices: dict[str, Price] | None = None, **endpoint: Any) -> ModelPool:
        """A pool whose waits are the clock's; prices are those of OWN unless others are given."""
        limiter = partial(Limiter, sleep=self.clock.sleep, now=self.clock.now)

        def endpoint_of(name: ModelName) -> Endpoint:
            given = {"base_url": self.base_url, "timeout": 60.0, **endpoint}
            return Endpoint(**{**given, "base_url": given["base_url"] or provider_of(name.provider).address})

        self.pool = ModelPool(endpoint_of, prices=OWN if prices is None else prices, limiter=limiter)
        return await self.stack.enter_async_context(self.pool)

    async def open(self, name: str = "openai/m", **endpoint: Any) -> Model:
        """A model of a pool of its own."""
        return (await self.pooled(**endpoint)).open(name)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """The loopback server, at `server.url`."""
    async with serving() as served:
        yield served


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def base_url(request: pytest.FixtureRequest) -> str:
    """Where models are asked: at the test's routes, or else at its loopback server."""
    if "router" in request.fixturenames:
        return Routes.url
    server: Server = request.getfixturevalue("server")
    return server.url


@pytest.fixture
async def models(base_url: str, clock: Clock) -> AsyncIterator[Models]:
    """Opens models there."""
    async with AsyncExitStack() as stack:
        yield Models(base_url, clock, stack)


@pytest.fixture
async def router() -> AsyncIterator[respx.MockRouter]:
    """The transport of all clients, in place of `server`: a router of respx, which has no routes yet."""
    with routed() as mounted:
        yield mounted


@pytest.fixture
def routes(router: respx.MockRouter) -> Routes:
    """The router with routes that answer at any address, and are told and asked as `server` is."""
    return Routes(router)


@pytest.fixture
def prompt() -> list[Message]:
    return [{"role": "user", "content": "Write f."}]
