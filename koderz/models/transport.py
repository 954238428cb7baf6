"""HTTP to one provider: sends JSON, returns bytes, and raises only our own errors.

Nothing compressed is asked for or read, so that `MAX_BYTES` bounds memory too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from koderz.connections import CONNECT_SECONDS, HEADERS, httpx, is_hopeless, open_client, told
from koderz.errors import FatalFault, Fault
from koderz.models.faults import (
    Gone,
    Response,
    Retryable,
    TimedOut,
    clean,
    problem_of,
    wait_in_headers,
    without,
)
from koderz.models.names import LEAST_HIDDEN, is_loopback
from koderz_tracker.scrubber import secrets_of, shown_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_BYTES = 32 * 1024 * 1024  # of one response
_LOOK_TIMEOUT = 10.0  # seconds
_TOO_LONG = f"the server's answer is longer than {MAX_BYTES >> 20} MB"
# shorter "keys" stand in where none is needed, and are words that replies may hold
_SECRET_LENGTH = 12
_MOST_TIMEOUTS = 2  # a model that didn't end its answer twice more won't
# of connecting alone; what comes after is under one deadline
_TIMEOUT = MappingProxyType({"timeout": {"connect": CONNECT_SECONDS}})
_NOTHING = httpx.ByteStream(b"")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_Body = bytes | AsyncIterator[bytes] | None
_HEADERS = MappingProxyType({**HEADERS, "accept": "application/json"})


class Http:
    """Requests to one base URL over connections that are kept alive; any number at once."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float,
        secret: str = "",
        headers: Mapping[str, str] = _NO_HEADERS,
        query: str = "",
        retries_timeouts: bool = True,
    ) -> None:
        """`headers` are sent with every request in place of its own, and their values are secrets; so is `secret`."""
        self.base_url = base_url
        self._timeout = timeout
        self._most_timeouts = _MOST_TIMEOUTS if retries_timeouts else 0
        self._secret = secret
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._query = f"?{query}" if query else ""
        # As servers may echo a header's value: whole, or what follows a word such as `Bearer`.
        self._values = {
            form
            for value in headers.values()
            for form in {value, value.rpartition(" ")[2]}
            if len(form) >= LEAST_HIDDEN
        }
        # What errors must not show; what is shorter can be no secret, and stands in any of them.
        self.hidden = [
            *secrets_of(base_url),
            *(value for value in self._headers.values() if len(value) > 2),
        ]
        self._proxy = proxy_for(base_url)
        self._urls: dict[str, httpx.URL] = {}

    @cached_property
    def address(self) -> str:
        """The base URL as it may be shown and recorded, without possible secrets."""
        return shown_address(self.base_url)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Sends JSON. Raises Retryable, Fault or FatalFault if no whole response comes back."""
        return await self._send(
            "POST", path, {**headers, "content-type": "application/json"}, body, self._timeout
        )

    async def get(self, path: str, headers: Mapping[str, str]) -> Response:
        """Gets a small resource, with a short timeout. Raises as `post` does."""
        return await self._send("GET", path, headers, None, min(_LOOK_TIMEOUT, self._timeout))

    async def upload(
        self, path: str, parts: Iterable[bytes], size: int, kind: str, headers: Mapping[str, str]
    ) -> Response:
        """Sends a large body of `size` bytes in parts, each made when it is sent. Raises as `post` does."""

        async def body() -> AsyncIterator[bytes]:
            for part in parts:
                yield part

        sent = {**headers, "content-type": kind, "content-length": str(size)}
        return await self._send("POST", path, sent, body(), self._timeout)

    async def lines(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The lines of a large resource as they come, without secrets. Raises what `problem_of` and `get` do."""
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._client.send(
                    self._request("GET", path, headers, None), stream=True
                )
            try:
                if answer.status_code in (404, 410):
                    raise Gone(path)
                if not answer.is_success:
                    async with asyncio.timeout(self._timeout):
                        raise problem_of(self._response(answer, await _read(answer)))
                rest, parts = b"", answer.aiter_bytes()
                while True:
                    # Time counts only here, since whoever takes the lines may be long about one, and is not to be ended
                    async with asyncio.timeout(self._timeout):
                        part = await anext(parts, b"")
                    if not part:
                        break
                    *whole, rest = (rest + part).split(b"\n")
                    for line in whole:
                        yield self._without_secrets(line)
                    if len(rest) > MAX_BYTES:
                        raise Fault(_TOO_LONG, cause="unreachable")
                yield self._without_secrets(rest)
            finally:
                await answer.aclose()
        except TimeoutError as error:
            raise Retryable(
                f"nothing more of an answer within {self._timeout:g} s; see --request-timeout"
            ) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Retryable(clean(told(error), self._secret, *self.hidden)) from error

    async def aclose(self) -> None:
        """Closes all connections, even those in use."""
        if "_client" in self.__dict__:
            await self._client.aclose()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: _Body, seconds: float
    ) -> Response:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._client.send(
                    self._request(method, path, headers, body), stream=True
                )
                try:
                    return self._response(answer, await _read(answer))
                finally:
                    await answer.aclose()
                    # the stream holds the answer that holds it, until there is a collection
                    answer.stream = _NOTHING
        except TimeoutError as error:
            timed_out = TimedOut if method == "POST" else Retryable
            raise timed_out(
                f"Request timed out: no answer within {seconds:g} s; see --request-timeout",
                most_retries=self._most_timeouts,
            ) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            said = clean(told(error), self._secret, *self.hidden)
            raise (
                FatalFault(said, cause="unreachable") if is_hopeless(error) else Retryable(said)
            ) from error

    def _request(
        self, method: str, path: str, headers: Mapping[str, str], body: _Body
    ) -> httpx.Request:
        """A request as the client would build it, for a third of the CPU: its URL is read once."""
        if path not in self._urls:
            query = self._query.replace("?", "&", 1) if "?" in path else self._query
            self._urls[path] = httpx.URL(self.base_url + path + query)
        named = {**_HEADERS, **headers, **self._headers}
        values = {name.encode(): value.encode() for name, value in named.items()}
        return httpx.Request(
            method, self._urls[path], headers=values, content=body, extensions=_TIMEOUT
        )

    def _response(self, answer: httpx.Response, sent: bytes) -> Response:
        body = sent
        if len(self._secret) >= (_SECRET_LENGTH if answer.is_success else 1):
            # servers echo keys, in errors and elsewhere
            body = body.replace(self._secret.encode(), b"***")
        # a reply stays as it is; what is none tells of the path
        if not (answer.is_success and body.startswith(b"{")):
            body = without(body.decode("utf-8", "surrogateescape"), *self.hidden).encode(
                "utf-8", "surrogateescape"
            )
        if self._values:
            body = _without_values(body, self._values)
        headers = dict(answer.headers)
        return Response(
            status=answer.status_code,
            body=body,
            retry_after=wait_in_headers(headers, datetime.now(UTC)),
            location=clean(headers.get("location", ""), self._secret, *self.hidden),
            headers=headers,
            sent=b"" if answer.is_success else sent,
        )

    def _without_secrets(self, line: bytes) -> bytes:
        if len(self._secret) >= _SECRET_LENGTH:
            line = line.replace(self._secret.encode(), b"***")
        return _without_values(line, self._values) if self._values else line

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        return open_client(self.base_url, proxy=self._proxy)


