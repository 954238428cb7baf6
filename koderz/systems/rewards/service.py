"""A judge of rewards over HTTP: JSON in and out."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.sandbox.gate import Gate, GateFullError, is_same
from koderz.systems.rewards.judging import RewardJudge
from koderz.systems.rewards.metrics import prometheus
from koderz.systems.rewards.subjects import UnknownTaskError
from koderz.systems.rewards.turns import QueueFullError
from koderz.systems.rewards.wire import BadBodyError, Batch, Verified, Wanted, decode, encode, mend
from koderz_tracker.addresses import host_of, is_loopback

T = TypeVar("T")

MAX_REPLY = 1_000_000  # bytes
_CONNECTIONS = 4096
_BODY = 32 << 20  # bytes of a request
_HELD = 128 << 20  # bytes of all requests that aren't answered yet
_BRIEF = 256 << 10  # bytes of a body that is parsed at once; a longer one takes a thread, where others aren't held up
_LONG = 4 << 20  # bytes of a body above which it takes its turn, since parsing may take ten times its memory
_STEP = re.compile("-?[0-9]{1,16}")
_RETRY_AFTER = "1"  # seconds


class ServiceAddress(NamedTuple):
    """The address of a service, and who may use it."""

    host: str
    port: int  # 0: any that is free
    token: str = ""  # that every request has to show; empty: none, and only loopback is served

    @property
    def shown(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


class RewardService:
    """The handlers of a judge's HTTP service."""

    def __init__(self, judge: RewardJudge, address: ServiceAddress, *, max_reply: int = MAX_REPLY) -> None:
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
        except BadBodyError as error:
            return problem(400, str(error))
        except GateFullError:
            return problem(503, "so much is being asked that no more is read", {"Retry-After": _RETRY_AFTER})
        except web.HTTPException as error:
            return problem(error.status, error.reason)
        except UnknownTaskError as error:
            return problem(404, str(error))
        except QueueFullError as error:
            return problem(429, str(error), {"Retry-After": _RETRY_AFTER})
        except Exception as error:  # noqa: BLE001 - clients are answered in JSON whatever goes wrong
            traceback.print_exception(error, file=sys.stderr)
            return problem(500, f"an error in koderz ({type(error).__name__}); what it prints has the details")

    def _refusal(self, request: web.Request) -> web.Response | None:
        said = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            return problem(403, "requests of web pages are refused")
        if self._address.token and not is_same(said, self._address.token):
            return problem(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
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
            return problem(503, f"{score.fault.cause}: {score.fault.reason}", {"Retry-After": _RETRY_AFTER})
        return web.Response(body=await asyncio.to_thread(asked.answer, score), content_type="application/json")

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
        size = len(reply) if len(reply) > self._max_reply else len(reply.encode("utf-8", "surrogatepass"))
        if size > self._max_reply:
            raise web.HTTPRequestEntityTooLarge(
                self._max_reply, size, reason=f"{field}: {size:,} bytes; --max-reply is {self._max_reply:,}"
            )


def problem(status: int, text: str, headers: Mapping[str, str] | None = None, **more: int) -> web.Response:
    """An answer that tells what is wrong."""
    body = encode({"error": text, **more})
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _answer(value: Any) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")
