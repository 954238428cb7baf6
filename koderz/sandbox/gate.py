"""The gate of an HTTP server for untrusted clients: it limits connections, time and bytes held at once."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

CONNECTIONS = 64
SECONDS = 60.0  # until a request has to be whole, and that a connection may be idle
_SWEEPS = 12  # in that time


class GateFullError(web.HTTPRequestEntityTooLarge):
    """All requests together hold as many bytes as the server takes; this one may come again later."""


class Gate:
    """Limits what clients of one aiohttp application can hold open.

    Connections beyond `connections` are closed at once. One on which no request is being answered is closed after
    `seconds`, also where half of a header was sent.
    """

    def __init__(
        self, *, held: int, connections: int = CONNECTIONS, seconds: float = SECONDS
    ) -> None:
        """`held`: the total bytes of the bodies of all requests that aren't answered yet."""
        self._connections, self._seconds, self._most = connections, seconds, held
        self._held = 0
        self._bodies: dict[int, int] = {}  # bytes held, by the id of the request
        self._answering: set[Any] = set()  # connections
        self._waiting: dict[Any, float] = {}  # connections, and since when
        self._server: web.Server | None = None

    def guard(self, app: web.Application) -> None:
        """Puts the gate before all handlers of the application."""
        app.middlewares.insert(0, self._counted)
        app.cleanup_ctx.append(self._sweeping)

    async def listen(self, runner: web.AppRunner, **where: Any) -> None:
        """Opens the gate on an address, given as for `loop.create_server`: `host` and `port`, or `sock`."""
        self._server = runner.server
        await _Site(runner, self._connection, where).start()

    async def read(self, request: web.Request, most: int) -> bytearray:
        """The whole body.

        Raises HTTPRequestEntityTooLarge, HTTPRequestTimeout if it isn't complete in time, and HTTPBadRequest if it
        isn't encoded as it says, or its client is gone.
        """
        if (request.content_length or 0) > most:
            raise web.HTTPRequestEntityTooLarge(most, request.content_length or 0)
        body = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                async for piece in request.content.iter_any():
                    self._hold(request, len(piece))
                    body += piece
                    if len(body) > most:
                        raise web.HTTPRequestEntityTooLarge(most, len(body))
        except TimeoutError:
            raise web.HTTPRequestTimeout(reason="the request wasn't whole in time") from None
        except (web.RequestPayloadError, ConnectionError) as error:
            raise web.HTTPBadRequest(
                reason=f"the body can't be read: {' '.join(str(error).split())}"
            ) from None
        return body

    def _hold(self, request: web.Request, size: int) -> None:
        if self._held + size > self._most:
            raise GateFullError(self._most, self._held + size)
        self._held += size
        self._bodies[id(request)] = self._bodies.get(id(request), 0) + size

    @web.middleware
    async def _counted(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._answering.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._answering.discard(request.protocol)
            self._held -= self._bodies.pop(id(request), 0)

    def _connection(self) -> asyncio.BaseProtocol:
        assert self._server
        return _Closed() if len(self._server.connections) >= self._connections else self._server()

    async def _sweeping(self, _: web.Application) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(self._seconds / _SWEEPS)
                self._sweep(asyncio.get_running_loop().time())

        sweeping = asyncio.create_task(sweep())
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping

    def _sweep(self, now: float) -> None:
        idle = (
            [each for each in self._server.connections if each not in self._answering]
            if self._server
            else []
        )
        self._waiting = {each: self._waiting.get(each, now) for each in idle}
        for connection, since in self._waiting.items():
            if now - since >= self._seconds:
                connection.force_close()


def is_same(shown: str, secret: str) -> bool:
    """Whether a header (any bytes) equals the secret, compared in constant time."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), secret.encode())


class _Closed(asyncio.Protocol):
    """The connection exceeds the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Site(web.BaseSite):
    """An address of an aiohttp server whose connections are made by a given function."""

    def __init__(
        self, runner: web.AppRunner, connection: Callable[[], asyncio.BaseProtocol], where: Any
    ) -> None:
        super().__init__(runner)
        self._connection, self._where = connection, where

    @property
    def name(self) -> str:
        return "a gate"

    async def start(self) -> None:
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._connection, **self._where
        )
