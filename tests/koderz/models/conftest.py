"""A real server on loopback that answers as a test tells it to, and a clock that no test waits for."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from koderz.models import Endpoint, Model, ModelName, Price
from koderz.models.limiter import Limiter
from koderz.models.pool import ModelPool
from koderz.models.providers import provider_of
from koderz.types import Message

from .loopback import Server, self_signed, serving

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
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """The loopback server, at `server.url`."""
    async with serving() as served:
        yield served


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def models(server: Server, clock: Clock) -> AsyncIterator[Models]:
    """Opens models at the loopback server."""
    async with AsyncExitStack() as stack:
        yield Models(server.url, clock, stack)


class _Here(AbstractResolver):
    """Every host is found at one port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = ResolveResult(hostname=host, host="127.0.0.1", port=self._port, family=family, proto=0, flags=0)
        return [found]

    async def close(self) -> None:
        """Holds nothing."""


@pytest.fixture
async def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Server]:
    """Providers that are not on this machine: a server that every host of an https URL leads to."""
    certificate, context = self_signed(tmp_path, "api.openai.com", "api.anthropic.com", "elsewhere.example")
    async with serving(context) as served:
        here = partial(aiohttp.TCPConnector, resolver=_Here(urlsplit(served.url).port or 0))
        monkeypatch.setattr("koderz.models.transport.aiohttp.TCPConnector", here)
        trusting = ssl.create_default_context(cafile=certificate)
        monkeypatch.setattr("koderz.models.transport.trusted_certificates", lambda: trusting)
        yield served


@pytest.fixture
def prompt() -> list[Message]:
    return [{"role": "user", "content": "Write f."}]
