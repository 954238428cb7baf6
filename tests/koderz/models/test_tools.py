"""Tools that are offered and called, on each wire, and requests of clients that are sent as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koderz.errors import FatalFault
from koderz.models.clients import NotSpokenError, packed
from koderz.types import Message, Sampling

from .conftest import Models
from .loopback import Answer, Routes, chat, refusal

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "shell", "description": "Runs a command.", "parameters": SCHEMA}
OFFER: list[Message] = [
    {"role": "tools", "content": [{"type": "function", "function": FUNCTION}], "choice": "required"},
    {"role": "user", "content": "go"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"command":"ls"}'}}


def answer(body: Any) -> Answer:
    return Answer(json.dumps(body).encode())


async def test_openai_is_offered_tools_and_calls_them(routes: Routes, models: Models) -> None:
    routes.answers = [chat(None, tool_calls=[CALL])]
    completion = await (await models.open()).complete(OFFER, Sampling())
    assert completion.tool_calls == (CALL,)
    asked = routes.asked[0].json
    assert asked["tools"] == OFFER[0]["content"]
    assert (asked["tool_choice"], asked["messages"]) == ("required", [{"role": "user", "content": "go"}])


async def test_anthropic_is_offered_tools_and_calls_them(routes: Routes, models: Models) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "shell", "input": {"command": "ls"}}
    routes.answers = [answer({"content": [use], "stop_reason": "tool_use", "usage": {}})]
    completion = await (await models.open("anthropic/claude-x")).complete(OFFER, Sampling())
    assert completion.tool_calls == (CALL,)
    asked = routes.asked[0].json
    assert asked["tools"] == [{"name": "shell", "description": "Runs a command.", "input_schema": SCHEMA}]
    assert asked["tool_choice"] == {"type": "any"}


async def test_ollama_is_offered_tools_and_calls_them(routes: Routes, models: Models) -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "shell", "arguments": {}}}]}
    routes.answers = [answer({"message": called, "done": True, "done_reason": "stop"})]
    completion = await (await models.open("ollama/m")).complete(OFFER, Sampling())
    assert [each["function"] for each in completion.tool_calls] == [{"name": "shell", "arguments": "{}"}]
    assert completion.tool_calls[0]["id"]
    assert routes.asked[0].json["tools"] == OFFER[0]["content"]


async def test_tools_that_a_server_lacks_are_told_in_its_answer(routes: Routes, models: Models) -> None:
    routes.answers = [refusal("m does not support tools")]
    completion = await (await models.open("ollama/m")).complete(OFFER, Sampling())
    assert completion.finish_reason == "rejected"
    assert "does not support tools" in completion.text


BODIES: dict[str, dict[str, Any]] = {
    "messages": {
        "model": "claude-a",
        "stream": True,
        "max_tokens": 100,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "shell", "input_schema": SCHEMA}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "go"}]}],
    },
    "responses": {
        "model": "gpt-a",
        "stream": True,
        "instructions": "s",
        "tools": [{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}],
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": None, "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
        ],
    },
    "chat": {
        "model": "gpt-a",
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": OFFER[0]["content"],
        "messages": [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": [CALL]}],
    },
}
ANSWERS: dict[str, dict[str, Any]] = {
    "messages": {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {}, "extra": 1},
    "responses": {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        ],
        "usage": {"input_tokens": 10, "output_tokens": 5},
    },
    "chat": {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "system_fingerprint": "x"},
}
PATHS = {"messages": "/v1/messages", "responses": "/responses", "chat": "/chat/completions"}


@pytest.mark.parametrize("wire", ["messages", "responses", "chat"])
async def test_client_request_changes_in_model_and_stream_alone(routes: Routes, models: Models, wire: str) -> None:
    routes.answers = [answer(ANSWERS[wire])]
    model = await models.open("anthropic/claude-x" if wire == "messages" else "openai/m")
    completion = await model.complete(packed(wire, BODIES[wire], {"anthropic-beta": "b", "x-api-key": "k"}), Sampling())
    (asked,) = routes.asked
    sent = {name: value for name, value in BODIES[wire].items() if name != "stream_options"}
    assert asked.json == {**sent, "model": "claude-x" if wire == "messages" else "m", "stream": False}
    assert (asked.path, asked.headers["anthropic-beta"]) == (PATHS[wire], "b")
    assert asked.headers.get("x-api-key") != "k"
    assert json.loads(completion.body) == ANSWERS[wire]
    assert completion.text == "hi"


async def test_response_usage_is_counted(routes: Routes, models: Models) -> None:
    routes.answers = [answer(ANSWERS["responses"])]
    completion = await (await models.open()).complete(packed("responses", BODIES["responses"]), Sampling())
    assert (completion.reasoning, completion.tokens_in, completion.tokens_out) == ("hm", 10, 5)
    assert [each["function"]["arguments"] for each in completion.tool_calls] == ['{"input":"*** Begin"}']


@pytest.mark.parametrize("lacking", [refusal("no such path", 404), refusal("Unexpected endpoint or method.", 200)])
async def test_wire_that_a_server_lacks_is_tried_once(routes: Routes, models: Models, lacking: Answer) -> None:
    routes.answers = [lacking]
    model: Any = await models.open()
    assert set(model.clients) == {"chat", "responses"}
    with pytest.raises(NotSpokenError):
        await model.complete(packed("responses", BODIES["responses"]), Sampling())
    assert set(model.clients) == {"chat"}
    with pytest.raises(FatalFault):
        await model.complete(packed("chat", BODIES["chat"]), Sampling())


async def test_client_request_that_is_refused_gets_the_servers_answer(routes: Routes, models: Models) -> None:
    routes.answers = [refusal("prompt is too long")]
    completion = await (await models.open()).complete(packed("chat", BODIES["chat"]), Sampling())
    assert (completion.finish_reason, "too long" in completion.text) == ("rejected", True)
