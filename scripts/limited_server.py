"""A loopback model server that enforces rate limits as token buckets, in a process of its own.

    with limited_server("openai", {"requests": 960}) as server: ...
    server.url, server.figures()

Each limit is a minute's worth, held by a bucket of that size (or of fewer `seconds` of it) that is refilled
continuously. OpenAI's server takes a request, its tokens and those of its reply out at once; Anthropic's the tokens
of the reply when it is made. What a bucket doesn't hold is answered 429, with `retry-after`. Headers tell the limits as
the provider's do; style "silent" has none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from aiohttp import web

from koderz.connections import httpx

LATENCY = 0.1  # seconds
_RETRY = "1"  # seconds


@dataclass
class Level:
    """A bucket of the server."""

    most: float  # a minute's worth
    size: float
    left: float
    time: float
    used: float = 0.0

    def flow(self, now: float) -> float:
        self.left = min(self.size, self.left + (now - self.time) * self.most / 60)
        self.time = now
        return self.left

    def take(self, amount: float) -> None:
        self.left -= amount
        self.used += amount

    @property
    def seconds(self) -> float:
        """Until it is full."""
        return (self.size - self.left) * 60 / self.most


@dataclass
class Limited:
    """The server."""

    style: str
    limits: Mapping[str, float]
    seconds: float  # of a limit's worth that its bucket holds
    levels: dict[str, Level] = field(default_factory=dict)
    answered: int = 0
    refused: int = 0
    first: float = 0.0
    last: float = 0.0

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(self.figures() if request.path == "/figures" else {"data": []})
        body, now = await request.read(), time.monotonic()
        if not self.levels:
            self.first = now
            sizes = {kind: most * self.seconds / 60 for kind, most in self.limits.items()}
            self.levels = {kind: Level(most, sizes[kind], sizes[kind], now) for kind, most in self.limits.items()}
        drawn = zlib.crc32(body)
        tokens_in, tokens_out = len(body) * (90 + drawn % 21) // 400, 100 + drawn % 201
        wanted = {"requests": 1, "tokens": tokens_in + tokens_out, "input-tokens": tokens_in, "output-tokens": 1}
        if any(level.flow(now) < wanted[kind] for kind, level in self.levels.items()):
            self.refused += 1
            refusal = {"error": {"message": "Rate limit reached", "type": "rate_limit_error"}}
            return web.json_response(refusal, status=429, headers={"retry-after": _RETRY, **self.headers()})
        self.answered += 1
        self.last = now
        for kind, level in self.levels.items():
            level.take(0 if kind == "output-tokens" else wanted[kind])
        await asyncio.sleep(LATENCY)
        for kind, level in self.levels.items():
            level.flow(time.monotonic())
            level.take(tokens_out if kind == "output-tokens" else 0)
        return web.json_response(self.reply(tokens_in, tokens_out), headers=self.headers())

    def headers(self) -> dict[str, str]:
        """The headers of an answer, in the provider's words."""
        found: dict[str, str] = {}
        for kind, level in self.levels.items():
            told = {"limit": f"{level.most:.0f}", "remaining": f"{max(0, int(level.left))}"}
            if self.style == "openai":
                told["reset"] = _duration(level.seconds)
                found |= {f"x-ratelimit-{what}-{kind}": value for what, value in told.items()}
            elif self.style == "anthropic":
                if kind != "requests":
                    told["remaining"] = f"{max(0, round(level.left, -3)):.0f}"
                full = datetime.now(UTC) + timedelta(seconds=level.seconds)
                told["reset"] = full.strftime("%Y-%m-%dT%H:%M:%SZ")
                found |= {f"anthropic-ratelimit-{kind}-{what}": value for what, value in told.items()}
        return found

    def reply(self, tokens_in: int, tokens_out: int) -> dict[str, Any]:
        if self.style == "anthropic":
            usage = {"input_tokens": tokens_in, "output_tokens": tokens_out}
            return {"content": [{"type": "text", "text": "no"}], "stop_reason": "end_turn", "usage": usage}
        usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
        message = {"role": "assistant", "content": "no"}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    def figures(self) -> dict[str, Any]:
        """The requests that were refused, and of each limit the share that was used while they came.

        A server that tells its limits allows what its buckets hold and are refilled with; a silent one, of whose
        buckets nobody knows, so much a minute.
        """
        span = self.last - self.first
        full = self.style != "silent"
        allowed = {kind: level.size * full + level.most / 60 * span for kind, level in self.levels.items()}
        shares = {kind: level.used / allowed[kind] for kind, level in self.levels.items()}
        return {"answered": self.answered, "refused": self.refused, "seconds": span, "used": shares}


def _duration(seconds: float) -> str:
    """A time as Go writes it, and OpenAI after it: 12ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{1000 * seconds:.0f}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


class LimitedServer(NamedTuple):
    """The server as its user sees it."""

    url: str

    def figures(self) -> dict[str, Any]:
        """What it counted, see `Limited.figures`."""
        return dict(httpx.get(f"{self.url}/figures", trust_env=False).json())


@contextlib.contextmanager
def limited_server(style: str, limits: Mapping[str, float], seconds: float = 60.0) -> Iterator[LimitedServer]:
    """The server in a process of its own."""
    command = [sys.executable, __file__, style, json.dumps(dict(limits)), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield LimitedServer(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()


async def _serve(style: str, limits: Mapping[str, float], seconds: float) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", Limited(style, limits, seconds).handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("style", choices=("openai", "anthropic", "silent"))
    parser.add_argument("limits", type=json.loads, help="a minute's worth by kind, as JSON")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0, help="of it that a bucket holds")
    options = parser.parse_args()
    asyncio.run(_serve(options.style, options.limits, options.seconds))


if __name__ == "__main__":
    main()
