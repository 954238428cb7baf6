"""A server that streams meaningless completions with known delays, for load tests.

    async with StreamingServer(ttft=0.05, itl=0.01) as server:
        ...  # stream from server.url + "/v1/completions", then look at server.requests and server.sent

From a shell: `python -m koderz.testing --stream --ttft-ms 50 --itl-ms 10`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from koderz.errors import KoderzError
from koderz.testing.server import LoopbackServer, lowered
from koderz.testing.service import BROKEN, Faults
from koderz.testing.wire import bearer_token, event, openai_list

Json = dict[str, Any]

_WORDS = ("a", "little", "of", "what", "no", "one", "asked", "for")


@dataclass(frozen=True, slots=True)
class Delays:
    """The times at which tokens are sent, in seconds since the request was read."""

    ttft: float = 0.0  # of the first token
    itl: float = 0.0  # between two tokens
    bundle: int = 1  # tokens in one event
    burst: int = 1  # events in one packet

    def due(self, tokens: int) -> Iterator[tuple[float, int, int]]:
        """For each packet: when it is sent, its first token, and the one after its last."""
        size = self.bundle * self.burst
        for first in range(0, tokens, size):
            after = min(first + size, tokens)
            yield self.ttft + (after - min(size, tokens)) * self.itl, first, after


class StreamingServer(LoopbackServer):
    """OpenAI's completions and chat completions, streamed with known delays.

    A reply has as many tokens as are asked for, else `output_tokens`: the first after `ttft` seconds, each further one
    `itl` seconds after the one before. `bundle` tokens come in one event, `burst` events in one packet. All are due at
    absolute times, so that a busy machine shifts single ones and no averages. Without `usage` no stream says how many
    tokens it had. `faults`, `seed`, `api_key`, `models` and `log` are as of `koderz.testing.ModelServer`.
    Raises KoderzError for faults that can't be. Usable once, as an async context manager.
    """

    def __init__(
        self,
        *,
        ttft: float = 0.0,
        itl: float = 0.0,
        bundle: int = 1,
        burst: int = 1,
        output_tokens: int = 16,
        usage: bool = True,
        faults: Mapping[str, float] | None = None,
        seed: int = 0,
        api_key: str | None = None,
        models: Sequence[str] = ("recorded",),
        port: int = 0,
        log: Path | None = None,
    ) -> None:
        super().__init__(port=port, log=log)
        if min(ttft, itl, bundle - 1, burst - 1, output_tokens - 1) < 0:
            raise KoderzError(
                "delays are seconds from 0 on; bundle, burst and output_tokens are at least 1"
            )
        self._delays = Delays(ttft, itl, bundle, burst)
        self._output_tokens, self._usage, self._api_key = output_tokens, usage, api_key
        self._faults = Faults(faults or {}, seed=seed)
        self._models = tuple(models)
        self.requests: list[Json] = []  # the bodies, in order
        self.keys: list[str] = []  # that came with them
        # of each stream when its packets were written, seconds since it was read
        self.sent: list[list[float]] = []

    def _routes(self) -> Iterable[web.AbstractRouteDef]:
        asked = (
            web.post(path, self._answered) for path in ("/v1/completions", "/v1/chat/completions")
        )
        return (web.get("/v1/models", self._listed), *asked)

    async def _listed(self, request: web.Request) -> web.Response:
        if self._api_key not in (None, bearer_token(lowered(request))):
            return _refused(401, "invalid API key")
        return web.json_response(openai_list(self._models))

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        answer = await self._answer(request, body, time.monotonic())
        if answer.status != 200:
            self._note({"t": time.time(), "status": answer.status, "tokens": 0, "sent": ()})
        return answer

    async def _answer(self, request: web.Request, body: Json, begun: float) -> web.StreamResponse:
        key = bearer_token(lowered(request))
        self.requests.append(body)
        self.keys.append(key)
        if self._api_key not in (None, key):
            return _refused(401, "invalid API key")
        if body.get("model") not in self._models:
            return _refused(404, f"The model `{body.get('model')}` does not exist.")
        fault = self._faults.draw(str(body.get("prompt") or body.get("messages"))) or ""
        if fault.isdecimal():
            return _refused(int(fault), "this server was told to fail now and then")
        if fault == "hang":
            await asyncio.Event().wait()
        if fault in BROKEN:
            return web.Response(body=BROKEN[fault], content_type="application/json")
        return await self._streamed(request, body, begun, fault)

    async def _streamed(
        self, request: web.Request, body: Json, begun: float, fault: str
    ) -> web.StreamResponse:
        asked = int(
            body.get("max_completion_tokens") or body.get("max_tokens") or self._output_tokens
        )
        tokens = {"empty": 0, "truncated": asked // 2, "drop": max(1, asked // 2)}.get(fault, asked)
        is_chat = "messages" in body
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        written: list[float] = []
        self.sent.append(written)
        if is_chat:
            await answer.write(event(_chunk(body, {"delta": {"role": "assistant", "content": ""}})))
        for due, first, after in self._delays.due(tokens):
            await asyncio.sleep(begun + due - time.monotonic())
            await answer.write(self._packet(body, first, after, is_chat=is_chat))
            written.append(time.monotonic() - begun)
        if fault == "drop":
            assert request.transport is not None
            request.transport.close()
            return answer
        reason = "stop" if tokens < asked else "length"
        end = event(_chunk(body, {"delta": {}} if is_chat else {"text": ""}, reason))
        if self._usage and (body.get("stream_options") or {}).get("include_usage"):
            prompt = len(str(body.get("prompt") or body.get("messages")).split())
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "total_tokens": prompt + tokens,
            }
            end += event({"object": "chunk", "model": body["model"], "choices": [], "usage": usage})
        await answer.write(end + b"data: [DONE]\n\n")
        self._note({"t": time.time(), "status": 200, "tokens": tokens, "sent": written})
        return answer

    def _packet(self, body: Json, first: int, after: int, *, is_chat: bool) -> bytes:
        packet = b""
        for start in range(first, after, self._delays.bundle):
            text = "".join(
                f"{_WORDS[n % len(_WORDS)]} "
                for n in range(start, min(start + self._delays.bundle, after))
            )
            packet += event(
                _chunk(body, {"delta": {"content": text}} if is_chat else {"text": text})
            )
        return packet


def _chunk(body: Json, what: Json, finish_reason: str | None = None) -> Json:
    choice = {"index": 0, **what, "finish_reason": finish_reason}
    return {"id": "stream", "object": "chunk", "model": body["model"], "choices": [choice]}


def _refused(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "error", "code": status}}, status=status
    )
