from __future__ import annotations

import json
from typing import Any

import pytest

from koderz.errors import FatalFault
from koderz.types import Message, Sampling

from .conftest import Models
from .loopback import Answer, Routes

USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}


def reply(*blocks: dict[str, Any], stop_reason: str = "end_turn") -> Answer:
    body = {"content": list(blocks), "stop_reason": stop_reason, "usage": USAGE, "model": "claude-x-20260131"}
    return Answer(json.dumps(body).encode())


def turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


async def test_request_has_anthropics_format(routes: Routes, models: Models) -> None:
    routes.answers = [reply({"type": "text", "text": "hi"})]
    model = await models.open("claude-x", api_key="sk-ant-0123")
    messages = [turn("system", "Be good."), turn("user", "a"), turn("system", "Be brief.")]
    completion = await model.complete(messages, Sampling(temperature=0.3, max_tokens=50, top_p=0.9, stop=("END",)))
    (asked,) = routes.asked
    assert asked.path == "/v1/messages"
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == ("sk-ant-0123", "2023-06-01")
    assert "authorization" not in asked.headers
    assert asked.json == {
        "model": "claude-x",
        "system": "Be good.\n\nBe brief.",
        "messages": [turn("user", "a")],
        "max_tokens": 50,
        "temperature": 0.3,
        "top_p": 0.9,
        "stop_sequences": ["END"],
    }
    assert (completion.text, completion.finish_reason, completion.model) == ("hi", "stop", "claude-x-20260131")
    assert (completion.tokens_in, completion.tokens_out) == (130, 5)


async def test_token_limit_has_a_default_for_anthropic(routes: Routes, models: Models) -> None:
    routes.answers = [reply()]
    await (await models.open("claude-x")).complete([turn("user", "a")], Sampling())
    assert routes.asked[0].json == {"model": "claude-x", "messages": [turn("user", "a")], "max_tokens": 8192}


async def test_turns_in_a_row_are_joined_and_empty_ones_left_out(routes: Routes, models: Models) -> None:
    routes.answers = [reply()]
    messages = [
        turn("user", "a"),
        turn("assistant", " \n"),
        turn("user", "b"),
        turn("assistant", "c"),
        turn("user", ""),
    ]
    await (await models.open("claude-x")).complete(messages, Sampling())
    assert routes.asked[0].json["messages"] == [turn("user", "a\n\nb"), turn("assistant", "c")]


async def test_seed_that_anthropic_lacks_is_announced_once(routes: Routes, models: Models) -> None:
    routes.answers = [reply({"type": "text", "text": "hi"})]
    model = await models.open("claude-x")
    for _ in range(2):
        completion = await model.complete([turn("user", "a")], Sampling(seed=3))
        assert completion.adapted == ("seed dropped",)
    assert "seed" not in routes.asked[0].json
    assert models.pool.notices[-1] == "seed dropped for anthropic/claude-x: its provider takes none"
    assert len(models.pool.notices) == 1


async def test_thinking_is_kept_apart(routes: Routes, models: Models) -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    routes.answers = [reply(thinking, {"type": "redacted_thinking", "data": "?"}, {"type": "text", "text": "hi"})]
    completion = await (await models.open("claude-x")).complete([turn("user", "a")], Sampling())
    assert (completion.text, completion.reasoning) == ("hi", "hm")


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
    ],
)
async def test_finish_reason_is_translated(routes: Routes, models: Models, word: str, finish: str) -> None:
    routes.answers = [reply(stop_reason=word)]
    completion = await (await models.open("claude-x")).complete([turn("user", "a")], Sampling())
    assert (completion.text, completion.finish_reason) == ("", finish)


async def test_overloaded_server_is_asked_again(routes: Routes, models: Models) -> None:
    body = b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    routes.answers = [Answer(body, 529), Answer(body, 200), reply({"type": "text", "text": "hi"})]
    completion = await (await models.open("claude-x")).complete([turn("user", "a")], Sampling())
    assert (completion.text, completion.retries) == ("hi", 2)


async def test_check_finds_an_unknown_anthropic_model_before_the_run(models: Models, routes: Routes) -> None:
    error = {"type": "error", "error": {"type": "not_found_error", "message": "model: claude-99"}}
    routes.answers = [Answer(json.dumps(error).encode(), 404)]
    model = await models.open("claude-99", base_url=None)
    with pytest.raises(FatalFault, match="404: model: claude-99"):
        await model.check()


async def test_check_passes_a_model_that_anthropic_has(models: Models, routes: Routes) -> None:
    routes.answers = [Answer(b'{"type": "model", "id": "claude-x"}')]
    model = await models.open("claude-x", base_url=None)
    assert await model.check() == {}
    assert (routes.asked[0].headers["host"], routes.asked[0].path) == ("api.anthropic.com", "/v1/models/claude-x")


async def test_schema_is_sent_as_a_tool(routes: Routes, models: Models) -> None:
    said = {"type": "tool_use", "id": "toolu_1", "name": "reply_in_json", "input": {"score": 1}}
    routes.answers = [reply(said, stop_reason="tool_use")]
    schema = {"type": "object", "properties": {"score": {"type": "number"}}}
    model = await models.open("claude-x")
    completion = await model.complete([turn("user", "a")], Sampling(response_format=schema))
    assert (completion.text, completion.finish_reason, completion.tool_calls) == ('{"score":1}', "stop", ())
    (tool,) = routes.asked[0].json["tools"]
    assert (tool["name"], tool["input_schema"]) == ("reply_in_json", schema)
    assert routes.asked[0].json["tool_choice"] == {"type": "tool", "name": "reply_in_json"}
