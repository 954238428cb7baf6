"""HTTP to one provider: sends JSON, returns bytes, and raises only our own errors.

No redirect is followed, no cookie kept, nothing logged: a key goes where its owner sends it, and nowhere else.

Nothing compressed is asked for or read, so that `MAX_BYTES` bounds memory too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

from koderz._version import __version__
from koderz.errors import FatalFault, Fault
from koderz.models.endpoints import LEAST_HIDDEN, is_loopback
from koderz.models.faults import Response, Retryable, TimedOut, clean, without
from koderz.models.waits import wait_in_headers
from koderz_tracker.scrubber import secrets_of, shown_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_BYTES = 32 * 1024 * 1024  # of one response
_CONNECT_TIMEOUT = 10.0  # seconds; what follows is under one deadline
_LOOK_TIMEOUT = 10.0  # seconds
_KEPT_ALIVE = 60.0  # seconds
_TOO_LONG = f"the server's answer is longer than {MAX_BYTES >> 20} MB"
_SECRET_LENGTH = 12  # shorter "keys" stand in where none is needed, and are words that replies may hold
_MOST_TIMEOUTS = 2  # a model that didn't end its answer twice more won't
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_HEADERS = MappingProxyType(
    {"accept": "application/json", "accept-encoding": "identity", "user-agent": f"koderz/{__version__}"}
)


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
        self._values = {form for value in headers.values() for form in _forms(value) if len(form) >= LEAST_HIDDEN}
        # What errors must not show; what is shorter can be no secret, and stands in any of them.
        self.hidden = [*secrets_of(base_url), *(value for value in self._headers.values() if len(value) > 2)]
        self._proxy = proxy_for(base_url)

    @cached_property
    def address(self) -> str:
        """The base URL as it may be shown and recorded, without possible secrets."""
        return shown_address(self.base_url)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Sends JSON. Raises Retryable, Fault or FatalFault if no whole response comes back."""
        return await self._send("POST", path, {**headers, "content-type": "application/json"}, body, self._timeout)

    async def get(self, path: str, headers: Mapping[str, str]) -> Response:
        """Gets a small resource, with a short timeout. Raises as `post` does."""
        return await self._send("GET", path, headers, None, min(_LOOK_TIMEOUT, self._timeout))

    async def aclose(self) -> None:
        """Closes all connections, even those in use."""
        if "_session" in self.__dict__:
            await self._session.close()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> Response:
        request = self._session.request(
            method,
            self.base_url + path + self._query,
            headers={**headers, **self._headers},
            data=body,
            proxy=self._proxy,
            allow_redirects=False,
        )
        try:
            async with asyncio.timeout(seconds), request as answer:
                return self._response(answer, await _read(answer))
        except aiohttp.ConnectionTimeoutError as error:
            raise Retryable(f"no connection within {_CONNECT_TIMEOUT:g} s") from error
        except TimeoutError as error:
            timed_out = TimedOut if method == "POST" else Retryable
            raise timed_out(
                f"Request timed out: no answer within {seconds:g} s; see --request-timeout",
                most_retries=self._most_timeouts,
            ) from error
        except aiohttp.ClientError as error:
            raise self._lost(error) from error

    def _response(self, answer: aiohttp.ClientResponse, body: bytes) -> Response:
        if len(self._secret) >= (_SECRET_LENGTH if 200 <= answer.status < 300 else 1):
            body = body.replace(self._secret.encode(), b"***")  # servers echo keys, in errors and elsewhere
        if answer.status >= 300 or not body.startswith(b"{"):  # a reply stays as it is; what is none tells of the path
            body = without(body.decode("utf-8", "surrogateescape"), *self.hidden).encode("utf-8", "surrogateescape")
        if self._values:
            body = _without_values(body, self._values)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Response(
            status=answer.status,
            body=body,
            retry_after=wait_in_headers(headers, datetime.now(UTC)),
            location=clean(headers.get("location", ""), self._secret, *self.hidden),
            headers=headers,
        )

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        if self._proxy and not _is_http(self._proxy):
            raise FatalFault(
                "the environment names a proxy that is none for HTTP; see HTTPS_PROXY and ALL_PROXY, "
                "which may hold http://HOST:PORT, and NO_PROXY",
                cause="unreachable",
            )
        trusted = trusted_certificates() if self.base_url.startswith("https:") else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trusted, keepalive_timeout=_KEPT_ALIVE),
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT),
        )

    def _lost(self, error: aiohttp.ClientError) -> Retryable | FatalFault:
        said = clean(_reason(error), self._secret, *self.hidden) or type(error).__name__
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
            return FatalFault(f"no request can be made of this: {said}", cause="unreachable")
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return FatalFault(f"the server's certificate is not trusted: {said}", cause="unreachable")
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return Retryable(f"the proxy refuses: {error.status} {said}")
        doing = "cannot connect" if isinstance(error, aiohttp.ClientConnectorError) else "connection lost"
        to_proxy = " to the proxy" if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
        return Retryable(f"{doing}{to_proxy}: {said}")


def _forms(value: str) -> set[str]:
    """A header's value as servers may echo it: whole, and what follows a word such as `Bearer`."""
    return {value, value.rpartition(" ")[2]}


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


def _is_http(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def trusted_certificates() -> ssl.SSLContext | bool:
    """The system's certificates, which aiohttp has loaded already; certifi's if the system has none."""
    system = ssl.get_default_verify_paths()
    if system.cafile or (system.capath and any(Path(system.capath).iterdir())):
        return True
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def _reason(error: aiohttp.ClientError) -> str:
    """The reason of an error without the address, which the caller adds."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, aiohttp.ClientResponseError):
        return error.message
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer's body ended before it was whole"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0
        return os.strerror(number) if number in errno.errorcode else error.os_error.strerror or str(error.os_error)
    return str(error)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise Retryable("the server compressed its answer without being asked to")
    if (answer.content_length or 0) > MAX_BYTES:
        raise Fault(_TOO_LONG, cause="unreachable")
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_BYTES:
            raise Fault(_TOO_LONG, cause="unreachable")
    return bytes(body)
