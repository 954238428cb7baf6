"""The gRPC service: each of Modal's calls goes to the method of that name, or is refused by name."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream

CALLER: ContextVar[str] = ContextVar("container", default="")  # the container that calls; empty for a client
CONTAINER_HEADER = "x-koderz-container"
UNGUARDED = frozenset({"ClientHello", "AuthTokenGet"})

_Stream: TypeAlias = Stream[Any, Any]


@dataclass(slots=True)
class Weather:
    """What goes wrong on purpose; change it while the server runs."""

    latency: float = 0.0  # seconds before every answer
    refuse_token: bool = False
    drop: Counter[str] = field(default_factory=Counter)  # how many of the next calls of a name to cut off
    fail: dict[str, Status] = field(default_factory=dict)  # names that are answered with an error


class Service:
    """Serves one of Modal's protocols out of the methods of `subjects`.

    `FunctionGetOutputs` is answered by the method `function_get_outputs` of whichever subject has one: a coroutine
    for one reply, an async generator for a stream of them. `counts` says how often each was called. What no
    subject has is refused as unimplemented and counted in `missing`, so that a new SDK fails loudly.
    """

    def __init__(
        self, base: type[Any], subjects: Sequence[object], weather: Weather, admit: Callable[[Mapping[str, Any]], str]
    ) -> None:
        self._base, self._subjects, self._weather, self._admit = base, subjects, weather, admit
        self.counts: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()

    def __mapping__(self) -> dict[str, Handler]:
        known: dict[str, Handler] = self._base.__mapping__(_Anything())
        return {
            path: Handler(self._handler(path.rpartition("/")[2]), one.cardinality, one.request_type, one.reply_type)
            for path, one in known.items()
        }

    def _handler(self, name: str) -> Callable[[_Stream], Awaitable[None]]:
        method = self._method(name)

        async def handle(stream: _Stream) -> None:
            self.counts[name] += 1
            if method is None:
                self.missing[name] += 1
                raise GRPCError(Status.UNIMPLEMENTED, f"the loopback Modal has no {name}")
            await self._meet_weather(name, stream)
            await _answer(method, stream)

        return handle

    def _method(self, name: str) -> Callable[..., Any] | None:
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        return next((getattr(one, snake) for one in self._subjects if hasattr(one, snake)), None)

    async def _meet_weather(self, name: str, stream: _Stream) -> None:
        weather = self._weather
        if weather.latency:
            await asyncio.sleep(weather.latency)
        if weather.drop[name] > 0 or weather.drop["*"] > 0:
            weather.drop[name if weather.drop[name] > 0 else "*"] -= 1
            raise GRPCError(Status.UNAVAILABLE, "connection lost")
        if name in weather.fail:
            raise GRPCError(weather.fail[name], f"{name} fails on demand")
        CALLER.set("" if name in UNGUARDED else self._admit(stream.metadata or {}))


async def _answer(method: Callable[..., Any], stream: _Stream) -> None:
    if stream._cardinality is Cardinality.STREAM_UNARY:
        await stream.send_message(await method(_requests(stream)))
        return
    request = await stream.recv_message()
    replies = method(request)
    if isinstance(replies, AsyncIterator):
        async for reply in replies:
            await stream.send_message(reply)
    else:
        await stream.send_message(await replies)


async def _requests(stream: _Stream) -> AsyncIterator[Any]:
    while (request := await stream.recv_message()) is not None:
        yield request


class _Anything:
    """Stands for an implementation where only the names of the calls are wanted."""

    def __getattr__(self, name: str) -> str:
        return name
