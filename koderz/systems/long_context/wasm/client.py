"""Sessions of a remote WASM manager, over its REST API."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from koderz.connections import CONNECT_SECONDS, httpx, open_client, told
from koderz.errors import Fault, Unreachable
from koderz.systems.long_context.wasm.cells import (
    MEMORY_MB,
    SECRET_HEADER,
    TIMEOUT,
    Answering,
    CellResult,
    Kind,
    SessionBusyError,
    SessionFullError,
    SessionLostError,
    SubCall,
    answers_to,
)
from koderz.systems.long_context.wasm.session import CompletedCell, Variable, pieces, size_of
from koderz_tracker.scrubber import shown_address

PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # seconds between tries while the manager is full, slow or gone
T = TypeVar("T")

_AGAIN = (429, 502, 503)
_LATE = 30.0  # seconds that an answer may take beyond what its cell may


class GarbledError(Exception):
    """An answer that no manager would give."""


class RemotePool:
    """Sessions at `url`. Entering raises Unreachable if no manager answers, or the token is wrong.

    `at_once` cells execute at once, any number where it is None; those that wait for models don't count.
    """

    kind: Kind = "wasm"

    def __init__(self, url: str, token: str = "", *, at_once: int | None = None) -> None:
        self.executing = asyncio.Semaphore(at_once or 1_000_000)
        self.url = url.rstrip("/")
        self.address = shown_address(self.url)
        self.image = ""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.has_private = False  # whether its sessions can be kept from its other clients
        self._http: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        self._http = open_client(self.url, headers=self._headers)
        try:
            health = await self.get("/health")
            await self.get("/sessions")
            if health.get("wasm") is not True:
                raise GarbledError
            self.has_private = health.get("private") is True
        except (httpx.HTTPError, httpx.InvalidURL, GarbledError, Fault) as error:
            await self._http.aclose()
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (
                401,
                403,
            ):
                raise Unreachable(
                    f"Authentication failed: the WASM manager at {self.address} wants another --wasm-token"
                ) from None
            raise Unreachable(
                f"Failed to create WASM session: no WASM manager answers at {self.address}; start one with "
                "koderz wasm serve, or python -m rlm.wasm.wasm_manager"
            ) from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    def open(self, *, memory_mb: int = MEMORY_MB, seed: int = 0) -> RemoteSession:
        """A new session, which is created there on first use."""
        return RemoteSession(self, memory_mb=memory_mb, seed=seed)

    async def get(self, path: str) -> dict[str, Any]:
        """An answer as JSON. Raises httpx.HTTPError or GarbledError if there is none."""
        response = await self._http.get(self.url + path, timeout=10)
        return _object(response.raise_for_status().content)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        streamed: Variable | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """A response, once the manager has room for the request. Raises Fault when patience runs out.

        `body` is sent as JSON, or `streamed`, part by part.
        """
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS, read=seconds)
        # httpx' own has no place for half a surrogate pair
        sent = json.dumps(body).encode() if body else None
        headers = {"Content-Type": "application/json", **(headers or {})} if body else headers
        for pause in (*PAUSES, None):
            try:
                content = _stream(streamed) if streamed else sent
                async with self._http.stream(
                    method, self.url + path, headers=headers, content=content, timeout=timeout
                ) as response:
                    if response.status_code not in _AGAIN or pause is None:
                        yield response
                        return
            except httpx.ConnectError as error:
                if pause is None:
                    raise Fault(
                        f"the WASM manager at {self.address} is gone: {told(error)}",
                        cause="sandbox",
                    ) from None
            assert pause is not None
            await asyncio.sleep(pause)


class RemoteSession:
    """A remote session with the methods of `session.Session`; if lost, it is made anew and its cells run again."""

    def __init__(self, pool: RemotePool, *, memory_mb: int, seed: int) -> None:
        self._pool = pool
        self._wanted = {"memory_mb": memory_mb, "seed": seed} | (
            {"private": True} if pool.has_private else {}
        )
        self._id = ""  # empty: it has to be made
        self._secret = dict[str, str]()  # the header that proves whose session it is
        self._log: list[Variable | CompletedCell] = []

    async def start(self) -> None:
        """Creates the session at the manager. Raises Fault."""
        await self._alive()

    async def put(self, name: str, source: str | Path, kind: str = "text") -> int:
        """Sets a variable; returns its size. Raises SessionFullError if it doesn't fit, or Fault."""
        variable, most = Variable(name, source, kind), self._wanted["memory_mb"] << 19
        if size_of(source) > most:
            raise SessionFullError(
                f"{name} takes more than {most:,} bytes, half of what the session may"
            )
        size = await self._over_again(lambda: self._put(variable))
        self._log.append(variable)
        return size

    async def get(self, name: str) -> str | None:
        """The text of a variable; None if there is none."""

        async def read() -> str | None:
            async with self._request("GET", f"/variables/{name}", allowed=(200, 404)) as response:
                await response.aread()
                text = response.text
                if response.status_code == 404 and "Session" in text:
                    raise _Gone
                return text if response.status_code == 200 else None

        return await self._over_again(read)

    async def run(
        self,
        code: str,
        answer: Answering | None = None,
        *,
        timeout: float = TIMEOUT,  # noqa: ASYNC109 the cell's
        only_calls: int | None = None,
    ) -> CellResult:
        """Runs a cell, see `session.Session.run`."""
        answers: list[list[str]] = []

        async def run() -> CellResult:
            return await self._run(code, answer, timeout, only_calls, answers)

        try:
            found = await self._over_again(run)
        except BaseException:
            await asyncio.shield(self.close())
            raise
        if found.stopped == "cut":
            await self.close()  # the manager need not notice at once that nobody listens any more
        if found.stopped:
            return found
        self._log.append(CompletedCell(code, timeout, answers))
        return found

    async def close(self) -> None:
        if self._id:
            name, self._id = self._id, ""
            try:
                async with self._pool.request(
                    "DELETE", f"/session/{name}", _LATE, headers=self._secret
                ):
                    pass
            except (httpx.TransportError, Fault):
                return  # it is dropped there when its time is up

    async def _over_again(self, doing: Callable[[], Awaitable[T]]) -> T:
        """Does something, up to three times if the session or the connection is lost meanwhile."""
        for left in (2, 1, 0):
            try:
                await self._alive()
                return await doing()
            except _Gone:
                self._id = ""
            except (httpx.TransportError, GarbledError) as error:
                await self.close()
                if not left:
                    raise Fault(
                        f"the WASM manager at {self._pool.address}: {_what(error)}", cause="sandbox"
                    ) from None
        raise SessionLostError(f"the WASM manager at {self._pool.address} keeps losing the session")

    async def _alive(self) -> None:
        if self._id:
            return
        async with self._pool.request("POST", "/sessions", _LATE, body=self._wanted) as response:
            if response.status_code == 429:
                raise Fault(f"Out of memory: {await _detail(response)}", cause="sandbox")
            await _require(response, (201,))
            made = _object(await response.aread())
            name, secret = made.get("session_id"), made.get("secret")
            if not isinstance(name, str):
                raise GarbledError
        self._id, self._secret = name, {SECRET_HEADER: secret} if isinstance(secret, str) else {}
        for done in self._log:
            if isinstance(done, Variable):
                await self._put(done)
                continue
            answers = [list(one) for one in done.answers]
            found = await self._run(done.code, None, done.timeout * 2, None, answers)
            if found.stopped:
                raise SessionLostError(f"the session can't be made anew: {found.error}")

    async def _put(self, put: Variable) -> int:
        kind = "application/json" if put.kind == "json" else "text/plain; charset=utf-8"
        headers = {"Content-Type": kind}
        async with self._request(
            "PUT", f"/variables/{put.name}", streamed=put, headers=headers
        ) as response:
            return int(_object(await response.aread()).get("bytes", 0))

    async def _run(
        self,
        code: str,
        answer: Answering | None,
        limit: float,
        only_calls: int | None,
        answers: list[list[str]],
    ) -> CellResult:
        """Runs a cell. `answers` has those to its first sub-calls from an earlier try; new ones are added."""
        recorded, calls, waited, began = iter([*answers]), 0, 0.0, time.monotonic()
        body, headers = {"code": code, "timeout": limit}, {"Accept": "application/x-ndjson"}
        async with (
            self._pool.executing,
            self._request(
                "POST", "/execute", 2 * limit + _LATE, headers=headers, body=body
            ) as response,
        ):
            async for line in _lines(response):
                event = _object(line)
                if event.get("event") == "result":
                    return _result(event, time.monotonic() - began - waited, calls)
                if event.get("event") == "error":
                    raise SessionLostError(f"the WASM manager says: {event.get('detail')}")
                call = _call(event)
                if only_calls is not None and calls >= only_calls:
                    return CellResult(
                        stopped="cut", error="it was stopped here before", calls=calls
                    )
                texts = next(recorded, None)
                if texts is None:
                    asked = time.monotonic()
                    texts = await answers_to(call, answer, self._pool.executing)
                    waited += time.monotonic() - asked
                    answers.append(texts)
                calls += len(texts)
                async with self._request("POST", f"/calls/{event['id']}", body={"result": texts}):
                    pass
        raise GarbledError

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        seconds: float = _LATE,
        allowed: tuple[int, ...] = (200,),
        **sent: Any,
    ) -> AsyncIterator[httpx.Response]:
        headers = {**self._secret, **sent.pop("headers", {})}
        path = f"/session/{self._id}{path}"
        async with self._pool.request(method, path, seconds, headers=headers, **sent) as response:
            await _require(response, allowed)
            yield response


