"""`python -m koderz.testing`: the loopback model server as a command."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.testing.server import ModelServer
from koderz.testing.service import Answering, read_shares
from koderz.testing.streaming import StreamingServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns 2 for invalid options."""
    options = _parser().parse_args(arguments)
    try:
        asyncio.run(_serve(_streaming(options) if options.stream else _server(options)))
    except (KoderzError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _server(options: argparse.Namespace) -> ModelServer:
    from koderz.suites import load_suite
    from koderz.suites.options import SimulatedOptions

    suite: Any = load_suite(options.suite, options.dataset)
    simulated: Answering = suite.simulated_model(
        suite.tasks, options.seed, SimulatedOptions(options.skill)
    )
    return ModelServer(
        simulated,
        models=tuple(options.model or ["recorded"]),
        latency=options.latency_ms / 1000,
        faults=read_shares(options.faults),
        seed=options.seed,
        fail_first=options.fail_first,
        max_in_flight=options.max_in_flight,
        retry_after=options.retry_after,
        api_key=os.environ.get(options.api_key_var) if options.api_key_var else None,
        refuse=options.refuse,
        reasoning=options.reasoning,
        port=options.port,
        log=options.log,
        keep_requests=False,
    )


def _streaming(options: argparse.Namespace) -> StreamingServer:
    return StreamingServer(
        ttft=options.ttft_ms / 1000,
        itl=options.itl_ms / 1000,
        bundle=options.bundle,
        burst=options.burst,
        output_tokens=options.output_tokens,
        usage=not options.no_usage,
        faults=read_shares(options.faults),
        seed=options.seed,
        api_key=os.environ.get(options.api_key_var) if options.api_key_var else None,
        models=tuple(options.model or ["recorded"]),
        port=options.port,
        log=options.log,
    )


async def _serve(server: ModelServer | StreamingServer) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with server:
        sys.stdout.write(f"listening on {server.url}\n")
        sys.stdout.flush()
        await stopped.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m koderz.testing",
        description="A loopback model server: Ollama, OpenAI and Anthropic on one port, answered by the "
        "simulated model. Prints its address, then nothing; ends on SIGTERM or SIGINT.",
    )
    # fmt: off
    add = parser.add_argument
    add("--port", type=int, default=0, help="0 takes a free one (default: %(default)s)")
    add("--model", action="append", metavar="NAME", help="a model it has; repeatable (default: recorded)")
    add("--suite", default="humaneval", help="whose tasks it can answer (default: %(default)s)")
    add("--dataset", type=Path, metavar="FILE", help="the suite's tasks, as a file")
    add("--skill", type=float, default=0.6, help="share of tasks right at once, 0..1 (default: %(default)s)")
    add("--seed", type=int, default=0, help="draws replies and faults (default: %(default)s)")
    add("--latency-ms", type=float, default=0.0, metavar="MS", help="of every answer (default: %(default)s)")
    add("--faults", default="", metavar="NAME:SHARE,…", help="such as 429:0.1,500:0.05,hang:0.01,drop:0.02")
    add("--fail-first", type=int, default=0, metavar="N", help="500 for the first N of each conversation")
    add("--max-in-flight", type=int, metavar="N", help="429 above so many requests at once")
    add("--retry-after", default="0", metavar="TEXT", help="what 429, 503 and 529 say (default: %(default)s)")
    add("--api-key-var", metavar="NAME", help="the environment variable with the key to ask for")
    add("--refuse", action="append", default=[], metavar="PARAMETER", help="answered with 400; repeatable")
    add("--reasoning", choices=("inline", "reasoning_content", "reasoning"), default="inline")
    add("--log", type=Path, metavar="FILE", help="gets a JSON line for every answer")
    stream = parser.add_argument_group(
        "a server for load tests", "It streams OpenAI's completions with known delays; of the above it has --port, "
        "--model, --seed, --faults, --api-key-var and --log."
    ).add_argument
    stream("--stream", action="store_true", help="be that server")
    stream("--ttft-ms", type=float, default=0.0, metavar="MS", help="until the first token (default: %(default)s)")
    stream("--itl-ms", type=float, default=0.0, metavar="MS", help="between two tokens (default: %(default)s)")
    stream("--bundle", type=int, default=1, metavar="N", help="tokens in one event (default: %(default)s)")
    stream("--burst", type=int, default=1, metavar="N", help="events in one packet (default: %(default)s)")
    stream("--output-tokens", type=int, default=16, metavar="N", help="where none are asked for (default: %(default)s)")
    stream("--no-usage", action="store_true", help="don't say how many tokens there were")
    # fmt: on
    return parser


if __name__ == "__main__":
    sys.exit(main())
