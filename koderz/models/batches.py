"""Batch APIs, in which many calls are sent at once, answered within a day, and paid at half the price.

OpenAI's takes a file of requests and gives files of results; Anthropic's takes requests and gives a stream of results.
Results come in any order. Only the provider's own origin is asked, whatever address it names for results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from koderz.models.faults import Response, Retryable, clean, problem_of
from koderz.models.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from koderz.models.transport import Http

NO_SUCH_API = (404, 405, 501)  # what servers say that have no batches
METADATA = "koderz_batch"  # the key under which a provider keeps the name of a batch
_PAGE = 100  # batches of a list
_MOST_PAGES = 100

STATUS_OF: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}
"""The HTTP status of each type of Anthropic's errors, which a result doesn't tell; any other is a server's error."""


class BatchStatus(NamedTuple):
    """The status of a batch, as its provider tells it."""

    id: str
    state: str  # the provider's word
    is_over: bool  # whether nothing more will come
    done: int = 0  # calls with a reply
    failed: int = 0  # calls without
    calls: int = 0  # all of them; 0: not counted yet
    reason: str = ""  # why it failed as a whole
    name: str = ""  # by its metadata
    results: tuple[str, ...] = ()  # the paths of its results


class BatchLines(NamedTuple):
    """The lines of a batch, each made when it is sent, since together they may be 200 MB."""

    made: Sequence[Callable[[], bytes]]
    size: int  # bytes, with a line end each

    def between(self, head: bytes, separator: bytes, tail: bytes) -> tuple[Iterator[bytes], int]:
        """The parts of a body with these lines, and its size. The last line has no separator."""
        last = len(self.made) - 1
        rows = (
            line() + (separator if number < last else b"") for number, line in enumerate(self.made)
        )
        return chain([head], rows, [tail]), len(head) + self.size - 1 + len(tail)


class BatchApi(ABC):
    """A batch API at one address. Methods raise what `problem_of` does."""

    most_lines: int
    most_bytes: int
    path: str  # of batches, below the base URL

    def __init__(self, http: Http, headers: Mapping[str, str], prefix: str = "/v1") -> None:
        """`prefix`: how the paths of calls begin within a batch, where they are named."""
        self.http, self.headers, self.prefix = http, headers, prefix

    @abstractmethod
    def line(self, custom_id: str, path: str, body: bytes) -> bytes:
        """A call as it stands in a batch, without a line end."""

    @abstractmethod
    async def send(self, name: str, path: str, lines: BatchLines) -> BatchStatus:
        """Sends a batch of calls to a path, which may have arrived even where an error is raised."""

    @abstractmethod
    def read_status(self, said: dict[str, Any]) -> BatchStatus:
        """The status in an answer."""

    @abstractmethod
    def read_result(self, line: bytes) -> tuple[str, Response]:
        """The custom id of a result and the response of its call. Raises Retryable for what is none."""

    @abstractmethod
    def after(self, status: BatchStatus) -> str:
        """The query for the page of a list after this batch."""

    async def look(self, batch_id: str) -> BatchStatus:
        """The present status of a batch."""
        return self.read_status(
            _answer(await self.http.get(f"{self.path}/{quote(batch_id)}", self.headers))
        )

    async def cancel(self, batch_id: str) -> None:
        """Cancels a batch at its provider. Calls that are done by then stay so."""
        _answer(await self.http.post(f"{self.path}/{quote(batch_id)}/cancel", b"", self.headers))

    async def is_there(self) -> bool:
        """Whether the server has batches."""
        response = await self.http.get(f"{self.path}?limit=1", self.headers)
        if response.status in NO_SUCH_API:
            return False
        _answer(response)
        return True

    async def latest(self) -> list[BatchStatus]:
        """The batches that were sent last, the last first."""
        return (await self._page(""))[0]

    async def since(self, newest: str) -> list[BatchStatus]:
        """All batches that were sent after the one with the id `newest`, the last first; all, where it is empty."""
        found: list[BatchStatus] = []
        after = ""
        for _ in range(_MOST_PAGES):
            page, has_more = await self._page(after)
            ids = [status.id for status in page]
            if newest in ids:
                return found + page[: ids.index(newest)]
            found += page
            if not page or not has_more:
                break
            after = self.after(page[-1])
        return found

    async def _page(self, after: str) -> tuple[list[BatchStatus], bool]:
        """A page of the list of batches, and whether there are more."""
        said = _answer(await self.http.get(f"{self.path}?limit={_PAGE}{after}", self.headers))
        found = [
            self.read_status(each) for each in said.get("data") or () if isinstance(each, dict)
        ]
        return found, bool(said.get("has_more"))

    async def results(self, status: BatchStatus) -> AsyncIterator[tuple[str, Response]]:
        """The custom id and response of each result that can be read; a line that can't is left out."""
        for path in status.results:
            async for line in self.http.lines(path, self.headers):
                try:
                    yield self.read_result(line)
                except Retryable:
                    continue


