"""httpx over aiohttp's connections, whose compiled parser takes a third of the CPU that httpcore's takes a request.

The package httpx-aiohttp does the same, but tells of a refused connection and of a lost one as of a timeout (0.2.0).
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

import aiohttp
import httpx

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator

_HTTPX = (  # what aiohttp raises, the more special before the more general, and what httpx calls it
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError), httpx.UnsupportedProtocol),
    ((aiohttp.ClientResponseError, aiohttp.ServerDisconnectedError), httpx.RemoteProtocolError),
    (aiohttp.ClientError, httpx.ReadError),
)


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Any number of requests at once, over connections that are kept alive for `keepalive` seconds.

    Of a request's timeouts it knows the one for connecting. It follows no redirects, keeps no cookies and hands
    bodies on as they come.
    """

    def __init__(self, *, tls: ssl.SSLContext, keepalive: float) -> None:
        self._tls, self._keepalive = tls, keepalive
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer as soon as its head is there. Raises httpx.TransportError."""
        self._session = self._session or self._new_session()
        with _errors_of_httpx():
            answer = await self._session.request(
                request.method,
                str(request.url),
                headers=request.headers.multi_items(),
                data=request.content or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(sock_connect=request.extensions["timeout"]["connect"]),
            )
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=_Body(answer))

    async def aclose(self) -> None:
        """Closes the connections, those in use as well."""
        if self._session:
            await self._session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=self._keepalive),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx():
            async for piece in self._answer.content.iter_any():
                yield piece

    async def aclose(self) -> None:
        self._answer.release()


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientError as error:
        raise next(ours for theirs, ours in _HTTPX if isinstance(error, theirs))(_told(error)) from error


def _told(error: aiohttp.ClientError) -> str:
    """The reason alone; where it happened is said by whoever asked."""
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
