"""The model server itself, with records of its requests and answers, and the base of loopback servers."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson
from aiohttp import web

from koderz.testing.service import (
    Faults,
    HttpRequest,
    Manner,
    ModelService,
    Reasoning,
    Replies,
    SentReply,
    Status,
    answer_from,
    read_models,
)
from koderz.testing.wire import Request, Wire


class LoopbackServer(ABC):
    """An HTTP server at 127.0.0.1, on a free port by default. Usable once, as an async context manager."""

    def __init__(self, *, port: int = 0, log: Path | None = None) -> None:
        self._port, self._log_path = port, log
        self._log: BinaryIO | None = None

    @abstractmethod
    def _routes(self) -> Iterable[web.AbstractRouteDef]:
        """The handlers of requests, by path and method."""

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, once the server is entered."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        if self._log_path is not None:
            self._log = self._log_path.open("ab", buffering=0)
        app = web.Application(client_max_size=0)
        app.add_routes(self._routes())
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()
        if self._log is not None:
            self._log.close()

    def _note(self, line: Mapping[str, Any]) -> None:
        """Writes one line of the log, if there is one."""
        if self._log is not None:
            self._log.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def lowered(request: web.Request) -> dict[str, str]:
    """The headers of a request, their names in lower case."""
    return {name.lower(): value for name, value in request.headers.items()}


class ModelServer(LoopbackServer):
    """A model server on loopback that speaks Ollama, OpenAI and Anthropic on one port.

    `replies` says what it answers (`koderz.testing.Replies`); without, the simulated model answers HumanEval.
    `models` are the names it answers to, with 404 for all others. Every answer takes `latency` seconds.
    `faults` gives shares of the requests to faults, such as `{"429": 0.1, "drop": 0.02}` (`koderz.testing.service`
    says which there are), drawn by `seed` and the same however requests interleave; the first `fail_first`
    requests of each conversation get 500; above `max_in_flight` requests at once, 429. `retry_after` is what
    429, 503 and 529 say. With `api_key` OpenAI's and Anthropic's paths answer 401 to any other; Ollama's never
    ask. Parameters in `refuse` are answered with 400 and the words of the real server. `reasoning` says how a
    model's thoughts are sent: in the text between `<think>` tags, or in a field, by OpenAI's wire of this name.
    `log` is a file that gets one JSON line for each answer, at once.

    Raises KoderzError for faults or models that can't be. Usable once, as an async context manager.
    """

    def __init__(
        self,
        replies: Replies | None = None,
        *,
        models: Collection[str] = ("recorded",),
        latency: float = 0.0,
        faults: Mapping[str, float] | None = None,
        seed: int = 0,
        fail_first: int = 0,
        max_in_flight: int | None = None,
        retry_after: str = "0",
        api_key: str | None = None,
        refuse: Collection[str] = (),
        reasoning: Reasoning = "inline",
        port: int = 0,
        log: Path | None = None,
        keep_requests: bool = True,
    ) -> None:
        super().__init__(port=port, log=log)
        manner = Manner(
            latency, api_key, read_models(models), frozenset(refuse), reasoning, retry_after
        )
        drawn = Faults(faults or {}, seed=seed, fail_first=fail_first)
        self._service = ModelService(manner, drawn, answer_from(replies))
        self._max_in_flight = max_in_flight
        self._keep_requests = keep_requests
        self._in_flight = 0
        # to a model, well-formed, in order; empty with keep_requests=False
        self.requests: list[Request] = []
        # by HTTP status; `hang`, `drop`, …, `gone` (the client) else
        self.counts: Counter[Status] = Counter()
        self.peak_in_flight = 0

    def _routes(self) -> Iterable[web.AbstractRouteDef]:
        return (web.route("*", "/{path:.*}", self._answered),)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        http = HttpRequest(request.method, request.path, lowered(request), await request.read())
        wire = self._service.wire_of(http)
        if wire is None:
            return await _send(request, self._service.catalogue(http))
        self._in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self._in_flight)
        try:
            return await _send(request, await self._complete(wire, http))
        finally:
            self._in_flight -= 1

    async def _complete(self, wire: Wire, http: HttpRequest) -> SentReply:
        request = self._service.check(wire, http)
        if isinstance(request, SentReply):
            self._book(wire, None, request.status)
            return request
        if self._keep_requests:
            self.requests.append(request)
        # unless there is an answer before the client gives up, which cancels this
        status: Status = "gone"
        try:
            if self._max_in_flight is not None and self._in_flight > self._max_in_flight:
                sent = self._service.overloaded(wire)
            else:
                sent = await self._service.complete(wire, request)
            status = sent.status
            if status == "hang":
                await asyncio.Event().wait()
        finally:
            self._book(wire, request, status)
        return sent

    def _book(self, wire: Wire, request: Request | None, status: Status) -> None:
        self.counts[status] += 1
        line = {
            "t": time.time(),
            "kind": wire.kind,
            "digest": request.digest if request else None,
            "seed": request.sampling.seed if request else None,
            "status": status,
            "model": request.model if request else None,
        }
        self._note(line)


async def _send(request: web.Request, sent: SentReply) -> web.StreamResponse:
    if len(sent.pieces) == 1 and sent.status != "drop":
        return web.Response(
            body=sent.pieces[0],
            status=sent.http_status,
            content_type=sent.content_type,
            headers=sent.headers,
        )
    answer = web.StreamResponse(
        status=sent.http_status, headers={"content-type": sent.content_type, **sent.headers}
    )
    if not sent.streamed:
        answer.content_length = sum(map(len, sent.pieces))
    await answer.prepare(request)
    body = b"".join(sent.pieces)
    if sent.status == "drop":
        await answer.write(body[: len(body) * 3 // 4])
        assert request.transport is not None
        request.transport.close()
        return answer
    for piece in sent.pieces:
        await answer.write(piece)
    return answer
