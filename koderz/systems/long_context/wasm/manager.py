"""The WASM manager: sessions over HTTP, as `koderz wasm serve` offers them until it is stopped."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import itertools
import json
import os
import secrets
import signal
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import orjson
from aiohttp import web

from koderz._version import __version__
from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.gate import SECONDS, Gate, is_same
from koderz.settings.paths import state_folder
from koderz.systems.long_context.wasm.cells import (
    MEMORY_MB,
    SECRET_HEADER,
    TIMEOUT,
    TOKEN_VARIABLE,
    CellResult,
    SessionBusyError,
    SessionFullError,
    SubCall,
)
from koderz.systems.long_context.wasm.image import Say
from koderz.systems.long_context.wasm.session import Pool, Session, StoredCopy
from koderz_tracker.addresses import host_of, is_loopback

_HELD_BYTES = 48 << 20  # of all requests at once that aren't variables
_ALIVE_SECONDS = 10.0  # after which a stream of events that says nothing gets a line break
_LEAST_ROOM_MB = 64  # for a new session
# bytes of a request, but for variables that are text, which have a limit of their own
BODY_LIMIT = 16 << 20
_LONGEST_NAME = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    """The limits of a manager."""

    sessions: int = 32
    ttl: float = 3600.0  # seconds without a request, after which a session is dropped
    session_mb: int = MEMORY_MB
    memory_mb: int = 4096  # of all workers together


@dataclass(slots=True)
class Lease:
    """A session with the manager's notes on it."""

    session: Session
    ttl: float
    secret: str = ""  # of a private one: without it, nobody may use it
    copies: weakref.WeakValueDictionary[bytes, StoredCopy] = field(
        default_factory=weakref.WeakValueDictionary
    )
    # that wait for an answer
    calls: dict[int, asyncio.Future[list[str]]] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))


