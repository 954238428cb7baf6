"""Requests are sent when they are due, once each; what comes back is timed by the rules of vLLM's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from koderz.settings.schema import Settings
from koderz.systems.serving.client import Load, Target, Timing, first_model, measured
from koderz.systems.serving.options import ServingOptions
from koderz.systems.serving.prompts import Prompt
from koderz.systems.serving.suite import target_of
from koderz.testing import StreamingServer
from tests.conftest import PATIENCE

PROMPT = Prompt("a b c", 3, 6)


def loaded(
    server: StreamingServer, prompts: Sequence[Prompt] = (PROMPT,), load: Load | None = None, **more: Any
) -> list[Timing]:
    async def run() -> list[Timing]:
        async with server:
            target = Target(**{"base_url": server.url, "endpoint": "/v1/completions", "model": "recorded", **more})
            return [*(await measured(target, prompts, load or Load())).timings]

    return asyncio.run(run())


@pytest.mark.parametrize("chat", [False, True])
def test_chunks_with_text_are_tokens_and_no_others(chat: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    (timing,) = loaded(StreamingServer(), chat=chat, endpoint=path)
    assert len(timing.itls) == 5  # neither the chunk with the role, nor that with the end, nor that with the usage
    assert (timing.output_tokens, timing.error) == (6, "")
    assert timing.text == "a little of what no one "
    assert timing.latency == pytest.approx(timing.ttft + sum(timing.itls))


def test_tokens_of_one_event_are_one_chunk() -> None:
    (bundled,) = loaded(StreamingServer(bundle=3))
    assert (len(bundled.itls), bundled.output_tokens) == (1, 6)
    (burst,) = loaded(StreamingServer(burst=6))
    assert burst.itls == [0.0] * 5


def test_tokens_are_counted_by_chunks_or_tokenizer_as_fallback() -> None:
    async def run() -> list[dict[str, Any]]:
        async with StreamingServer(usage=False, bundle=2) as server:
            found = []
            for count in (None, len):
                done = await measured(Target(server.url, "/v1/completions", "recorded"), [PROMPT], Load())
                found.append(done.record({}, count))
            return found

    chunks, tokenizer = asyncio.run(run())
    assert (chunks["output_tokens_by"], chunks["requests"][0]["output_tokens"]) == ("chunks", 3)
    assert (tokenizer["output_tokens_by"], tokenizer["requests"][0]["output_tokens"]) == ("tokenizer", 24)
    assert chunks["requests"][0]["input_tokens"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("503", "HTTP 503"),
        ("drop", "connection lost: the answer's body ended before it was whole"),
        ("empty", "no token"),
        ("garbage", "no token"),
        ("hang", "no whole answer within 2 seconds"),
    ],
)
def test_failed_request_is_a_figure_and_never_sent_again(fault: str, said: str) -> None:
    server = StreamingServer(faults={fault: 1.0})
    (timing,) = loaded(server, timeout=2 if fault == "hang" else PATIENCE)
    assert said in timing.error
    assert (timing.ttft, timing.itls, timing.output_tokens, timing.text) == (0.0, [], 0, "")
    assert len(server.requests) == 1


def test_missing_server_is_a_failed_request() -> None:
    async def run() -> Timing:
        async with StreamingServer() as server:
            url = server.url
        (timing,) = (await measured(Target(url, "/v1/completions", "recorded"), [PROMPT], Load())).timings
        return timing

    assert "cannot connect" in asyncio.run(run()).error


def test_key_goes_to_the_server_and_nowhere_else() -> None:
    async def run(elsewhere: StreamingServer) -> tuple[str, Timing]:
        async with StreamingServer(api_key="k-1234567890abcdef") as server, elsewhere:
            told = Target(server.url, "/v1/completions", "recorded", api_key="k-1234567890abcdef")
            await measured(told, [PROMPT], Load())

            async def moved(request: web.Request) -> web.Response:
                raise web.HTTPTemporaryRedirect(elsewhere.url + request.path)

            app = web.Application()
            app.router.add_post("/v1/completions", moved)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            (timing,) = (
                await measured(Target(url, told.endpoint, "recorded", api_key=told.api_key), [PROMPT], Load())
            ).timings
            await runner.cleanup()
            return server.keys[0], timing

    other = StreamingServer()
    key, timing = asyncio.run(run(other))
    assert key == "k-1234567890abcdef"
    assert timing.error.startswith("HTTP 307")
    assert other.requests == []


def streamed(said: str, **more: Any) -> Timing:
    """How a request fared that was answered by this stream."""

    async def run() -> Timing:
        async def answered(_: web.Request) -> web.StreamResponse:
            return web.Response(text=said, content_type="text/event-stream")

        app = web.Application()
        app.router.add_post("/v1/completions", answered)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        target = Target(f"http://127.0.0.1:{runner.addresses[0][1]}", "/v1/completions", "m", **more)
        (timing,) = (await measured(target, [PROMPT], Load())).timings
        await runner.cleanup()
        return timing

    return asyncio.run(run())


def test_error_in_the_stream_fails_the_request_without_its_key() -> None:
    error = 'data: {"error":{"message":"no room, k-123456"}}'
    timing = streamed(f'data: {{"choices":[{{"text":"a"}}]}}\r\n\r\n: ping\n\n{error}\n\n', api_key="k-123456")
    assert "no room" in timing.error
    assert "k-123456" not in timing.error


@pytest.mark.parametrize(
    "usage", ['"none"', "[1]", "-3", "true", '{"completion_tokens": "6"}', '{"completion_tokens": {"a": [1.5]}}',
              '{"completion_tokens": -1}', '{"completion_tokens": 2.5, "prompt_tokens": null}', f'{10**30}'],
)  # fmt: skip
def test_nonsense_usage_counts_nothing_and_fails_no_request(usage: str) -> None:
    timing = streamed(f'data: {{"choices":[{{"text":"a"}}]}}\n\ndata: {{"choices":[],"usage":{usage}}}\n\n')
    assert (timing.text, timing.error, timing.input_tokens, timing.output_tokens) == ("a", "", 3, 0)


@pytest.mark.slow
def test_open_loop_sends_without_waiting_for_others() -> None:
    server = StreamingServer(faults={"hang": 1.0})
    found = loaded(server, [PROMPT] * 20, Load(request_rate=1000.0, burstiness=float("inf")), timeout=4)
    assert len(server.requests) == 20  # though none of them was ever answered
    assert [timing.start for timing in found] == sorted(timing.start for timing in found)


def test_closed_loop_keeps_its_concurrency_and_tells_waits() -> None:
    found = loaded(StreamingServer(ttft=0.05), [PROMPT] * 6, Load(max_concurrency=2))
    for timing in found:
        others = [each for each in found if each.start <= timing.start < each.ended]
        assert len(others) <= 2
    assert all(timing.queued >= 0.04 for timing in found[2:])


def test_arrivals_are_rescaled_to_the_rate_and_the_same_again() -> None:
    load = Load(request_rate=10.0, seed=3)
    assert load.due(50)[-1] == pytest.approx(5.0)
    assert load.due(50) == load.due(50)
    assert load.due(50) != Load(request_rate=10.0, seed=4).due(50)
    assert Load(request_rate=10.0, burstiness=float("inf")).due(3) == pytest.approx([0.1, 0.2, 0.3])
    assert Load().due(3) == [0.0, 0.0, 0.0]
    even, bursty = (gaps(Load(request_rate=10.0, burstiness=each)) for each in (50.0, 0.05))
    assert max(even) < max(bursty)


def gaps(load: Load) -> list[float]:
    times = [0.0, *load.due(200)]
    return [after - before for before, after in pairwise(times)]


def test_warm_ups_and_ready_check_count_for_nothing() -> None:
    server = StreamingServer()
    assert len(loaded(server, [PROMPT] * 3, Load(num_warmups=4, ready_check=5.0))) == 3
    assert len(server.requests) == 1 + 4 + 3
    plain = StreamingServer()
    loaded(plain, [PROMPT] * 3)
    assert len(plain.requests) == 3


def test_first_model_is_found_below_any_form_of_address() -> None:
    async def run() -> list[str]:
        async with StreamingServer(models=("first", "second"), api_key="secret") as server:
            targets = [
                Target(server.url, "/v1/completions", "", api_key="secret"),
                Target(f"{server.url}/v1", "/v1/chat/completions", "", api_key="secret"),
            ]
            return [await first_model(target) for target in targets]

    assert asyncio.run(run()) == ["first", "first"]


def test_request_is_what_the_run_says() -> None:
    settings = Settings(base_url="http://127.0.0.1:1/v1/", temperature=0.5)
    target = target_of("org/m", ServingOptions(ignore_eos=True), settings)
    assert target.url == "http://127.0.0.1:1/v1/completions"
    assert json.loads(target.body(PROMPT)) == {
        "model": "org/m",
        "prompt": "a b c",
        "max_tokens": 6,
        "temperature": 0.5,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chat = target_of(
        "m", ServingOptions(backend="openai-chat", endpoint="/v2/chat"), Settings(base_url="http://127.0.0.1:1")
    )
    assert chat.url == "http://127.0.0.1:1/v2/chat"
    assert json.loads(chat.body(PROMPT))["messages"] == [{"role": "user", "content": "a b c"}]
