"""HTTP to one provider: JSON out, bytes back, and every way to fail as one of ours.

Without a client above the transport there are no redirects, cookies or logs: a key goes where its owner sends
it, and nowhere else.

Nothing compressed is asked for or read, so that `MAX_BYTES` bounds memory too.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import sys
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from koderz._version import __version__
from koderz.errors import FatalFault, Fault
from koderz.models.endpoints import is_loopback
from koderz.models.faults import Response, Retryable, clean

# httpx takes its own command line along, with rich and click, unless that can't be imported: 65 ms of every run.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
import httpx  # noqa: E402

from koderz.models.connections import AiohttpTransport  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 32 * 1024 * 1024  # of one response
LONGEST_RETRY_AFTER = 300.0  # seconds; what a server asks for beyond is not waited for at once
_CONNECT_TIMEOUT = 10.0  # seconds; what follows is under one deadline
_KEPT_ALIVE = 60.0  # seconds
_TOO_LONG = f"the server's answer is longer than {MAX_BYTES >> 20} MB"
_SECRET_LENGTH = 12  # shorter "keys" stand in where none is needed, and are words that replies may hold
_MOST_TIMEOUTS = 2  # a model that didn't end its answer twice more won't
_HEADERS = MappingProxyType(
    {"accept": "application/json", "accept-encoding": "identity", "user-agent": f"koderz/{__version__}"}
)


class Http:
    """Requests to one base URL over connections that are kept alive; any number at once."""

    def __init__(self, base_url: str, *, timeout: float, secret: str = "") -> None:
        self.base_url = base_url
        self._timeout = timeout
        self._secret = secret
        self._proxy = proxy_for(base_url)
        self._urls: dict[str, httpx.URL] = {}

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Sends JSON. Raises Retryable, Fault or FatalFault where no response comes back whole."""
        return await self._send("POST", path, {**headers, "content-type": "application/json"}, body, self._timeout)

    async def get(self, path: str, headers: Mapping[str, str], *, timeout: float = 10.0) -> Response:  # noqa: ASYNC109
        """As `post`, to look at something; `timeout` in seconds."""
        return await self._send("GET", path, headers, None, timeout)

    async def aclose(self) -> None:
        """Closes the connections."""
        if "_transport" in self.__dict__:
            await self._transport.aclose()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> Response:
        request = httpx.Request(
            method,
            self._url(path),
            headers={**_HEADERS, **headers},
            content=body,
            extensions={"timeout": {"connect": _CONNECT_TIMEOUT}},
        )
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(request)
        except httpx.ConnectTimeout as error:
            raise Retryable(f"no connection within {_CONNECT_TIMEOUT:g} s") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise Retryable(f"no answer within {seconds:g} s", most_retries=_MOST_TIMEOUTS) from error
        except httpx.TransportError as error:
            raise self._lost(error) from error

    async def _exchange(self, request: httpx.Request) -> Response:
        answer = await self._transport.handle_async_request(request)
        try:
            body = await _read(answer)
        finally:
            await answer.aclose()
        return self._response(answer, body)

    def _response(self, answer: httpx.Response, body: bytes) -> Response:
        if len(self._secret) >= (_SECRET_LENGTH if answer.is_success else 1):
            body = body.replace(self._secret.encode(), b"***")  # servers echo keys, in errors and elsewhere
        headers = answer.headers
        return Response(
            status=answer.status_code,
            body=body,
            retry_after=retry_after(headers.get("retry-after", ""), datetime.now(UTC)),
            location=clean(headers.get("location", ""), self._secret),
        )

    @cached_property
    def _transport(self) -> httpx.AsyncBaseTransport:
        if self._proxy is None:
            return AiohttpTransport(tls=self._tls, keepalive=_KEPT_ALIVE)
        try:  # httpx's own knows SOCKS as well
            limits = httpx.Limits(keepalive_expiry=_KEPT_ALIVE)
            return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, proxy=self._proxy)
        except ImportError:
            raise FatalFault("the environment names a SOCKS proxy, which needs: pip install 'httpx[socks]'") from None
        except (ValueError, httpx.InvalidURL):  # whose text may hold the proxy's password
            raise FatalFault("the proxy that the environment names is no URL; see HTTPS_PROXY and ALL_PROXY") from None

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        if self.base_url.startswith("https:"):
            return httpx.create_ssl_context()
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody; to load the certificates takes 30 ms

    def _url(self, path: str) -> httpx.URL:
        if path not in self._urls:
            self._urls[path] = httpx.URL(self.base_url + path)
        return self._urls[path]

    def _lost(self, error: httpx.TransportError) -> Retryable | FatalFault:
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            return FatalFault(f"no request can be made of this: {clean(str(error), self._secret)}")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return FatalFault(f"the server's certificate is not trusted: {clean(str(error))}")
        doing = "cannot connect" if isinstance(error, httpx.ConnectError) else "connection lost"
        return Retryable(f"{doing}: {clean(str(error), self._secret) or type(error).__name__}")


def retry_after(header: str, now: datetime) -> float | None:
    """Seconds to wait by a `Retry-After` header in either of its forms (RFC 9110, 10.2.3); None where none."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER) if math.isfinite(seconds) else None


def proxy_for(base_url: str) -> str | None:
    """The proxy that the environment names for an address; it is for the way out of this machine only."""
    parts = urlsplit(base_url)
    if is_loopback(base_url) or proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


async def _read(answer: httpx.Response) -> bytes:
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise Retryable("the server compressed its answer without being asked to")
    body = bytearray()
    if int(answer.headers.get("content-length", "0")) > MAX_BYTES:
        raise Fault(_TOO_LONG)
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    async for chunk in answer.stream:
        body += chunk
        if len(body) > MAX_BYTES:
            raise Fault(_TOO_LONG)
    return bytes(body)