def _without_values(body: bytes, values: Iterable[str]) -> bytes:
    """An answer without these values, however its JSON writes their characters."""
    ordered = sorted(values, key=len, reverse=True)
    for value in ordered:
        body = body.replace(value.encode(), b"***")
    if b"\\" not in body:
        return body
    try:
        said = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body
    found = _cleaned(said, ordered)
    return body if found == said else msgspec.json.encode(found)


def _cleaned(said: Any, values: Sequence[str]) -> Any:
    if isinstance(said, str):
        return without(said, *values)
    if isinstance(said, list):
        return [_cleaned(each, values) for each in said]
    return (
        {without(name, *values): _cleaned(each, values) for name, each in said.items()}
        if isinstance(said, dict)
        else said
    )


def proxy_for(base_url: str) -> str | None:
    """The proxy that the environment names for an address; addresses of this machine have none."""
    parts = urlsplit(base_url)
    if is_loopback(base_url) or proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


async def _read(answer: httpx.Response) -> bytes:
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise Retryable("the server compressed its answer without being asked to")
    if int(answer.headers.get("content-length", 0)) > MAX_BYTES:
        raise Fault(_TOO_LONG, cause="unreachable")
    body = bytearray()
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > MAX_BYTES:
            raise Fault(_TOO_LONG, cause="unreachable")
    return bytes(body)
