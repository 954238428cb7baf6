"""A judge of rewards over HTTP: JSON in and out."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import orjson
from aiohttp import web

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.sandbox.gate import Gate, GateFullError, is_same
from koderz.systems.rewards.judging import QueueFullError, RewardJudge
from koderz.systems.rewards.record import prometheus
from koderz.systems.rewards.scores import Item, Score
from koderz.systems.rewards.subjects import UnknownTaskError
from koderz_tracker.addresses import host_of, is_loopback

T = TypeVar("T")

# Each begins with what the search is fast for. Looking behind for backslashes would cost a second for 32 MB.
_ESCAPED_HALF = re.compile(
    rb"\\u[dD](?:[89aAbB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_PLAIN_HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_ESCAPED, _PLAIN = rb"\ufffd", "\ufffd".encode()
_MOST_QUOTES = 1_000_000  # of a body that is taken apart by its fields

Step = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class BadBodyError(Exception):
    """A body isn't what is asked for."""


class Wanted(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A request for one score; its fields are those of `Item`."""

    task: str
    reply: str
    suite: str | None = None
    graded: bool = False
    deadline: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] | None = None
    step: Step | None = None
    id: Annotated[str, msgspec.Meta(max_length=200)] | None = None

    def item(self) -> Item:
        """The request for a judge."""
        return Item(
            self.task,
            self.reply,
            self.suite or "",
            self.graded,
            self.deadline,
            self.step,
            self.id or "",
        )


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """A request for several scores."""

    items: list[Wanted]


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str | None = None


class _Output(msgspec.Struct, gc=False):
    type: str
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Response(msgspec.Struct):
    output: list[_Output]


class _About(msgspec.Struct):
    task_id: str | None = None
    suite: str | None = None
    graded: bool | None = None
    step: Step | None = None


class _Verified(_About, kw_only=True):
    response: _Response
    verifier_metadata: _About | None = None
    reward: msgspec.Raw = msgspec.Raw()
    koderz: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True, slots=True)
class Verified:
    """NeMo Gym's request for a reward: a task's row with an OpenAI Responses object."""

    body: bytearray
    wanted: Wanted
    has_own: bool  # fields of the names that the answer adds

    @classmethod
    def read(cls, body: bytearray) -> Verified:
        """The request in a body. Raises BadBodyError if it is another, or names no task."""
        found: _Verified = decode(body, _Verified)
        about = {name: getattr(found, name) for name in _About.__struct_fields__}
        if found.verifier_metadata:
            more = msgspec.structs.asdict(found.verifier_metadata)
            about |= {name: value for name, value in more.items() if value is not None}
        if about["task_id"] is None:
            raise BadBodyError("task_id: it is missing, also in verifier_metadata")
        reply = "".join(_texts(found.response.output))
        wanted = Wanted(
            about["task_id"], reply, about["suite"], bool(about["graded"]), step=about["step"]
        )
        return cls(body, wanted, has_own=bool(bytes(found.reward) or bytes(found.koderz)))

    def answer(self, score: Score) -> bytes:
        """The request's object with the reward and the score, which win over fields of its own by these names.

        Raises BadBodyError if it has such fields, and too many others.
        """
        more = encode({"reward": score.reward, "koderz": score})
        # the rest isn't taken apart, so that it costs no memory, and is repeated as it came
        if not self.has_own:
            return b"".join((memoryview(self.body)[: self.body.rindex(b"}")], b",", more[1:]))
        if self.body.count(b'"') > _MOST_QUOTES:
            raise BadBodyError(
                "reward, koderz: they are the answer's, and this request is too long to take them out"
            )
        fields: dict[str, msgspec.Raw] = decode(self.body, dict[str, msgspec.Raw])
        return msgspec.json.encode(fields | decode(more, dict[str, msgspec.Raw]))


def _texts(outputs: Iterable[_Output]) -> Iterator[str]:
    """The texts of a model's messages."""
    for output in outputs:
        if output.type == "message":
            content = decode(
                output.content, str | list[_Part] | None, "response.output[...].content"
            )
            if isinstance(content, str):
                yield content
            else:
                yield from (part.text or "" for part in content or () if part.type == "output_text")


def decode(body: bytes | bytearray | msgspec.Raw, kind: type[T] | Any, place: str = "") -> T:
    """The body as a value of this type, which ends at the first wrong item.

    Raises BadBodyError, which names the field that is wrong.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text, _, found = str(error).partition(" - at `$")
        field = place + found.strip("`") if place else found.strip("`.")
        raise BadBodyError(f"{field}: {text}" if field else text) from None
    except (ValueError, RecursionError) as error:
        raise BadBodyError(f"the body is no JSON: {error}") from None


def mend(body: bytearray) -> bytearray:
    """The body, in which U+FFFD has taken the place of each half of a character, whose text no parser agrees on.

    Models that are cut off write such halves. All is done in place, however many there are. Raises BadBodyError for a
    body that isn't UTF-8.
    """
    for half in _PLAIN_HALF.finditer(body):
        body[half.start() : half.end()] = _PLAIN
    for half in _ESCAPED_HALF.finditer(body):
        start = half.start()
        while start and body[start - 1] == ord("\\"):
            start -= 1
        is_escape = (half.start() - start) % 2 == 0  # else a backslash that is escaped, and a u
        other = half[1] is not None
        if is_escape and not other:
            body[half.start() : half.end()] = _ESCAPED
        elif other and not is_escape:
            body[half.start(1) : half.end(1)] = _ESCAPED
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadBodyError(f"the body is no JSON: {error}") from None
    return body


def encode(value: Any) -> bytes:
    """JSON of an answer, in which any text can stand."""
    try:
        return orjson.dumps(value)
    except TypeError:  # halves of characters
        return bytes(mend(bytearray(json.dumps(value, default=_plain).encode())))


def _plain(value: object) -> Any:
    if isinstance(value, Score):
        return asdict(value)
    raise TypeError(type(value).__name__)


MAX_REPLY = 1_000_000  # bytes
_CONNECTIONS = 4096
_BODY = 32 << 20  # bytes of a request
_HELD = 128 << 20  # bytes of all requests that aren't answered yet
# bytes of a body that is parsed at once; a longer one takes a thread, where others aren't held up
_BRIEF = 256 << 10
# bytes of a body above which it takes its turn, since parsing may take ten times its memory
_LONG = 4 << 20
_STEP = re.compile("-?[0-9]{1,16}")
_RETRY_AFTER = "1"  # seconds


class ServiceAddress(NamedTuple):
    """The address of a service, and who may use it."""

    host: str
    port: int  # 0: any that is free
    token: str = ""  # that every request has to show; empty: none, and only loopback is served

    @property
    def shown(self) -> str:
        return (
            f"http://[{self.host}]:{self.port}"
            if ":" in self.host
            else f"http://{self.host}:{self.port}"
        )


class RewardService:
    """The handlers of a judge's HTTP service."""

    def __init__(
        self, judge: RewardJudge, address: ServiceAddress, *, max_reply: int = MAX_REPLY
    ) -> None:
        self._judge, self._address, self._max_reply = judge, address, max_reply
        self._gate = Gate(held=_HELD, connections=_CONNECTIONS)
        self._parsing = asyncio.Lock()
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
        runner = web.AppRunner(
            self.application(), access_log=None, handle_signals=False, shutdown_timeout=3600
        )
        await runner.setup()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        try:
            try:
                await self._gate.listen(
                    runner, host=self._address.host, port=self._address.port, backlog=1024
                )
            except OSError as error:
                raise KoderzError(
                    f"--http {self._address.host}:{self._address.port}: {error.strerror}"
                ) from None
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
        except BadBodyError as error:
            return problem(400, str(error))
        except GateFullError:
            return problem(
                503, "so much is being asked that no more is read", {"Retry-After": _RETRY_AFTER}
            )
        except web.HTTPException as error:
            return problem(error.status, error.reason)
        except UnknownTaskError as error:
            return problem(404, str(error))
        except QueueFullError as error:
            return problem(429, str(error), {"Retry-After": _RETRY_AFTER})
        except Exception as error:  # noqa: BLE001 - clients are answered in JSON whatever goes wrong
            traceback.print_exception(error, file=sys.stderr)
            return problem(
                500, f"an error in koderz ({type(error).__name__}); what it prints has the details"
            )

    def _refusal(self, request: web.Request) -> web.Response | None:
        said = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            return problem(403, "requests of web pages are refused")
        if self._address.token and not is_same(said, self._address.token):
            return problem(
                401,
                "a token is needed: Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )
        if not self._address.token and not is_loopback(host_of(request.headers.get("Host", ""))):
            return problem(403, "no requests are taken under this Host without a token")
        if self._is_closing:
            return problem(503, "the judge is closing", {"Retry-After": _RETRY_AFTER})
        return None

    # What may be asked

    async def _score(self, request: web.Request) -> web.Response:
        wanted = await self._read(request, partial(decode, kind=Wanted))
        self._require_short(wanted.reply, "reply")
        (score,) = await self._judge.score_many([wanted.item()])
        return _answer(score)

    async def _score_batch(self, request: web.Request) -> web.Response:
        items: list[Wanted] = (await self._read(request, partial(decode, kind=Batch))).items
        if len(items) > (most := self._judge.queue):
            return problem(413, f"items: {len(items):,}; --queue takes {most:,}", most_items=most)
        for number, wanted in enumerate(items):
            self._require_short(wanted.reply, f"items[{number}].reply")
        return _answer({"scores": await self._judge.score_many(wanted.item() for wanted in items)})

    async def _verify(self, request: web.Request) -> web.Response:
        """NeMo Gym's: the request back, with the reward."""
        asked = await self._read(request, Verified.read)
        wanted = asked.wanted
        self._require_short(wanted.reply, "response")
        (score,) = await self._judge.score_many([wanted.item()])
        if score.fault:
            return problem(
                503, f"{score.fault.cause}: {score.fault.reason}", {"Retry-After": _RETRY_AFTER}
            )
        return web.Response(
            body=await asyncio.to_thread(asked.answer, score), content_type="application/json"
        )

    async def _tasks(self, _: web.Request) -> web.Response:
        tasks = [
            {"suite": each.argument, "task": task.id, "task_digest": task.digest}
            for each in self._judge.served
            for task in each.suite.tasks
        ]
        return _answer({"tasks": tasks})

    async def _health(self, _: web.Request) -> web.Response:
        suites = {each.argument: len(each.suite.tasks) for each in self._judge.served}
        found = {
            "status": "ok",
            "version": __version__,
            "suites": suites,
            "queue": self._judge.waiting,
        }
        record = self._judge.folder.name if self._judge.folder else None
        return _answer({**found, "notes": [*self._judge.notes], "record": record})

    async def _metrics(self, request: web.Request) -> web.Response:
        accepted = request.headers.get("Accept", "")
        if "text/plain" in accepted or "openmetrics" in accepted:
            text = prometheus(self._judge.all_metrics()).encode("utf-8", "backslashreplace")
            return web.Response(body=text, content_type="text/plain", charset="utf-8")
        step = request.query.get("step")
        if step is None:
            return _answer(self._judge.all_metrics())
        if not _STEP.fullmatch(step):
            return problem(400, "step: a whole number of at most 16 digits")
        return _answer(self._judge.metrics(int(step)))

    async def _read(self, request: web.Request, parse: Callable[[bytearray], T]) -> T:
        """The parsed body. Raises HTTPException and BadBodyError."""
        if request.content_type not in ("application/json", "application/octet-stream"):
            raise web.HTTPUnsupportedMediaType(reason="the body has to be application/json")
        body = await self._gate.read(request, _BODY)
        if len(body) <= _BRIEF:
            return parse(mend(body))
        async with self._parsing if len(body) > _LONG else nullcontext():
            return await asyncio.to_thread(lambda: parse(mend(body)))

    def _require_short(self, reply: str, field: str) -> None:
        size = (
            len(reply)
            if len(reply) > self._max_reply
            else len(reply.encode("utf-8", "surrogatepass"))
        )
        if size > self._max_reply:
            raise web.HTTPRequestEntityTooLarge(
                self._max_reply,
                size,
                reason=f"{field}: {size:,} bytes; --max-reply is {self._max_reply:,}",
            )


def problem(
    status: int, text: str, headers: Mapping[str, str] | None = None, **more: int
) -> web.Response:
    """An answer that tells what is wrong."""
    body = encode({"error": text, **more})
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _answer(value: Any) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")
