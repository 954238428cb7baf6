"""Requests to a server that streams its completions: one with the times of its parts, or a load of many."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any
from urllib.parse import urlsplit

import msgspec
import orjson

from koderz.connections import httpx, open_client, told
from koderz.errors import Fault
from koderz.models.faults import clean
from koderz.models.transport import proxy_for
from koderz.models.wire import count
from koderz.systems.serving.prompts import Prompt
from koderz_tracker.scrubber import secrets_of, shown_address

SHOWN = 512  # bytes of an error's body


@dataclass(frozen=True, slots=True)
class Target:
    """The address that requests go to, and their common parameters."""

    base_url: str  # without a slash at its end
    endpoint: str
    model: str
    chat: bool = False  # chat completions, not completions
    api_key: str = field(default="", repr=False)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0  # seconds of one request
    # what makes them, for a network that isn't this one
    sockets: Callable[[Any], socket.socket] | None = None

    @property
    def address(self) -> str:
        """The target's address as it may be shown and recorded, without possible secrets."""
        return shown_address(self.url)

    @property
    def url(self) -> str:
        """The endpoint below the base URL, with `/v1` only once."""
        base = (
            self.base_url.removesuffix("/v1") if self.endpoint.startswith("/v1/") else self.base_url
        )
        return base + self.endpoint

    def body(self, prompt: Prompt) -> bytes:
        """The request body for a prompt."""
        asked: dict[str, Any] = (
            {
                "messages": [{"role": "user", "content": prompt.text}],
                "max_completion_tokens": prompt.output_tokens,
            }
            if self.chat
            else {"prompt": prompt.text, "max_tokens": prompt.output_tokens}
        )
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return orjson.dumps({"model": self.model, **asked, **stream, **self.sampling})


