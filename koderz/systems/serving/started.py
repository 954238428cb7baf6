"""The load `completions`, on a server of completions that a suite has started in a sandbox."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
import msgspec

from koderz.sandbox.workspace import Beside, Running
from koderz.suites.loads import LoadError, LoadResult, SandboxedLoad
from koderz.systems.serving.client import (
    SHOWN,
    Load,
    Measured,
    Stream,
    Target,
    Timing,
    first_listed,
    first_model,
    measured,
    models_url,
    refusal,
    settled,
)
from koderz.systems.serving.figures import MEASURES, metrics_of, result_of
from koderz.systems.serving.options import ServingOptions
from koderz.systems.serving.prompts import Prompt, load_prompts
from koderz.systems.serving.suite import about_of, load_of

_CHECKS, _CHECKED_TOKENS = 20, 16  # prompts whose answers are compared whole, and their length


class CompletionsLoad(SandboxedLoad):
    """Prompts sent as `koderz perf serve-bench` sends them."""

    options = ServingOptions
    measures = MEASURES

    async def find_model(
        self, running: Running, port: int, options: ServingOptions, seconds: float
    ) -> str:
        """The first model of the server's list."""
        find = partial(first_model_beside, running.beside) if running.beside else first_model
        try:
            return await find(_target(running, port, "", options, min(seconds, 10.0)))
        except (AttributeError, IndexError) as error:
            raise ValueError(f"the server's models can't be listed: {error}") from None

    async def send(
        self,
        running: Running,
        port: int,
        model: str,
        options: ServingOptions,
        *,
        seed: int,
        seconds: float,
    ) -> LoadResult:
        """Sends 20 short requests at once and then the load, without sampling."""
        send = partial(measured_beside, running.beside) if running.beside else measured
        target = _target(running, port, model, options, seconds)
        checked = [
            Prompt(each.text, each.tokens, min(each.output_tokens, _CHECKED_TOKENS))
            for each in load_prompts(replace(options, num_prompts=_CHECKS), seed + 1)
        ]
        checks = await send(
            target, checked, load_of(replace(options, request_rate="inf", num_warmups=0), 0)
        )
        loaded = await send(target, load_prompts(options, seed), load_of(options, seed))
        record = loaded.record(about_of(options, model), None)
        if errors := [each.error for each in (*checks.timings, *loaded.timings) if each.error]:
            raise LoadError(f"{len(errors)} requests failed, the first with: {errors[0]}")
        return LoadResult(
            metrics_of(result_of(record)),
            [each.text for each in checks.timings],
            [each.text for each in loaded.timings],
        )


def _target(
    running: Running, port: int, model: str, options: ServingOptions, seconds: float
) -> Target:
    is_chat = options.backend == "openai-chat"
    chosen: dict[str, Any] = {"temperature": 0.0} | (
        {"ignore_eos": True} if options.ignore_eos else {}
    )
    return Target(
        f"http://127.0.0.1:{port}",
        options.endpoint or ("/v1/chat/completions" if is_chat else "/v1/completions"),
        model,
        chat=is_chat,
        sampling=chosen,
        timeout=seconds,
        sockets=running.sockets,
    )


_SOURCE = Path(__file__).with_name("guest") / "load.py"
_MOST = 256 << 20  # bytes of all answers
_HEADERS = (
    ("content-type", "application/json"),
    ("accept-encoding", "identity"),
    ("connection", "close"),
)


class _Exchange(msgspec.Struct):
    """The recorded exchange of a request; times are seconds since the load began."""

    start: float
    ended: float
    queued: float
    error: str
    parts: list[tuple[float, int]]  # when so many bytes came; none at its end


class _Measurement(msgspec.Struct):
    exchanges: list[_Exchange]
    lags: list[float]


_Parts = Sequence[tuple[float, bytes]]


