"""The bodies of requests to the WASM manager and of its answers."""

from __future__ import annotations

import asyncio
import codecs
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from koderz.sandbox.wasm.cells import CellResult

BODY_LIMIT = 16 << 20  # bytes of a request, but for variables that are text, which have a limit of their own
_LONGEST_NAME = 100

T = TypeVar("T")


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


def problem(status: int, message: str) -> Refused:
    return Refused(status, message)


def detail(status: int, message: str) -> web.Response:
    return web.json_response({"detail": message}, status=status)


def host_of(header: str) -> str:
    """The host name in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header


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
