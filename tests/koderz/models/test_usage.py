"""What a reply is worth whose usage, model or `Retry-After` is nonsense: it is paid for, so it counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koderz.models.anthropic import AnthropicWire
from koderz.models.faults import LONGEST_WAIT, retry_after
from koderz.models.names import Endpoint, is_another
from koderz.models.ollama import OllamaWire
from koderz.models.openai import OpenAIWire, ResponsesWire
from koderz.models.wire import WireReply
from koderz.types import Message, Sampling

from .conftest import Clock, Models
from .loopback import Answer, Routes, chat, refusal

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)

Body = Callable[[Any], dict[str, Any]]


def of_chat(usage: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": "12345678"}, "finish_reason": "stop"}], "usage": usage}


def of_responses(usage: Any) -> dict[str, Any]:
    message = {"type": "message", "content": [{"type": "output_text", "text": "12345678"}]}
    return {"output": [message], "status": "completed", "usage": usage}


def of_messages(usage: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "12345678"}], "stop_reason": "end_turn", "usage": usage}


def of_ollama(usage: Any) -> dict[str, Any]:
    own = usage if isinstance(usage, dict) else dict.fromkeys(("prompt_eval_count", "eval_count"), usage)
    counts = {name: count for name, count in own.items() if name in FIELDS}  # they lie beside the message
    return {**counts, "message": {"role": "assistant", "content": "12345678"}, "done": True}


WIRES = {
    "chat": (OpenAIWire(Endpoint()).read, of_chat, "prompt_tokens", "completion_tokens"),
    "responses": (ResponsesWire(Endpoint()).read, of_responses, "input_tokens", "output_tokens"),
    "messages": (AnthropicWire("").read, of_messages, "input_tokens", "output_tokens"),
    "ollama": (OllamaWire(Endpoint("http://127.0.0.1:9")).read, of_ollama, "prompt_eval_count", "eval_count"),
}
every_wire = pytest.mark.parametrize("wire", WIRES)

NONSENSE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["12", "", "-1", "١٢", "1e3"])
)
NESTED = st.recursive(NONSENSE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
FIELDS = (
    "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "prompt_tokens_details", "cached_tokens",
    "input_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens", "prompt_eval_count", "eval_count",
)  # fmt: skip
USAGE = NESTED | st.dictionaries(st.sampled_from(FIELDS), NESTED | st.dictionaries(st.sampled_from(FIELDS), NESTED))


def read(wire: str, usage: Any) -> WireReply:
    reader, body, _, _ = WIRES[wire]
    return reader(json.dumps(body(usage)).encode())


@pytest.mark.slow
@every_wire
@settings(max_examples=40)
@given(usage=USAGE)
def test_usage_of_any_nonsense_leaves_the_reply_as_it_is(wire: str, usage: Any) -> None:
    reply = read(wire, usage)
    assert (reply.text, reply.finish_reason) == ("12345678", "stop")
    counts = (reply.tokens_in, reply.tokens_out, reply.cache_read, reply.cache_write)
    assert all(count is None or (type(count) is int and count >= 0) for count in counts)


@every_wire
@pytest.mark.parametrize(
    "tokens", ["12", "", -1, 12.5, None, True, [12], {"total": 12}, 10**8 + 1, 10**400, float("nan")]
)
def test_usage_that_is_no_count_is_told_from_one_that_is(wire: str, tokens: Any) -> None:
    _, _, asked, answered = WIRES[wire]
    assert read(wire, {asked: tokens, answered: 7})[4:6] == (None, 7)
    assert read(wire, {asked: 7.0, answered: tokens})[4:6] == (7, None)
    assert read(wire, {asked: 0, answered: 10**8})[4:6] == (0, 10**8)


@every_wire
def test_usage_with_numbers_beyond_every_reader_is_passed_over(wire: str) -> None:
    reader, body, _, _ = WIRES[wire]
    for number in ("1e999", "-1e999", "9" * 5000, "NaN", "-Infinity"):
        written = json.dumps(body("HERE")).replace('"HERE"', number).encode()
        assert reader(written)[4:6] == (None, None)
        assert reader(written).text == "12345678"


@pytest.mark.parametrize("usage", ["none", ["12"], {"prompt_tokens": "12"}, {"prompt_tokens": {"a": [{}]}}, 12.5, -3])
async def test_usage_that_can_not_be_read_is_estimated_and_noted(
    routes: Routes, models: Models, prompt: list[Message], usage: Any
) -> None:
    routes.answers = [Answer(json.dumps(of_chat(usage)).encode())]
    completion = await (await models.open()).complete(prompt, Sampling())

    assert (completion.text, completion.tokens_in, completion.tokens_out) == ("12345678", 2, 2)
    assert completion.adapted == ("tokens estimated",)
    assert models.pool.notices == ["the server of openai/m doesn't count tokens: they are estimated"]
    assert len(routes.asked) == 1  # it is paid for once


@pytest.mark.parametrize("nonsense", [5, None, [], {"name": "m"}, True])
async def test_optional_usage_may_be_nonsense(
    routes: Routes, models: Models, prompt: list[Message], nonsense: Any
) -> None:
    choice = {"message": {"content": "hi", "reasoning": nonsense, "refusal": nonsense}, "finish_reason": nonsense}
    routes.answers = [Answer(json.dumps({"choices": [choice], "model": nonsense}).encode())]
    completion = await (await models.open()).complete(prompt, Sampling())

    assert (completion.text, completion.finish_reason, completion.model) == ("hi", "stop", "m")
    assert len(routes.asked) == 1


# Which model answered


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("m", "m"),
        ("gpt-4o-mini", "gpt-4o-mini-2024-07-18"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("gpt-4", "gpt-4-0613"),
        ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("claude-sonnet-4-5", "claude-sonnet-4-5@20250929"),
        ("gemini-2.5-flash", "models/gemini-2.5-flash-preview-05-20"),
        ("llama3", "llama3:latest"),
        ("Qwen/Qwen2.5-7B", "qwen/qwen2.5-7b"),
        ("qwen2.5-7b", "/models/Qwen2.5-7B"),
    ],
)
def test_model_with_a_longer_name_is_the_same(asked: str, answered: str) -> None:
    assert not is_another(asked, answered)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("gpt-4o", "gpt-4o-mini"),
        ("gpt-4o-2024-08-06", "gpt-4o-2024-11-20"),
        ("claude-sonnet-4", "claude-sonnet-4-5-20250929"),
        ("qwen2.5-coder:32b", "qwen2.5-coder:7b"),
        ("a/m", "b/m"),
        ("gpt-4", "gpt-4-32k-0613"),
        ("m", "n"),
    ],
)
def test_model_that_differs_is_told_by_its_name(asked: str, answered: str) -> None:
    assert is_another(asked, answered)


async def test_model_other_than_asked_is_noted(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.answers = [
        Answer(json.dumps({**of_chat({"prompt_tokens": 1, "completion_tokens": 1}), "model": "n"}).encode())
    ]
    model = await models.open()
    for _ in range(2):
        completion = await model.complete(prompt, Sampling())
        assert (completion.model, completion.adapted) == ("n", ("answered by n",))
    assert models.pool.notices == ["openai/m was asked, and the server says that n answered"]


# Retry-After


@given(st.text() | st.floats().map(str) | st.integers().map(str) | st.datetimes().map(str))
def test_retry_after_of_any_nonsense_has_sane_bounds(header: str) -> None:
    seconds = retry_after(header, NOW)
    assert seconds is None or 0 <= seconds <= LONGEST_WAIT


@given(
    st.sampled_from(("Mon", "١", "", "Foo")), st.integers(), st.sampled_from(("Nov", "Foo", "11", "²")), st.integers(),
    st.integers(), st.sampled_from(("GMT", "+9999", "-0000", "+99999999999", "²", "")),
)  # fmt: skip
def test_retry_after_of_any_date_has_sane_bounds(
    weekday: str, day: int, month: str, year: int, hour: int, zone: str
) -> None:
    seconds = retry_after(f"{weekday}, {day} {month} {year} {hour}:00:00 {zone}", NOW)
    assert seconds is None or 0 <= seconds <= LONGEST_WAIT


@pytest.mark.parametrize(
    "header",
    [
        "-5", "nan", "-inf", "1e999", "99999999999999999999", "soon", "٣", "²", "0x10", "Mon, 01 Jan 2001 00:00:00 GMT",
        "Fri, 31 Dec 99999999999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "1 Jan 0 0:0:0 +0000", ",", "🙂",
        format(NOW + timedelta(days=9)),
    ],
)  # fmt: skip
async def test_retry_after_of_any_nonsense_is_a_retry(
    routes: Routes, models: Models, prompt: list[Message], clock: Clock, header: str
) -> None:
    routes.answers = [refusal("slow down", 429, retry_after=header), refusal("slow", 503, retry_after=header), chat()]
    completion = await (await models.open()).complete(prompt, Sampling())

    assert (completion.text, completion.retries) == ("hello", 2)
    assert all(0 <= seconds <= LONGEST_WAIT for seconds in clock.slept)