class NewSession(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a new session."""

    session_id: str | None = None
    seed: int = 0
    memory_mb: int | None = None
    ttl_s: float | None = None
    private: bool = False  # whether nobody may use it without the secret that is answered


class NewCell(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to run a cell."""

    code: str
    context: dict[str, msgspec.Raw] | None = None  # variables to be set first
    timeout: float | None = None  # seconds


class Refused(web.HTTPException):
    """An error answer, whose `detail` says what is wrong."""

    def __init__(self, status: int, message: str) -> None:
        self.status_code = status
        super().__init__(reason=message.replace("\n", " ").replace("\r", " "))


class Manager:
    """The application, with the sessions that clients hold."""

    def __init__(
        self, pool: Pool, limits: ManagerLimits, *, token: str = "", hosts: Iterable[str] = ()
    ) -> None:
        """`hosts`: further host names that requests may be sent to, besides those of this machine."""
        self._pool, self._limits, self._token = pool, limits, token
        self._hosts = frozenset(hosts)
        self._leases: dict[str, Lease] = {}
        self._folder = TemporaryDirectory(prefix="koderz-wasm-", ignore_cleanup_errors=True)
        self._files = itertools.count(1)
        self.gate = Gate(held=_HELD_BYTES)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._checked])
        self.gate.guard(app)
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
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        proven = bool(self._token) and is_same(token, self._token)
        if "Origin" in request.headers:
            return detail(403, "requests of web pages are refused")
        host = host_of(request.headers.get("Host", ""))
        if not (proven or is_loopback(host) or host in self._hosts):
            return detail(
                403, "no requests are taken under this Host; --allow-host NAME allows one"
            )
        if self._token and not proven and request.path != "/health":
            return detail(401, "a token is needed: Authorization: Bearer TOKEN")
        return None

    # What may be asked

    async def _health(self, _: web.Request) -> web.Response:
        found = {
            "status": "ok",
            "version": __version__,
            "wasm": self._pool.kind == "wasm",
            "private": True,
        }
        return web.json_response({**found, "sessions": len(self._leases)})

    async def _list(self, request: web.Request) -> web.Response:
        if request.query.get("detail") != "1":
            return web.json_response({"sessions": [*self._leases]})
        open_to = [lease for lease in self._leases.values() if _may_use(lease, request)]
        return web.json_response({"sessions": [_about(lease) for lease in open_to]})

    async def _create(self, request: web.Request) -> web.Response:
        wanted = read_body(await self.gate.read(request, BODY_LIMIT), NewSession, NewSession())
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
        lease = self._lease(session, wanted.ttl_s or self._limits.ttl, private=wanted.private)
        try:
            await session.start()
        except BaseException:
            await self._drop(name)
            raise
        return web.json_response(
            _created(lease), status=201 if request.path == "/sessions" else 200
        )

    async def _delete(self, request: web.Request) -> web.Response:
        if request.match_info["id"] in self._leases:
            await self._drop(self._found(request).session.id)
        return web.json_response({"status": "ok"})

    async def _fork(self, request: web.Request) -> web.Response:
        lease = self._found(request)
        self._require_room()
        session = lease.session.fork()
        return web.json_response(
            _created(self._lease(session, lease.ttl, private=bool(lease.secret)))
        )

    async def _put(self, request: web.Request) -> web.Response:
        lease, name = self._found(request), variable_of(request)
        kind = "json" if request.content_type == "application/json" else "text"
        most = lease.session.memory // 2 if kind == "text" else BODY_LIMIT
        self._require_memory()
        if (request.content_length or 0) > most:
            raise problem(413, f"more than {most:,} bytes, the most that a variable may have")
        copy = self._new_copy()
        try:
            async with asyncio.timeout(SECONDS):
                size = await stored(request, copy.path, most)
        except TimeoutError:
            raise problem(408, "the request wasn't whole in time") from None
        if kind == "json":
            await asyncio.to_thread(require_json, copy.path)
        await lease.session.put(name, copy, kind)
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
        body = read_body(await self.gate.read(request, BODY_LIMIT), dict[str, list[str]], {})
        if set(body) != {"result"}:
            raise problem(422, "result: a list of texts, one a prompt")
        waiting.set_result(body["result"])
        return web.json_response({"status": "ok"})

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        lease = self._found(request)
        cell = read_body(await self.gate.read(request, BODY_LIMIT), NewCell, None)
        limit = TIMEOUT if cell.timeout is None else cell.timeout
        if not 0 < limit <= 3600:
            raise problem(422, "timeout: more than 0, and at most 3600 seconds")
        if lease.session.is_busy:
            raise SessionBusyError(f"session {lease.session.id} is running a cell")
        self._require_memory()
        for name, value in (cell.context or {}).items():
            await lease.session.put(
                require_name(name), await self._copied(lease, bytes(value)), "json"
            )
        if "application/x-ndjson" in request.headers.get("Accept", ""):
            return await self._streamed(request, lease, cell.code, limit)
        found = await lease.session.run(cell.code, timeout=limit)
        return web.json_response(
            result_of(found), status=504 if found.stopped == "deadline" else 200
        )

    async def _streamed(
        self, request: web.Request, lease: Lease, code: str, limit: float
    ) -> web.StreamResponse:
        """The cell's sub-calls as lines, each answered by a request of its own, then its result as the last line."""
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
                texts = await waiting
                lacking = ["Error: there was no answer"] * (len(call.prompts) - len(texts))
                return [*texts[: len(call.prompts)], *lacking]
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
        if not _may_use(self._leases[name], request):
            raise problem(
                403, f"session {name} is private, and the {SECRET_HEADER} is missing or wrong"
            )
        return self._leases[name]

    def _lease(self, session: Session, ttl: float, *, private: bool) -> Lease:
        lease = Lease(session, ttl, secrets.token_urlsafe(24) if private else "")
        self._leases[session.id] = lease
        return lease

    def _new_copy(self) -> StoredCopy:
        return StoredCopy(Path(self._folder.name) / str(next(self._files)))

    async def _copied(self, lease: Lease, value: bytes) -> StoredCopy:
        """A value of a context as a file; an existing file if the value is stored already."""
        digest = hashlib.sha256(value).digest()
        copy = lease.copies.get(digest)
        if copy is None:
            copy = lease.copies[digest] = self._new_copy()
            await asyncio.to_thread(copy.path.write_bytes, value)
        return copy

    def _require_room(self) -> None:
        if len(self._leases) >= self._limits.sessions:
            raise problem(
                429,
                f"Out of memory: {self._limits.sessions} sessions are there, and no more are allowed",
            )
        self._require_memory()

    def _require_memory(self) -> None:
        used = self._pool.memory >> 20
        if used > self._limits.memory_mb - _LEAST_ROOM_MB:
            raise problem(
                429, f"Out of memory: sessions take {used} of {self._limits.memory_mb} MB"
            )

    async def _drop(self, name: str) -> None:
        if lease := self._leases.pop(name, None):
            for waiting in lease.calls.values():
                waiting.cancel()
            await lease.session.close()

    async def _sweeping(self, _: web.Application) -> AsyncIterator[None]:
        """Drops sessions without a request during their time to live."""

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