@dataclass(slots=True)
class Timing:
    """The times of one request, in seconds."""

    start: float = 0.0  # when it was sent; since the load began
    ended: float = 0.0  # when nothing more was read; since the load began
    queued: float = 0.0  # how long it had waited for a place among --max-concurrency
    ttft: float = 0.0  # from sent to the first token
    itls: list[float] = field(default_factory=list)  # between two chunks with tokens
    latency: float = 0.0  # from sent to the last token
    input_tokens: int = 0
    output_tokens: int = 0  # 0 where the server doesn't say
    text: str = ""
    error: str = ""  # empty where it went well


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    def text_so_far(self) -> str:
        delta = self.delta
        return (
            self.text
            or (delta and (delta.content or delta.reasoning_content or delta.reasoning))
            or ""
        )


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[httpx.AsyncClient]:
    """Connections to the target, as many as there are requests at once. No redirect is followed, no cookie kept."""
    headers = {"content-type": "application/json"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    proxy, sockets = proxy_for(target.base_url), target.sockets
    async with open_client(
        target.url, headers=headers, proxy=proxy, ttl_dns_cache=300, socket_factory=sockets
    ) as client:
        yield client


async def first_model(target: Target) -> str:
    """The first model that the server lists; empty if it lists none. Raises OSError or ValueError."""
    try:
        async with asyncio.timeout(target.timeout), connected(target) as client:
            answer = await client.get(models_url(target))
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise OSError(told(error)) from None
    return first_listed(answer.status_code, answer.content, target)


def models_url(target: Target) -> str:
    """The address of the server's list of models."""
    parts = urlsplit(target.url)
    path = parts.path.removesuffix("/chat/completions").removesuffix("/completions")
    return f"{parts.scheme}://{parts.netloc}{path}/models"


def first_listed(status: int, body: bytes, target: Target) -> str:
    """The first model of a list. Raises ValueError if the body is no list."""
    if status != 200:
        raise ValueError(
            f"{shown_address(models_url(target))} answers HTTP {status}: {_words(body, target)}"
        )
    listed = orjson.loads(body).get("data") or [{}]
    return str(listed[0].get("id", ""))


async def timed(client: httpx.AsyncClient, target: Target, prompt: Prompt, begun: float) -> Timing:
    """Sends one request, once. `begun`: the start of the load by time.perf_counter."""
    timing = Timing(input_tokens=prompt.tokens)
    request = client.build_request("POST", target.url, content=target.body(prompt))
    started = time.perf_counter()
    timing.start = started - begun
    try:
        async with asyncio.timeout(target.timeout):
            answer = await client.send(request, stream=True)
            try:
                await _read(answer, target, timing, started)
            finally:
                await answer.aclose()
    except TimeoutError:
        timing.error = f"no whole answer within {target.timeout:g} seconds"
    except (httpx.TransportError, httpx.InvalidURL) as error:
        timing.error = told(error)
    except (msgspec.MsgspecError, ValueError) as error:
        timing.error = f"{type(error).__name__}: {error}"
    timing.ended = time.perf_counter() - begun
    return settled(timing, target)


async def _read(answer: httpx.Response, target: Target, timing: Timing, started: float) -> None:
    if answer.status_code == 200:
        stream = Stream(timing, started)
        async for data in answer.aiter_bytes():
            stream.add(data, time.perf_counter())
        stream.end()
    else:
        body = await anext(aiter(answer.aiter_bytes(SHOWN)), b"")
        timing.error = refusal(answer.status_code, answer.reason_phrase, body, target)


def refusal(status: int, reason: str, body: bytes, target: Target) -> str:
    """The error in an answer without a stream."""
    return f"HTTP {status} {reason}: {_words(body, target)}".rstrip(": ")


def settled(timing: Timing, target: Target) -> Timing:
    """The timing; for a failed request, without the parts of its answer."""
    if timing.error:
        timing.error = clean(timing.error, target.api_key, *secrets_of(target.base_url))
        timing.ttft = timing.latency = 0.0
        timing.itls, timing.output_tokens, timing.text = [], 0, ""
    return timing


class Stream:
    """Reads a stream of events into a timing. Events of one packet have the same time."""

    def __init__(self, timing: Timing, started: float) -> None:
        self._timing, self._started, self._last = timing, started, 0.0
        self._said: list[str] = []
        self._rest = b""

    def add(self, data: bytes, now: float) -> None:
        """Takes in data that has arrived now, by the clock of `started`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if text := _token(line, self._timing):
                if self._said:
                    self._timing.itls.append(now - self._last)
                else:
                    self._timing.ttft = now - self._started
                self._said.append(text)
                self._last = now

    def end(self) -> None:
        """Called at the end of the stream."""
        if self._said:
            self._timing.latency, self._timing.text = (
                self._last - self._started,
                "".join(self._said),
            )
        else:
            self._timing.error = self._timing.error or "the stream had no token in it"


def _token(line: bytes, timing: Timing) -> str:
    """The text of a stream's line; empty if it brings no token. Records other facts in it."""
    if not line.startswith(b"data:"):
        return ""
    payload = line[5:].strip()
    if payload == b"[DONE]":
        return ""
    chunk = _decode(payload)
    if chunk.error is not None:
        timing.error = f"the stream ended with an error: {chunk.error}"
    if chunk.usage:
        timing.input_tokens = count(chunk.usage, "prompt_tokens") or timing.input_tokens
        timing.output_tokens = count(chunk.usage, "completion_tokens") or 0
    return chunk.choices[0].text_so_far() if chunk.choices else ""


def _words(body: bytes, target: Target) -> str:
    return clean(
        body[:SHOWN].decode("utf-8", "replace"), target.api_key, *secrets_of(target.base_url)
    )


_LOOK = 0.005  # seconds between two looks at how late the event loop is
_POLL = 1.0  # seconds between two requests to a server that isn't ready


@dataclass(frozen=True, slots=True)
class Load:
    """The schedule of requests."""

    request_rate: float = float("inf")  # a second
    burstiness: float = 1.0
    max_concurrency: int | None = None
    num_warmups: int = 0
    ready_check: float = 0.0  # seconds
    seed: int = 0

    def due(self, count: int) -> list[float]:
        """The time at which each request is sent, in seconds after the load begins.

        The gaps are gamma-distributed, rescaled so that the last is due at count / rate, as vLLM has it.
        """
        if self.request_rate == float("inf"):
            return [0.0] * count
        if self.burstiness == float("inf"):
            return [number / self.request_rate for number in range(1, count + 1)]
        rng = random.Random(f"arrivals {self.seed}")  # noqa: S311 repeatable on purpose
        scale = 1 / (self.request_rate * self.burstiness)
        times = [*accumulate(rng.gammavariate(self.burstiness, scale) for _ in range(count))]
        return [each * (count / self.request_rate) / times[-1] for each in times]


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a load."""

    timings: Sequence[Timing]
    lags: Sequence[float]  # how late the event loop was whenever it was looked at, seconds

    def record(
        self, about: Mapping[str, Any], count: Callable[[str], int] | None
    ) -> dict[str, Any]:
        """The record of the load, times to the microsecond. `count`: a tokenizer, if the server counts no tokens."""
        by = "usage"
        for timing in self.timings:
            if not timing.error and not timing.output_tokens:
                by = "tokenizer" if count else "chunks"
                timing.output_tokens = count(timing.text) if count else len(timing.itls) + 1
        lags = sorted(self.lags)
        return {
            "about": about,
            "client_lag_p99_ms": round(1000 * lags[int(0.99 * (len(lags) - 1))], 6)
            if lags
            else 0.0,
            "output_tokens_by": by,
            "requests": [
                {name: _rounded(value) for name, value in asdict(each).items()}
                for each in self.timings
            ],
        }


async def measured(target: Target, prompts: Sequence[Prompt], load: Load) -> Measured:
    """Sends each prompt once, at its due time, whether or not others are done. Nothing is retried.

    Raises Fault where the server isn't ready in time, if that is to be looked at.
    """
    async with connected(target) as client:
        if load.ready_check:
            await _until_ready(client, target, prompts[0], load.ready_check)
        places = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
        begun = time.perf_counter()

        async def one(prompt: Prompt) -> Timing:
            waiting = time.perf_counter()
            async with places:
                queued = time.perf_counter() - waiting
                timing = await timed(client, target, prompt, begun)
            timing.queued = queued
            return timing

        await asyncio.gather(*(one(prompts[0]) for _ in range(load.num_warmups)))
        lags: list[float] = []
        looking = asyncio.create_task(_look(lags))
        begun = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = []
                for prompt, due in zip(prompts, load.due(len(prompts)), strict=True):
                    if (wait := begun + due - time.perf_counter()) > 0:
                        await asyncio.sleep(wait)
                    tasks.append(group.create_task(one(prompt)))
        finally:
            looking.cancel()
        return Measured([task.result() for task in tasks], lags)


async def _look(lags: list[float]) -> None:
    """Notes how late the event loop wakes a sleeping task."""
    while True:
        due = time.perf_counter() + _LOOK
        await asyncio.sleep(_LOOK)
        lags.append(max(0.0, time.perf_counter() - due))


async def _until_ready(
    client: httpx.AsyncClient, target: Target, prompt: Prompt, seconds: float
) -> None:
    begun = time.perf_counter()
    while (timing := await timed(client, target, prompt, begun)).error:
        if time.perf_counter() - begun > seconds:
            raise Fault(
                f"{target.address} isn't ready after {seconds:g} seconds: {timing.error}",
                cause="unreachable",
            )
        await asyncio.sleep(min(_POLL, seconds))


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [round(each, 6) for each in value]
    return round(value, 6) if isinstance(value, float) else value
