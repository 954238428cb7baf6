"""As much of HTTP/1.1 as clients of model servers use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

PHRASES: Mapping[int, str] = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as it came; `path` is without its query, the names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection; None where the client has closed it.

    Raises ValueError for what is no request, or has a body without its length.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, headers = _parse_head(head)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise ValueError("the head of the request is too long") from error
    return HttpRequest(method, target.partition("?")[0], headers, body)


def response(
    status: int, body: bytes, *, content_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> bytes:
    """A whole response, with its length."""
    return _head(status, {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}) + body


def chunked_response(pieces: Iterable[bytes], *, content_type: str) -> bytes:
    """A response of a length that isn't known beforehand, piece by piece."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return _head(200, {"content-type": content_type, "transfer-encoding": "chunked"}) + body + b"0\r\n\r\n"


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {PHRASES.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _parse_head(head: bytes) -> tuple[str, str, Mapping[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP/1: {version}")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if "transfer-encoding" in headers:
        raise ValueError("send the request's body with a content-length")
    return method, target, headers