def _created(lease: Lease) -> dict[str, str]:
    """The answer to the creator of a session."""
    return {"session_id": lease.session.id} | ({"secret": lease.secret} if lease.secret else {})


def _may_use(lease: Lease, request: web.Request) -> bool:
    return is_same(request.headers.get(SECRET_HEADER, ""), lease.secret) if lease.secret else True


def _about(lease: Lease) -> dict[str, Any]:
    session = lease.session
    return {
        "id": session.id,
        "created": session.created,
        "idle_seconds": 0.0 if session.is_busy else round(time.time() - session.used, 3),
        "memory": session.size,
        "cells": session.cells,
    }


def problem(status: int, message: str) -> Refused:
    return Refused(status, message)


def detail(status: int, message: str) -> web.Response:
    return web.json_response({"detail": message}, status=status)


def variable_of(request: web.Request) -> str:
    """The variable that a path names. Raises Refused for an invalid name."""
    return require_name(request.match_info["name"])


def require_name(name: str) -> str:
    """The name, if it is valid for a variable. Raises Refused otherwise."""
    if not name.isidentifier() or len(name) > _LONGEST_NAME:
        raise problem(422, f"{name!r:.120} is no name of a variable")
    return name


def read_body(data: bytearray, kind: type[T], absent: T | None) -> T:
    """The body as an object of this type; `absent` if there is none. Raises Refused."""
    if not data and absent is not None:
        return absent
    try:
        data.decode()  # which msgspec leaves to whoever reads a part that is raw
        return msgspec.json.decode(data, type=kind)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise problem(422, f"the body isn't what it should be: {error}") from None


async def stored(request: web.Request, file: Path, most: int) -> int:
    """Writes the body, UTF-8 of at most `most` bytes, into a file; returns its size. Raises Refused."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = 0
    with file.open("wb") as target:
        async for chunk in request.content.iter_chunked(1 << 20):
            size += len(chunk)
            if size > most:
                raise problem(413, f"more than {most:,} bytes, the most that a variable may have")
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                raise problem(422, "the body isn't UTF-8") from None
            await asyncio.to_thread(target.write, chunk)
    if decoder.getstate()[0]:
        raise problem(422, "the body isn't UTF-8: it ends within a character")
    return size


def require_json(file: Path) -> None:
    """Raises Refused if a file is not JSON. The value itself isn't built, which could take far more memory."""
    try:
        msgspec.json.decode(file.read_bytes(), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise problem(422, f"the body isn't JSON: {error}") from None


def result_of(found: CellResult) -> dict[str, Any]:
    detail = {"detail": found.error} if found.stopped == "deadline" else {}
    return {
        **detail,
        "stdout": found.stdout,
        "stderr": found.stderr,
        "locals": found.locals,
        "execution_time": found.seconds,
        "success": found.error is None,
        "error": found.error,
        "final_answer": found.final_answer,
        "calls": found.calls,
        "truncated": found.truncated,
        "stopped": found.stopped,
    }


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