class _Gone(Exception):
    """The manager doesn't know the session: the manager was restarted, or the session expired."""


async def _stream(put: Variable) -> AsyncIterator[bytes]:
    for piece in pieces(put):
        yield piece


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a stream, however long; empty lines, which only keep it open, are dropped."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else [rest + chunk]
        for line in whole:
            if line.strip():
                yield line


async def _require(response: httpx.Response, allowed: tuple[int, ...]) -> None:
    if response.status_code in allowed:
        return
    detail = await _detail(response)
    if response.status_code == 404:
        raise _Gone
    if response.status_code in (401, 403):
        raise Unreachable(f"Authentication failed: {detail}")
    raise {409: SessionBusyError, 413: SessionFullError}.get(response.status_code, Fault)(
        f"the WASM manager says: {detail}"
    )


async def _detail(response: httpx.Response) -> str:
    try:
        return str(_object(await response.aread()).get("detail"))
    except GarbledError:
        return f"status {response.status_code}"


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise GarbledError from None
    if not isinstance(found, dict):
        raise GarbledError
    return found


def _call(event: Mapping[str, Any]) -> SubCall:
    prompts, model, name = event.get("prompts"), event.get("model"), event.get("name")
    fine = isinstance(prompts, list) and prompts and all(isinstance(one, str) for one in prompts)
    if event.get("event") != "call" or not fine or not isinstance(event.get("id"), int):
        raise GarbledError
    assert isinstance(prompts, list)
    return SubCall(str(name), tuple(prompts), model if isinstance(model, str) else None)


def _result(event: Mapping[str, Any], seconds: float, calls: int) -> CellResult:
    out, err, error, final = (
        event.get(name) for name in ("stdout", "stderr", "error", "final_answer")
    )
    variables = event.get("locals")
    if not (isinstance(out, str) and isinstance(err, str) and isinstance(variables, dict)):
        raise GarbledError
    if not all(one is None or isinstance(one, str) for one in (error, final)):
        raise GarbledError
    truncated, stopped = event.get("truncated") is True, str(event.get("stopped") or "")
    return CellResult(
        out, err, error, variables, final, round(seconds, 6), calls, truncated, stopped
    )


def _what(error: httpx.TransportError | GarbledError) -> str:
    if isinstance(error, httpx.ReadTimeout):
        return "Request timed out; raise --wasm-timeout"
    return told(error) if isinstance(error, httpx.TransportError) else "its answer is garbled"