async def measured_beside(
    beside: Beside, target: Target, prompts: Sequence[Prompt], load: Load
) -> Measured:
    """Measures as `load.measured`, without waiting for the server. Raises OSError if the load isn't sent."""
    requests = [_request("POST", target.url, target.body(prompt)) for prompt in prompts]
    exchanges, lags = await _exchanged(beside, target, requests, load)
    return Measured([_timing(target, *each) for each in zip(prompts, exchanges, strict=True)], lags)


async def first_model_beside(beside: Beside, target: Target) -> str:
    """The first model that the server lists, as `client.first_model` returns it."""
    ((exchange, parts),), _ = await _exchanged(
        beside, target, [_request("GET", models_url(target))], Load()
    )
    if exchange.error:
        raise OSError(exchange.error)
    status, body = 0, b""
    for _, event in _events(parts):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
    return first_listed(status, body, target)


def _request(method: str, url: str, body: bytes = b"") -> str:
    parts = urlsplit(url)
    length = [("content-length", str(len(body)))] if body else []
    asked = h11.Request(
        method=method, target=parts.path, headers=[("host", parts.netloc), *_HEADERS, *length]
    )
    return ((h11.Connection(h11.CLIENT).send(asked) or b"") + body).decode()


async def _exchanged(
    beside: Beside, target: Target, requests: Sequence[str], load: Load
) -> tuple[list[tuple[_Exchange, _Parts]], list[float]]:
    """The exchanges of the requests, and the delays of their sender. Raises OSError or ValueError."""
    order = {
        "port": urlsplit(target.url).port,
        "requests": requests,
        "due": load.due(len(requests)),
        "at_once": load.max_concurrency,
        "warmups": load.num_warmups,
        "seconds": target.timeout,
        "room": _MOST,
    }
    answer = await beside(_SOURCE.read_text(), json.dumps(order))
    try:
        line, _, content = zlib.decompressobj().decompress(answer, 2 * _MOST).partition(b"\n")
    except zlib.error as error:
        raise ValueError(f"what came of a load can't be read: {error}") from None
    told = msgspec.json.decode(line, type=_Measurement)
    found, at = list[tuple[_Exchange, _Parts]](), 0
    for exchange in told.exchanges:
        parts = []
        for when, size in exchange.parts:
            parts.append((when, content[at : at + size]))
            at += size
        found.append((exchange, parts))
    return found, told.lags


def _timing(target: Target, prompt: Prompt, came: tuple[_Exchange, _Parts]) -> Timing:
    """The timing of an exchange, read in the same way as an answer that arrives now."""
    exchange, parts = came
    timing = Timing(
        exchange.start,
        exchange.ended,
        exchange.queued,
        input_tokens=prompt.tokens,
        error=exchange.error,
    )
    if timing.error:
        return settled(timing, target)
    stream, refused = Stream(timing, exchange.start), b""
    status: h11.Response | None = None
    try:
        for when, event in _events(parts):
            if isinstance(event, h11.Response):
                status = event
            elif isinstance(event, h11.Data) and status and status.status_code == 200:
                stream.add(event.data, when)
            elif isinstance(event, h11.Data) and len(refused) < SHOWN:
                refused += event.data
        if status and status.status_code == 200:
            stream.end()
        else:
            reason = status.reason.decode("latin-1") if status else ""
            timing.error = refusal(status.status_code if status else 0, reason, refused, target)
    except (h11.ProtocolError, msgspec.MsgspecError, ValueError) as error:
        timing.error = f"{type(error).__name__}: {error}"
    return settled(timing, target)


def _events(parts: _Parts) -> Iterator[tuple[float, h11.Event]]:
    """The events of an answer, and when they arrived. Raises h11.RemoteProtocolError if it isn't whole."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "-")]))
    connection.send(h11.EndOfMessage())
    for when, data in parts:
        connection.receive_data(data)
        while not isinstance(event := connection.next_event(), type):
            yield when, event
            if isinstance(event, h11.EndOfMessage):
                return
