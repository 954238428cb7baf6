"""HTTP clients, of which a call takes little CPU.

They are httpx' over aiohttp's connections, which take a fraction of the CPU that its own do, above all at many calls at
once. No redirect is followed, no cookie kept, no address logged: a key goes where its owner sends it, and nowhere else.

httpx is imported from here: it takes its own command line along, with rich and click, unless that can't be imported,
which would be 55 ms of CPU of every run.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import aiohttp

from koderz._version import __version__
from koderz.errors import FatalFault

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
import httpx  # noqa: E402
from httpx_aiohttp import AiohttpTransport  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

__all__ = [
    "CONNECT_SECONDS",
    "HEADERS",
    "MOUNTED",
    "certificates",
    "httpx",
    "is_hopeless",
    "open_client",
    "told",
]

CONNECT_SECONDS = 10.0
HEADERS = MappingProxyType({"accept-encoding": "identity", "user-agent": f"koderz/{__version__}"})
_KEPT_ALIVE = 60.0  # seconds

MOUNTED: ContextVar[httpx.AsyncBaseTransport | None] = ContextVar("MOUNTED", default=None)
"""The transport of all clients that are opened in this context, in place of connections."""

if (_log := logging.getLogger("httpx")).level == logging.NOTSET:
    # it tells each address, which may hold a secret, to who logs from INFO on
    _log.setLevel(logging.WARNING)


def open_client(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    proxy: str | None = None,
    **connector: Any,
) -> httpx.AsyncClient:
    """A client for requests to one server, any number at once. Only connecting has a timeout, nothing is compressed.

    `connector` are arguments of aiohttp.TCPConnector. Raises FatalFault for a proxy that is none.
    """
    return httpx.AsyncClient(
        transport=MOUNTED.get() or _transport(url, proxy, connector),
        headers={**HEADERS, **(headers or {})},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        trust_env=False,
    )


def _transport(
    url: str, proxy: str | None, connector: Mapping[str, Any]
) -> httpx.AsyncBaseTransport:
    try:
        through = httpx.Proxy(proxy) if proxy else None
        if through and (not through.url.host or through.url.port == 0):
            raise ValueError("it names no host and port")
    except (ValueError, httpx.InvalidURL):
        raise FatalFault(  # without what it is, which may hold its password
            "the environment names a proxy that is none; see HTTPS_PROXY and ALL_PROXY, "
            "which may hold http://HOST:PORT or socks5://HOST:PORT, and NO_PROXY",
            cause="unreachable",
        ) from None
    if through and through.url.scheme.startswith("socks"):  # which aiohttp doesn't speak
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEPT_ALIVE)
        return httpx.AsyncHTTPTransport(
            verify=certificates(url), proxy=through, limits=limits, trust_env=False
        )
    trusted = True if _has_certificates() or not url.startswith("https:") else certificates(url)
    connect = partial(
        aiohttp.TCPConnector, limit=0, ssl=trusted, keepalive_timeout=_KEPT_ALIVE, **connector
    )
    return _Connections(
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # unused, since the session has its own
        client=lambda: aiohttp.ClientSession(
            connector=connect(), proxy=proxy, cookie_jar=aiohttp.DummyCookieJar()
        ),
    )


def certificates(url: str) -> ssl.SSLContext:
    """The certificates that a server is trusted by: the system's, or certifi's if it has none.

    For an address without TLS none are loaded, which would take 30 ms.
    """
    if not url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if _has_certificates():
        return ssl.create_default_context()
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def _has_certificates() -> bool:
    """Whether the system has certificates. aiohttp has loaded these already."""
    system = ssl.get_default_verify_paths()
    return bool(system.cafile or (system.capath and any(Path(system.capath).iterdir())))


class _Connections(AiohttpTransport):
    """aiohttp's connections. What befalls them is an httpx.TransportError, whose text is the reason alone."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _as_httpx():
            response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Stream(response.stream)
        return response


class _Stream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


_KINDS: tuple[
    tuple[type[Exception] | tuple[type[Exception], ...], type[httpx.TransportError]], ...
] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (TimeoutError, httpx.ReadTimeout),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError), httpx.UnsupportedProtocol),
    (aiohttp.ClientHttpProxyError, httpx.ProxyError),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ClientResponseError, httpx.RemoteProtocolError),
    (aiohttp.ClientError, httpx.ReadError),
)


@contextmanager
def _as_httpx() -> Iterator[None]:
    """Raises the error of httpx that one of aiohttp is; httpx-aiohttp calls a lost connection a slow one."""
    try:
        yield
    except (httpx.TransportError, aiohttp.ClientError, TimeoutError) as error:
        cause = error.__cause__ if isinstance(error, httpx.TransportError) else error
        kind = next((kind for kinds, kind in _KINDS if isinstance(cause, kinds)), httpx.ReadError)
        raise kind(_reason(cause or error)) from cause


def _reason(error: BaseException) -> str:
    """The reason of an error without the address, which the caller adds."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"{error.status} {error.message}".rstrip()
    if isinstance(error, aiohttp.ClientResponseError):
        return error.message
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer's body ended before it was whole"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0
        return (
            os.strerror(number)
            if number in errno.errorcode
            else error.os_error.strerror or str(error.os_error)
        )
    return str(error)


def told(error: httpx.TransportError | httpx.InvalidURL) -> str:
    """The words for an error without the request's address. They may still hold secrets."""
    said = str(error) or type(error).__name__
    match error:
        case httpx.InvalidURL() | httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
            return f"no request can be made of this: {said}"
        case httpx.ConnectTimeout():
            return f"no connection within {CONNECT_SECONDS:g} s"
        case httpx.ProxyError():
            return f"the proxy refuses: {said}"
        case httpx.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in said:
            return f"the server's certificate is not trusted: {said}"
        case httpx.ConnectError():
            is_proxys = isinstance(error.__cause__, aiohttp.ClientProxyConnectionError)
            return f"cannot connect{' to the proxy' * is_proxys}: {said}"
        case _:
            return f"connection lost: {said}"


def is_hopeless(error: httpx.TransportError | httpx.InvalidURL) -> bool:
    """Whether the same request would fail each time."""
    kinds = (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError)
    return isinstance(error, kinds) or "CERTIFICATE_VERIFY_FAILED" in str(error)