class _Sent(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _OpenAIResult(msgspec.Struct):
    custom_id: str
    response: _Sent | None = None
    error: Any = None


class OpenAIBatches(BatchApi):
    """OpenAI's batches, also of servers that speak its formats, and of Azure's."""

    most_lines, most_bytes, path = 50_000, 200_000_000, "/batches"

    def line(self, custom_id: str, path: str, body: bytes) -> bytes:
        head = encode({"custom_id": custom_id, "method": "POST", "url": self.prefix + path})
        return head[:-1] + b',"body":' + body + b"}"

    async def send(self, name: str, path: str, lines: BatchLines) -> BatchStatus:
        border = f"koderz-{name}"
        head = (
            f'--{border}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{border}\r\n'
            f'content-disposition: form-data; name="file"; filename="{name}.jsonl"\r\n'
            "content-type: application/jsonl\r\n\r\n"
        )
        parts, size = lines.between(head.encode(), b"\n", f"\n\r\n--{border}--\r\n".encode())
        kind = f"multipart/form-data; boundary={border}"
        file = _answer(await self.http.upload("/files", parts, size, kind, self.headers))
        asked = {
            "input_file_id": file.get("id"),
            "endpoint": self.prefix + path,
            "completion_window": "24h",
            "metadata": {METADATA: name},
        }
        return self.read_status(
            _answer(await self.http.post(self.path, encode(asked), self.headers))
        )

    def read_status(self, said: dict[str, Any]) -> BatchStatus:
        counts = _dict(said.get("request_counts"))
        state = str(said.get("status"))
        errors = _dict(said.get("errors")).get("data") or ()
        reasons = [
            f"{each.get('code')}: {each.get('message')}"
            for each in errors
            if isinstance(each, dict)
        ]
        files = [said.get(key) for key in ("output_file_id", "error_file_id")]
        return BatchStatus(
            id=str(said.get("id") or ""),
            state=state,
            is_over=state in ("completed", "expired", "cancelled", "failed"),
            done=_count(counts.get("completed")),
            failed=_count(counts.get("failed")),
            calls=_count(counts.get("total")),
            reason=clean("; ".join(reasons)),
            name=str(_dict(said.get("metadata")).get(METADATA) or ""),
            results=tuple(
                f"/files/{quote(file)}/content" for file in files if isinstance(file, str) and file
            ),
        )

    def read_result(self, line: bytes) -> tuple[str, Response]:
        result = decode(line, _OpenAIResult)
        if result.response:
            return result.custom_id, Response(
                result.response.status_code, bytes(result.response.body)
            )
        # expired, cancelled or timed out
        return result.custom_id, Response(408, encode({"error": result.error}))

    def after(self, status: BatchStatus) -> str:
        return f"&after={quote(status.id)}"


class _Outcome(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _AnthropicResult(msgspec.Struct):
    custom_id: str
    result: _Outcome


class AnthropicBatches(BatchApi):
    """Anthropic's batches of messages, which keep no metadata."""

    most_lines, most_bytes, path = 100_000, 256_000_000, "/v1/messages/batches"

    def line(self, custom_id: str, path: str, body: bytes) -> bytes:  # noqa: ARG002 there is one path
        return encode({"custom_id": custom_id})[:-1] + b',"params":' + body + b"}"

    async def send(self, name: str, path: str, lines: BatchLines) -> BatchStatus:  # noqa: ARG002
        parts, size = lines.between(b'{"requests":[', b",", b"]}")
        sending = self.http.upload(self.path, parts, size, "application/json", self.headers)
        return self.read_status(_answer(await sending))

    def read_status(self, said: dict[str, Any]) -> BatchStatus:
        counts = {name: _count(value) for name, value in _dict(said.get("request_counts")).items()}
        batch_id, state = str(said.get("id") or ""), str(said.get("processing_status"))
        done = counts.get("succeeded", 0)
        is_kept = bool(said.get("results_url")) and not said.get("archived_at")
        return BatchStatus(
            id=batch_id,
            state=state,
            is_over=state == "ended",
            done=done,
            failed=sum(counts.values()) - done - counts.get("processing", 0),
            calls=sum(counts.values()),
            results=(f"{self.path}/{quote(batch_id)}/results",) if is_kept else (),
        )

    def read_result(self, line: bytes) -> tuple[str, Response]:
        result = decode(line, _AnthropicResult)
        outcome = result.result
        if outcome.type == "succeeded":
            return result.custom_id, Response(200, bytes(outcome.message))
        error = _dict(outcome.error)
        error = (
            _dict(error.get("error"))
            or error
            or {"message": f"the call {outcome.type} in its batch"}
        )
        status = (
            408
            if outcome.type in ("expired", "canceled")
            else STATUS_OF.get(str(error.get("type")), 500)
        )
        return result.custom_id, Response(status, encode({"error": error}))

    def after(self, status: BatchStatus) -> str:
        return f"&after_id={quote(status.id)}"


BATCH_APIS: Mapping[str, type[BatchApi]] = MappingProxyType(
    {"chat": OpenAIBatches, "messages": AnthropicBatches}
)
"""The batch API of servers that speak a wire format, by its name in `koderz.models.clients`."""


def _answer(response: Response) -> dict[str, Any]:
    if not 200 <= response.status < 300:
        raise problem_of(response)
    return decode(response.body, dict[str, Any])


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
