"""The bridge: a model server on the loopback of an agent's sandbox, which answers each request by an `ask`."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import socket
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import orjson
from aiohttp import web

from koderz.errors import KoderzError
from koderz.models.clients import PATHS, Client, MalformedError, client_of, packed, sampling_of
from koderz.sandbox.gate import SECONDS, Gate, is_same
from koderz.sandbox.workspace import Command
from koderz.solvers.definition import AskHandle
from koderz.systems.rollouts.additions import Addition
from koderz.systems.rollouts.agents.servers import Run, Servers
from koderz.types import REJECTED, Reply
from koderz_tracker.messages import letters_of

T = TypeVar("T")

# seconds that an agent has to end by itself, once it was told that there is no more to be had
GRACE = 3.0
_MOST_BYTES = 32 << 20  # of a request, as many as Anthropic takes
# of all requests at once; each of them takes some three times as much while it is read
_HELD_BYTES = 64 << 20
_MOST_PARTS = 1 << 20  # of a request: an empty list of two bytes takes 64 once it is read
_PATIENCE = 5.0  # seconds before a stream begins with a sign of life, and between two of them
_LETTERS_A_TOKEN = 4
_COUNT, _MODELS = "/v1/messages/count_tokens", "/v1/models"
# the status at which the agents of a wire end at once, 400 of any other
_ENDING = {"messages": 402}

_OF_STREAMS = {"content-type": "text/event-stream", "cache-control": "no-cache"}

_UNSTABLE = frozenset(
    {"model", "stream", "stream_options", "metadata", "client_metadata", "prompt_cache_key", "user"}
)
_NOISE = {  # what every run makes anew, by the text that it begins with
    b'"cache_control":': re.compile(rb'"cache_control":\{[^{}]*\},?'),
    b"Chunk ID: ": re.compile(rb"Chunk ID: \w+"),
    b"Wall time: ": re.compile(rb"Wall time: [\d.]+ seconds"),
    b"<current_date>": re.compile(rb"<current_date>[\d-]+"),
    b"Today's date is ": re.compile(rb"Today's date is [\d-]+"),
}
_ID = re.compile(rb'id":"([^"\\]*)"')  # of items and calls


class Bridge:
    """Answers the agent of one rollout, which has to present its token. An async context that ends with the agent."""

    def __init__(self, ask: AskHandle, model: str, additions: Sequence[Addition] = ()) -> None:
        """`additions`: what the agent is given, with the MCP servers that it reaches here."""
        self.token = secrets.token_urlsafe(24)
        self.fault: KoderzError | None = None  # why nothing is answered any more
        self._last: Reply | None = None
        self._calls = 0  # that were answered
        self.actions: list[str] = []  # the tools that replies call
        self._ask, self._model, self._servers = ask, model, Servers(additions)
        self.additions = self._servers.configured(self.token)  # as the agent is told of them
        self.folders = self._servers.folders
        self._stopped = asyncio.Event()
        app = web.Application()
        self._gate = Gate(held=_HELD_BYTES, seconds=SECONDS)
        self._gate.guard(app)
        app.router.add_post("/mcp/{path:.*}", self._link)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()
        await self._servers.end()

    async def begin(self, run: Run, command: Command, place: Path) -> None:
        """See `Servers.begin`."""
        await self._servers.begin(run, command, place)

    async def serve(self, listening: socket.socket) -> None:
        """Answers all connections to a listening socket."""
        await self._gate.listen(self._runner, sock=listening)

    async def beside(self, working: Awaitable[T]) -> T:
        """The result of the agent's work. Raises the fault that left it without answers, once it has ended."""
        work, stopped = asyncio.ensure_future(working), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
            if self.fault:
                await asyncio.wait([work], timeout=GRACE)
                raise self.fault
            return await work
        finally:
            stopped.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait([work])

    def record(self) -> dict[str, Any]:
        """The number of answered `calls`, why the last reply ended (`finish`), and what its MCP servers did (`mcp`)."""
        mcp = {"mcp": traffic} if (traffic := self._servers.record())["servers"] else {}
        return {
            "calls": self._calls,
            "finish": self._last.finish_reason if self._last else "",
            **mcp,
        }

    async def _link(self, request: web.Request) -> web.StreamResponse:
        return await self._servers.handle(request) if self._may(request.headers) else _json({}, 401)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        wire = PATHS.get(request.path.removesuffix("/count_tokens"), "chat")
        client = client_of(wire)
        if not self._may(request.headers):
            return _json(client.error(401, "koderz: the token is missing or wrong"), 401)
        if (request.method, request.path) == ("GET", _MODELS):
            return _json(
                {
                    "object": "list",
                    "data": [{"id": self._model, "object": "model"}],
                    "has_more": False,
                }
            )
        if request.method != "POST" or request.path not in (*PATHS, _COUNT):
            return _json(
                client.error(404, f"koderz: there is nothing at {request.method} {request.path}"),
                404,
            )
        try:
            body = _parsed(await self._gate.read(request, _MOST_BYTES))
            if not isinstance(body, dict):
                raise MalformedError("a request has to be an object")
            messages = packed(
                wire, body, {name.lower(): value for name, value in request.headers.items()}
            )
            known_by = f"{wire}:{fingerprint(body)}"
            size = sum(map(letters_of, messages)) if request.path == _COUNT else 0
        except (orjson.JSONDecodeError, MalformedError, TypeError, RecursionError) as error:
            return _json(client.error(400, f"koderz: {error}"), 400)
        except web.HTTPClientError as error:
            return _json(client.error(error.status, f"koderz: {error.reason}"), error.status)
        if request.path == _COUNT:
            return _json({"input_tokens": size // _LETTERS_A_TOKEN})
        if self.fault:
            return self._refused(wire, client)
        asking = asyncio.ensure_future(self._ask(messages, known_by=known_by, **sampling_of(body)))
        if body.get("stream"):
            return await self._streamed(request, wire, client, body, asking)
        try:
            reply = await asking
        except KoderzError as error:
            return self._refused(wire, client, error)
        self._note(reply)
        if reply.finish_reason == REJECTED:
            return _json(client.error(400, reply.text), 400)
        whole = reply.body.encode() if reply.body else orjson.dumps(client.answer(reply, body))
        return web.Response(body=whole, content_type="application/json")

    async def _streamed(
        self,
        request: web.Request,
        wire: str,
        client: Client,
        body: Mapping[str, Any],
        asking: asyncio.Future[Reply],
    ) -> web.StreamResponse:
        """The whole reply as a stream, with signs of life until it is there."""
        stream = web.StreamResponse(headers=_OF_STREAMS)
        alive = b'event: ping\ndata: {"type":"ping"}\n\n' if wire == "messages" else b": wait\n\n"
        while not (await asyncio.wait([asking], timeout=_PATIENCE))[0]:
            if not stream.prepared:
                await stream.prepare(request)
            await stream.write(alive)
        try:
            self._note(reply := asking.result())
            refused = (
                _json(client.error(400, reply.text), 400)
                if reply.finish_reason == REJECTED
                else None
            )
        except KoderzError as error:
            refused = self._refused(wire, client, error)
        if refused and not stream.prepared:
            return refused
        if refused:
            told = b"event: error\ndata: " + bytes(refused.body) + b"\n\n"  # type: ignore[arg-type]
        else:
            told = b"".join(
                client.events(
                    orjson.loads(reply.body) if reply.body else client.answer(reply, body)
                )
            )
        if not stream.prepared:
            # in one piece, which is a third of the work
            return web.Response(body=told, headers=_OF_STREAMS)
        await stream.write(told)
        await stream.write_eof()
        return stream

    def _note(self, reply: Reply) -> None:
        self._last = reply
        self._calls += 1
        self.actions += [
            f"{call['function']['name']} {call['function']['arguments']}"
            for call in reply.tool_calls
        ]

    def _refused(self, wire: str, client: Client, fault: KoderzError | None = None) -> web.Response:
        """The error that ends an agent. The first fault ends the work."""
        self.fault = self.fault or fault
        self._stopped.set()
        status = _ENDING.get(wire, 400)
        return _json(client.error(status, f"koderz: {self.fault}"), status)

    def _may(self, headers: Mapping[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return is_same(shown, self.token)


def _parsed(data: bytearray) -> Any:
    """The JSON of a request. Raises MalformedError for one that would need far more memory than it has bytes."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _MOST_PARTS:
        raise MalformedError(f"a request may have {_MOST_PARTS:,} commas and brackets")
    return orjson.loads(data)


def fingerprint(body: Mapping[str, Any]) -> str:
    """A digest of a request, 32 hex digits, equal in two runs if only values differ that each run makes anew."""
    stable = {name: value for name, value in body.items() if name not in _UNSTABLE}
    # much, and the same in every run
    tools = orjson.dumps(stable.pop("tools", None), option=orjson.OPT_SORT_KEYS)
    text = orjson.dumps(stable, option=orjson.OPT_SORT_KEYS)
    for begins, noise in _NOISE.items():
        if begins in text:
            text = noise.sub(b"", text)
    numbers: dict[bytes, bytes] = {}

    def numbered(found: re.Match[bytes]) -> bytes:
        return b'id":' + numbers.setdefault(found[1], str(len(numbers)).encode())

    text = _ID.sub(numbered, text.replace(b",}", b"}"))
    return hashlib.blake2b(text + tools, digest_size=16).hexdigest()


def _json(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
