"""The WASM manager: sessions over HTTP, as `koderz wasm serve` offers them."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from aiohttp import web

from koderz._version import __version__
from koderz.errors import Fault
from koderz.sandbox.wasm.bodies import (
    BODY_LIMIT,
    NewCell,
    NewSession,
    body_of,
    detail,
    host_of,
    problem,
    require_json,
    result_of,
    stored,
    variable_of,
)
from koderz.sandbox.wasm.cells import MEMORY_MB, TIMEOUT, SessionBusyError, SessionFullError, SubCall
from koderz.sandbox.wasm.pool import Pool
from koderz.sandbox.wasm.session import Session

LOCAL = ("127.0.0.1", "localhost", "::1")
_ALIVE_SECONDS = 10.0  # after which a stream of events that says nothing gets a line break
_LEAST_ROOM_MB = 64  # for a new session


@dataclass(frozen=True, slots=True)
class Limits:
    """What a manager gives away."""

    sessions: int = 32
    ttl: float = 3600.0  # seconds without a request, after which a session is dropped
    session_mb: int = MEMORY_MB
    memory_mb: int = 4096  # of all workers together


@dataclass(slots=True)
class Lease:
    """A session with what only the manager knows of it."""

    session: Session
    ttl: float
    folder: Path  # of the variables that were put into it
    calls: dict[int, asyncio.Future[list[str]]] = field(default_factory=dict)  # that wait for an answer
    numbers: Any = field(default_factory=lambda: itertools.count(1))


class Manager:
    """The application, and the sessions that it has given away."""

    def __init__(self, pool: Pool, limits: Limits, *, token: str = "", hosts: Iterable[str] = ()) -> None:
        """`hosts`: names besides those of this machine that requests may come to."""
        self._pool, self._limits, self._token = pool, limits, token
        self._hosts = frozenset([*LOCAL, *hosts])
        self._leases: dict[str, Lease] = {}
        self._folder = TemporaryDirectory(prefix="koderz-wasm-", ignore_cleanup_errors=True)
        self._made = itertools.count(1)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._checked], client_max_size=BODY_LIMIT)
        app.router.add_get("/health", self._health)
        app.router.add_get("/sessions", self._list)
        for noun in ("/session", "/sessions"):
            app.router.add_post(noun, self._create)
            app.router.add_delete(noun + "/{id}", self._delete)
            app.router.add_post(noun + "/{id}/execute", self._execute)
            app.router.add_post(noun + "/{id}/fork", self._fork)
            app.router.add_post(noun + "/{id}/calls/{number}", self._answer)
            app.router.add_put(noun + "/{id}/variables/{name}", self._put)
            app.router.add_get(noun + "/{id}/variables/{name}", self._get)
        app.cleanup_ctx.append(self._sweeping)
        return app

    # Who may ask, and how what goes wrong is told

    @web.middleware
    async def _checked(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if refused := self._refused(request):
                return refused
            return await handler(request)
        except web.HTTPException as error:
            return detail(error.status, error.reason)
        except SessionBusyError as error:
            return detail(409, str(error))
        except SessionFullError as error:
            return detail(413, str(error))
        except Fault as error:
            return detail(503, str(error))

    def _refused(self, request: web.Request) -> web.Response | None:
        said = request.headers.get("Authorization", "").removeprefix("Bearer ")
        proven = bool(self._token) and hmac.compare_digest(said.encode(), self._token.encode())
        if "Origin" in request.headers:
            return detail(403, "requests of web pages are refused")
        if not proven and host_of(request.headers.get("Host", "")) not in self._hosts:
            return detail(403, "no requests are taken under this Host; --allow-host NAME allows one")
        if self._token and not proven and request.path != "/health":
            return detail(401, "a token is needed: Authorization: Bearer TOKEN")
        return None

    # What may be asked

    async def _health(self, _: web.Request) -> web.Response:
        found = {"status": "ok", "version": __version__, "wasm": self._pool.kind == "wasm"}
        return web.json_response({**found, "sessions": len(self._leases)})

    async def _list(self, request: web.Request) -> web.Response:
        if request.query.get("detail") != "1":
            return web.json_response({"sessions": [*self._leases]})
        return web.json_response({"sessions": [_about(lease) for lease in self._leases.values()]})

    async def _create(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, NewSession, NewSession())
        name = wanted.session_id or self._pool.new_id()
        if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 100:
            raise problem(422, "session_id: letters, digits, - and _ alone")
        most = self._limits.session_mb
        if not (wanted.memory_mb is None or 16 <= wanted.memory_mb <= most):
            raise problem(422, f"memory_mb: 16 to {most}")
        if not (wanted.ttl_s is None or 0 < wanted.ttl_s <= self._limits.ttl):
            raise problem(422, f"ttl_s: more than 0, and at most {self._limits.ttl:g}")
        if name in self._leases:
            raise problem(409, f"Session {name} is there already")
        self._require_room()
        session = self._pool.open(name, memory_mb=wanted.memory_mb or most, seed=wanted.seed)
        self._lease(session, wanted.ttl_s or self._limits.ttl)
        try:
            await session.start()
        except BaseException:
            await self._drop(name)
            raise
        return web.json_response({"session_id": name}, status=201 if request.path == "/sessions" else 200)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._drop(request.match_info["id"])
        return web.json_response({"status": "ok"})

    async def _fork(self, request: web.Request) -> web.Response:
        lease = self._found(request)
        self._require_room()
        session = lease.session.fork()
        self._lease(session, lease.ttl)
        return web.json_response({"session_id": session.id})

    async def _put(self, request: web.Request) -> web.Response:
        lease, name = self._found(request), variable_of(request)
        kind = "json" if request.content_type == "application/json" else "text"
        most = lease.session.memory // 2 if kind == "text" else BODY_LIMIT
        self._require_memory()
        if (request.content_length or 0) > most:
            raise problem(413, f"more than {most:,} bytes, the most that a variable may have")
        file = lease.folder / str(next(self._made))
        try:
            size = await stored(request, file, most)
            if kind == "json":
                await asyncio.to_thread(require_json, file)
            await lease.session.put(name, file, kind)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        return web.json_response({"bytes": size})

    async def _get(self, request: web.Request) -> web.Response:
        text = await self._found(request).session.get(variable_of(request))
        if text is None:
            raise problem(404, f"Variable {variable_of(request)} not found")
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _answer(self, request: web.Request) -> web.Response:
        lease, number = self._found(request), request.match_info["number"]
        waiting = lease.calls.get(int(number)) if number.isdecimal() and len(number) < 10 else None
        if waiting is None or waiting.done():
            raise problem(404, f"Call {number} isn't asked")
        body = await body_of(request, dict[str, list[str]], {})
        if set(body) != {"result"}:
            raise problem(422, "result: a list of texts, one a prompt")
        waiting.set_result(body["result"])
        return web.json_response({"status": "ok"})

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        lease = self._found(request)
        cell = await body_of(request, NewCell, None)
        limit = TIMEOUT if cell.timeout is None else cell.timeout
        if not 0 < limit <= 3600:
            raise problem(422, "timeout: more than 0, and at most 3600 seconds")
        if lease.session.is_busy:
            raise SessionBusyError(f"session {lease.session.id} is running a cell")
        self._require_memory()
        for name, value in (cell.context or {}).items():
            if not name.isidentifier():
                raise problem(422, f"context: {name!r:.50} is no name of a variable")
            await lease.session.put(name, orjson.dumps(value).decode(), "json")
        if "application/x-ndjson" in request.headers.get("Accept", ""):
            return await self._streamed(request, lease, cell.code, limit)
        found = await lease.session.run(cell.code, timeout=limit)
        return web.json_response(result_of(found), status=504 if found.stopped == "deadline" else 200)

    async def _streamed(self, request: web.Request, lease: Lease, code: str, limit: float) -> web.StreamResponse:
        """The cell's sub-calls as lines, each answered by a request of its own, and its result as the last one."""
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        sending = asyncio.Lock()

        async def line(value: Any) -> None:
            async with sending:
                await response.write(orjson.dumps(value) + b"\n")

        async def answer(call: SubCall) -> Sequence[str]:
            number = next(lease.numbers)
            waiting = lease.calls[number] = asyncio.get_running_loop().create_future()
            try:
                await line({"event": "call", "id": number, **call._asdict()})
                return _one_each(call, await waiting)
            finally:
                del lease.calls[number]

        running = asyncio.create_task(lease.session.run(code, answer, timeout=limit))
        try:
            while not (await asyncio.wait([running], timeout=_ALIVE_SECONDS))[0]:
                async with sending:
                    await response.write(b"\n")
            await line({"event": "result", **result_of(running.result())})
        except Fault as error:
            await line({"event": "error", "detail": str(error)})
        finally:
            if not running.done():  # whoever asked has gone
                running.cancel()
                await asyncio.wait([running])
        await response.write_eof()
        return response

    # Sessions

    def _found(self, request: web.Request) -> Lease:
        name = request.match_info["id"]
        if name not in self._leases:
            raise problem(404, f"Session {name} not found")
        return self._leases[name]

    def _lease(self, session: Session, ttl: float) -> None:
        folder = Path(self._folder.name) / str(next(self._made))
        folder.mkdir()
        self._leases[session.id] = Lease(session, ttl, folder)

    def _require_room(self) -> None:
        if len(self._leases) >= self._limits.sessions:
            raise problem(429, f"Out of memory: {self._limits.sessions} sessions are there, and no more are allowed")
        self._require_memory()

    def _require_memory(self) -> None:
        used = self._pool.memory >> 20
        if used > self._limits.memory_mb - _LEAST_ROOM_MB:
            raise problem(429, f"Out of memory: sessions take {used} of {self._limits.memory_mb} MB")

    async def _drop(self, name: str) -> None:
        if lease := self._leases.pop(name, None):
            for waiting in lease.calls.values():
                waiting.cancel()
            await lease.session.close()
            for file in lease.folder.iterdir():
                file.unlink()

    async def _sweeping(self, _: web.Application) -> AsyncIterator[None]:
        """Drops sessions that nobody has asked anything of for their time to live."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(5.0, self._limits.ttl / 2))
                now = time.time()
                for name, lease in [*self._leases.items()]:
                    if not lease.session.is_busy and now - lease.session.used > lease.ttl:
                        await self._drop(name)

        sweeping = asyncio.create_task(sweep())
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        self._folder.cleanup()


def _about(lease: Lease) -> dict[str, Any]:
    session = lease.session
    return {
        "id": session.id,
        "created": session.created,
        "idle_seconds": 0.0 if session.is_busy else round(time.time() - session.used, 3),
        "memory": session.size,
        "cells": session.cells,
    }


def _one_each(call: SubCall, texts: list[str]) -> Sequence[str]:
    """As many answers as were asked for: what is missing is said to be."""
    lacking = ["Error: there was no answer"] * (len(call.prompts) - len(texts))
    return [*texts[: len(call.prompts)], *lacking]
