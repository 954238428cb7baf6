"""A judge of rewards over HTTP: JSON in and out."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import msgspec
import orjson
from aiohttp import web

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.rewards.judging import RewardJudge
from koderz.rewards.metrics import prometheus
from koderz.rewards.scores import Item, Score
from koderz.rewards.subjects import UnknownTaskError
from koderz.rewards.turns import QueueFullError
from koderz.sandbox.gate import Gate, is_same

T = TypeVar("T")

MAX_REPLY = 1_000_000  # bytes
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CONNECTIONS = 4096
_BODY = 256 << 20  # bytes of a batch
_HELD = 1 << 30  # bytes of all requests that aren't answered yet
_RETRY_AFTER = "1"  # seconds


class ServiceAddress(NamedTuple):
    """The address of a service, and who may use it."""

    host: str
    port: int  # 0: any that is free
    token: str = ""  # that every request has to show; empty: none, and only loopback is served

    @property
    def shown(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """A request for several scores."""

    items: list[Wanted]


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """A request for one score; its fields are those of `Item`."""

    task: str
    reply: str
    suite: str | None = None
    graded: bool = False
    deadline: float | None = None
    step: int | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        if self.deadline is not None and not 0 <= self.deadline < 1e9:
            raise ValueError("deadline: seconds, from 0")
        if self.id is not None and len(self.id) > 200:
            raise ValueError("id: at most 200 characters")

    def item(self) -> Item:
        """The request for a judge."""
        return Item(self.task, self.reply, self.suite or "", self.graded, self.deadline, self.step, self.id or "")


class RewardService:
    """The handlers of a judge's HTTP service."""

    def __init__(self, judge: RewardJudge, address: ServiceAddress, *, max_reply: int = MAX_REPLY) -> None:
        self._judge, self._address, self._max_reply = judge, address, max_reply
        self._gate = Gate(held=_HELD, connections=_CONNECTIONS)
        self._is_closing = False

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._checked])
        self._gate.guard(app)
        app.router.add_post("/score", self._score)
        app.router.add_post("/score_batch", self._score_batch)
        app.router.add_post("/verify", self._verify)
        app.router.add_get("/tasks", self._tasks)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def serve(self, ready: Callable[[str], None]) -> None:
        """Serves until SIGTERM or SIGINT, then answers what was taken. Calls `ready` with the address.

        Raises KoderzError if the address can't be bound.
        """
        runner = web.AppRunner(self.application(), access_log=None, handle_signals=False, shutdown_timeout=3600)
        await runner.setup()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        try:
            try:
                await self._gate.listen(runner, host=self._address.host, port=self._address.port, backlog=1024)
            except OSError as error:
                raise KoderzError(f"--http {self._address.host}:{self._address.port}: {error.strerror}") from None
            port = runner.addresses[0][1]
            ready(self._address._replace(port=port).shown)
            await stop.wait()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        finally:
            self._is_closing = True
            await runner.cleanup()

    # Who may ask, and how what goes wrong is told

    @web.middleware
    async def _checked(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return self._refusal(request) or await handler(request)
        except web.HTTPException as error:
            return problem(error.status, error.reason)
        except UnknownTaskError as error:
            return problem(404, str(error))
        except QueueFullError as error:
            return problem(429, str(error), {"Retry-After": _RETRY_AFTER})

    def _refusal(self, request: web.Request) -> web.Response | None:
        said = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            return problem(403, "requests of web pages are refused")
        if self._address.token and not is_same(said, self._address.token):
            return problem(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
        if not self._address.token and not is_loopback(_host_of(request)):
            return problem(403, "no requests are taken under this Host without a token")
        if self._is_closing:
            return problem(503, "the judge is closing", {"Retry-After": _RETRY_AFTER})
        return None

    # What may be asked

    async def _score(self, request: web.Request) -> web.Response:
        wanted = _converted(await self._read(request), Wanted)
        self._require_short(wanted.reply, "reply")
        (score,) = await self._judge.score_many([wanted.item()])
        return _answer(score)

    async def _score_batch(self, request: web.Request) -> web.Response:
        items = _converted(await self._read(request), Batch).items
        for number, wanted in enumerate(items):
            self._require_short(wanted.reply, f"items[{number}].reply")
        return _answer({"scores": await self._judge.score_many(wanted.item() for wanted in items)})

    async def _verify(self, request: web.Request) -> web.Response:
        """NeMo Gym's: the request back, with the reward."""
        body = _object(await self._read(request))
        about = body.get("verifier_metadata")
        fields = {**body, **(about if isinstance(about, dict) else {})}
        if "task_id" not in fields:
            return problem(400, "task_id: it is missing, also in verifier_metadata")
        asked = {"task": fields["task_id"], "reply": _output_text(body.get("response"))}
        asked |= {name: fields[name] for name in ("suite", "graded", "step") if fields.get(name) is not None}
        wanted = _converted(asked, Wanted)
        self._require_short(wanted.reply, "response")
        (score,) = await self._judge.score_many([wanted.item()])
        if score.fault:
            return problem(503, f"{score.fault.cause}: {score.fault.reason}", {"Retry-After": _RETRY_AFTER})
        return _answer({**body, "reward": score.reward, "koderz": score})

    async def _tasks(self, _: web.Request) -> web.Response:
        tasks = [
            {"suite": each.argument, "task": task.id, "task_digest": task.digest}
            for each in self._judge.served
            for task in each.suite.tasks
        ]
        return _answer({"tasks": tasks})

    async def _health(self, _: web.Request) -> web.Response:
        suites = {each.argument: len(each.suite.tasks) for each in self._judge.served}
        found = {"status": "ok", "version": __version__, "suites": suites, "queue": self._judge.waiting}
        record = self._judge.folder.name if self._judge.folder else None
        return _answer({**found, "notes": [*self._judge.notes], "record": record})

    async def _metrics(self, request: web.Request) -> web.Response:
        accepted = request.headers.get("Accept", "")
        if "text/plain" in accepted or "openmetrics" in accepted:
            return web.Response(text=prometheus(self._judge.all_metrics()), content_type="text/plain")
        step = request.query.get("step")
        if step is None:
            return _answer(self._judge.all_metrics())
        if not step.lstrip("-").isdecimal():
            return problem(400, "step: a whole number")
        return _answer(self._judge.metrics(int(step)))

    async def _read(self, request: web.Request) -> Any:
        if request.content_type not in ("application/json", "application/octet-stream"):
            raise web.HTTPUnsupportedMediaType(reason="the body has to be application/json")
        body = await self._gate.read(request, _BODY)
        try:
            return orjson.loads(body)
        except ValueError:
            pass
        try:
            return json.loads(body)  # which takes halves of characters, too
        except (ValueError, RecursionError) as error:
            raise web.HTTPBadRequest(reason=f"the body is no JSON: {error}".replace("\n", " ")) from None

    def _require_short(self, reply: str, field: str) -> None:
        size = len(reply) if len(reply) > self._max_reply else len(reply.encode("utf-8", "surrogatepass"))
        if size > self._max_reply:
            raise web.HTTPRequestEntityTooLarge(
                self._max_reply, size, reason=f"{field}: {size:,} bytes; --max-reply is {self._max_reply:,}"
            )


def is_loopback(host: str) -> bool:
    """Whether a host's name is one of this machine's own."""
    return host in _LOOPBACK or host.startswith("127.")


def _host_of(request: web.Request) -> str:
    host = request.headers.get("Host", "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer that tells what is wrong."""
    return web.Response(
        body=orjson.dumps({"error": text}), status=status, headers=headers, content_type="application/json"
    )


def _answer(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value, default=_plain), content_type="application/json")


def _plain(value: object) -> Any:
    if isinstance(value, Score):
        return asdict(value)
    if isinstance(value, str):  # with halves of characters, which orjson doesn't write
        return value.encode("utf-8", "backslashreplace").decode()
    raise TypeError(type(value).__name__)


def _converted(value: Any, kind: type[T]) -> T:
    """A request's body. Raises HTTPBadRequest, which names the field that is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        field = place.strip("`.")
        raise web.HTTPBadRequest(reason=f"{field}: {text}" if field else text) from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise web.HTTPBadRequest(reason="the body has to be a JSON object")
    return value


def _output_text(response: Any) -> str:
    """The answer's text in an OpenAI Responses object. Raises HTTPBadRequest if it is no such object."""
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list):
        raise web.HTTPBadRequest(reason="response: it has to be a Responses object with `output`")
    messages = [each for each in output if isinstance(each, dict) and each.get("type") == "message"]
    parts = [part for each in messages for part in _parts(each.get("content"))]
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "output_text")


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "output_text", "text": content}]
    return [part for part in content or () if isinstance(part, dict)]
