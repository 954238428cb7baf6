"""A load that is sent from beside a server is timed as one that is sent from here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import pytest

from koderz.systems.serving.client import Load, Target, Timing
from koderz.systems.serving.prompts import Prompt
from koderz.systems.serving.started import first_model_beside, measured_beside
from koderz.testing import StreamingServer
from tests.conftest import PATIENCE

PROMPT = Prompt("a b ä", 3, 6)


async def here(source: str, given: str) -> bytes:
    """Runs it on this machine."""
    words = (sys.executable, "-I", "-S", "-c", source)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    return (await process.communicate(given.encode()))[0]


def loaded(
    server: StreamingServer, prompts: Sequence[Prompt] = (PROMPT,), load: Load | None = None, *, seconds: float = 60.0
) -> list[Timing]:
    async def run() -> list[Timing]:
        async with server:
            target = Target(server.url, "/v1/completions", "recorded", timeout=seconds)
            return [*(await measured_beside(here, target, prompts, load or Load())).timings]

    return asyncio.run(run())


def test_chunks_with_text_are_tokens_as_they_come() -> None:
    server = StreamingServer(ttft=0.05, itl=0.01)
    (timing,) = loaded(server)
    assert (timing.output_tokens, timing.error) == (6, "")
    assert timing.text == "a little of what no one "
    assert timing.latency == pytest.approx(timing.ttft + sum(timing.itls))
    assert timing.ttft >= 0.05
    assert sum(timing.itls) >= 0.05 - 0.01
    assert server.requests[0]["prompt"] == PROMPT.text
    (burst,) = loaded(StreamingServer(burst=6))
    assert burst.itls == [0.0] * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("503", "HTTP 503"),
        ("drop", "Error"),
        ("empty", "no token"),
        ("garbage", "no token"),
        ("hang", "no whole answer within 2 seconds"),
    ],
)
def test_failed_request_says_why_and_is_never_sent_again(fault: str, said: str) -> None:
    server = StreamingServer(faults={fault: 1.0})
    (timing,) = loaded(server, seconds=2 if fault == "hang" else PATIENCE)
    assert said in timing.error
    assert (timing.ttft, timing.itls, timing.output_tokens, timing.text) == (0.0, [], 0, "")
    assert len(server.requests) == 1


def test_warm_ups_count_for_nothing_and_few_are_under_way_at_once() -> None:
    server = StreamingServer(ttft=0.05)
    found = loaded(server, [PROMPT] * 6, Load(max_concurrency=2, num_warmups=3))
    assert len(server.requests) == 3 + 6
    for timing in found:
        assert len([each for each in found if each.start <= timing.start < each.ended]) <= 2
    assert all(timing.queued >= 0.04 for timing in found[2:])


@pytest.mark.slow
def test_open_loop_sends_without_waiting_for_others() -> None:
    server = StreamingServer(faults={"hang": 1.0})
    found = loaded(server, [PROMPT] * 20, Load(request_rate=1000.0, burstiness=float("inf")), seconds=4)
    assert len(server.requests) == 20
    assert [timing.start for timing in found] == sorted(timing.start for timing in found)


def test_first_model_is_found_and_a_missing_one_told() -> None:
    async def run() -> str:
        async with StreamingServer(models=("first", "second")) as server:
            target = Target(server.url, "/v1/completions", "")
            found = await first_model_beside(here, target)
        with pytest.raises(OSError, match="Connect"):
            await first_model_beside(here, target)
        (timing,) = (await measured_beside(here, target, [PROMPT], Load())).timings
        assert "Connect" in timing.error
        return found

    assert asyncio.run(run()) == "first"


@pytest.mark.parametrize("answer", [b"", b"not compressed"])
def test_unreadable_answer_is_an_error(answer: bytes) -> None:
    async def broken(_source: str, _given: str) -> bytes:
        return answer

    with pytest.raises(ValueError, match=r"can't be read|truncated"):
        asyncio.run(measured_beside(broken, Target("http://127.0.0.1:1", "/v1/completions", "m"), [PROMPT], Load()))
