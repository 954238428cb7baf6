"""What clients ask on wires that a model doesn't speak, and what they are answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koderz.models.clients import MalformedError, client_of, packed, sampling_of, translated, unpacked
from koderz.types import Reply
from tests.koderz.models.test_tools import BODIES, SCHEMA

PICTURE = "data:image/png;base64,aGk="
SHELL = {"type": "function", "function": {"name": "shell", "parameters": SCHEMA}}
SSE = {"content-type": "text/event-stream"}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"command":"ls"}'}}
SAID = [
    {"role": "tools", "content": [SHELL]},
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PICTURE}}],
    },
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
    {"role": "user", "content": "so?"},
]
OF_MESSAGES = {
    "max_tokens": 7,
    "stop_sequences": ["x"],
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "shell", "input_schema": SCHEMA}, {"type": "web_search_20250305", "name": "web_search"}],
    "thinking": {"type": "enabled"},
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "shell", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a\nb"}]},
                {"type": "text", "text": "so?"},
            ],
        },
    ],
}
OF_RESPONSES = {
    "max_output_tokens": 7,
    "instructions": "be brief",
    "store": False,
    "tools": [{"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}, {"type": "web_search"}],
    "service_tier": "auto",
    "input": [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PICTURE}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"command":"ls"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "a\nb"},
        {"type": "message", "role": "user", "content": "so?"},
    ],
}


@pytest.mark.parametrize("wire", ["messages", "responses", "chat"])
def test_client_request_that_is_packed_is_unpacked_whole(wire: str) -> None:
    kept = {name: value for name, value in BODIES[wire].items() if name not in ("model", "stream", "stream_options")}
    assert unpacked(packed(wire, BODIES[wire])) == kept


@pytest.mark.parametrize(
    ("wire", "body", "dropped"),
    [
        ("messages", OF_MESSAGES, ("tool web_search", "thinking")),
        ("responses", OF_RESPONSES, ("tool web_search", "service_tier")),
        ("chat", {"tools": [SHELL], "messages": SAID[1:], "store": True, "max_tokens": 7}, ("store",)),
    ],
)
def test_conversation_means_the_same_on_every_wire(wire: str, body: dict[str, Any], dropped: Any) -> None:
    assert translated(packed(wire, body)) == (SAID, dropped)
    assert sampling_of(body)["max_tokens"] == 7


def test_token_limit_of_none_is_not_counted() -> None:
    assert sampling_of({"max_tokens": -1, "temperature": -1})["max_tokens"] is None


@pytest.mark.parametrize(
    ("wire", "body", "named"),
    [
        ("chat", {"messages": [], "n": 1}, "messages"),
        ("chat", {"messages": [{"role": "user", "content": "a"}], "n": 2}, "n: "),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ("responses", {"input": "a", "previous_response_id": "r"}, "previous_response_id"),
        ("responses", {"input": [{"type": "item_reference", "id": "a"}]}, "item_reference"),
        ("responses", {"input": "a", "text": {"format": {"type": "json_schema"}}}, "text"),
    ],
)
def test_request_part_without_equivalent_is_named(wire: str, body: dict[str, Any], named: str) -> None:
    with pytest.raises(MalformedError, match=named):
        translated(packed(wire, body))


def test_client_additions_are_not_forwarded() -> None:
    own: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        "function_call": None,
        "provider_specific": {},
    }
    told = translated(packed("chat", {"messages": [own]})).messages
    assert told == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


def test_pictures_in_what_a_tool_told_come_after_it() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [picture], "is_error": True}
    told = translated(packed("messages", {"messages": [{"role": "user", "content": [result]}]})).messages
    assert [message["role"] for message in told] == ["tool", "user"]
    assert told[1]["content"][0]["image_url"]["url"] == PICTURE


REPLY = Reply(3, "I look.", "hm", tokens_in=10, tokens_out=5, tool_calls=(CALL,))


def test_reply_is_written_for_its_client() -> None:
    message = client_of("messages").answer(REPLY, {})
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert (message["content"][2]["input"], message["stop_reason"]) == ({"command": "ls"}, "tool_use")
    response = client_of("responses").answer(REPLY, {})
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
    assert response["usage"]["total_tokens"] == 15
    completion = client_of("chat").answer(REPLY, {})
    assert completion["choices"][0]["message"]["tool_calls"] == [CALL]
    assert completion["choices"][0]["finish_reason"] == "tool_calls"


def test_reply_that_was_cut_says_so_on_every_wire() -> None:
    cut = Reply(1, "I", finish_reason="length")
    assert client_of("messages").answer(cut, {})["stop_reason"] == "max_tokens"
    assert client_of("responses").answer(cut, {})["incomplete_details"] == {"reason": "max_output_tokens"}
    assert client_of("chat").answer(cut, {})["choices"][0]["finish_reason"] == "length"


def test_tool_of_free_text_is_a_function_and_its_call_is_turned_back() -> None:
    body = {"tools": [{"type": "custom", "name": "patch"}], "input": "go"}
    (offer, _), _ = translated(packed("responses", body))
    assert [*offer["content"][0]["function"]["parameters"]["properties"]] == ["input"]
    called = {"id": "c9", "type": "function", "function": {"name": "patch", "arguments": '{"input": "*** Begin"}'}}
    item = client_of("responses").answer(Reply(1, "", tool_calls=(called,)), body)["output"][0]
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", "*** Begin", "c9")
    made = translated(packed("responses", {"input": [item]})).messages[0]["tool_calls"][0]
    assert json.loads(made["function"]["arguments"]) == {"input": "*** Begin"}


def test_tools_of_a_namespace_have_its_name_and_their_calls_are_turned_back() -> None:
    """So does codex offer the tools of MCP servers."""
    tool = {"type": "function", "name": "parcel_code", "parameters": SCHEMA}
    body = {"tools": [{"type": "namespace", "name": "mcp__parcels", "tools": [tool]}], "input": "go"}
    whole = "mcp__parcels__parcel_code"
    (offer, _), dropped = translated(packed("responses", body))
    assert [each["function"]["name"] for each in offer["content"]] == [whole]
    assert not dropped
    called = {"id": "c9", "type": "function", "function": {"name": whole, "arguments": '{"key": "a"}'}}
    item = client_of("responses").answer(Reply(1, "", tool_calls=(called,)), body)["output"][0]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp__parcels", "parcel_code")
    made = translated(packed("responses", {**body, "input": [item]})).messages[-1]["tool_calls"][0]
    assert made["function"]["name"] == whole


@pytest.mark.parametrize("wire", ["messages", "responses", "chat"])
def test_stream_ends_as_its_client_expects(wire: str) -> None:
    stream = b"".join(client_of(wire).events(client_of(wire).answer(REPLY, {}))).decode()
    last = {"messages": "message_stop", "responses": "response.completed", "chat": "[DONE]"}[wire]
    assert last in stream.strip().rpartition("\n\n")[2]
    for line in stream.splitlines():
        if line.startswith("data: {"):
            json.loads(line.removeprefix("data: "))


def streamed(wire: str) -> Any:
    """The transport of a client that gets the reply as a stream, whatever it asks."""
    import httpx2

    client = client_of(wire)
    stream = b"".join(client.events(client.answer(REPLY, {"model": "m"})))
    return httpx2.MockTransport(lambda _: httpx2.Response(200, headers=SSE, content=stream))


@pytest.mark.slow  # seconds to import
def test_openais_own_client_reads_streams_of_both_its_wires() -> None:
    import httpx2
    import openai

    def client(wire: str) -> openai.OpenAI:
        http = httpx2.Client(transport=streamed(wire))
        return openai.OpenAI(base_url="http://x/v1", api_key="k", http_client=http, _strict_response_validation=True)

    with client("responses").responses.stream(model="m", input="hi") as events:
        told = [(event.type, getattr(event, "delta", "")) for event in events if event.type.endswith("delta")]
        response = events.get_final_response()
    assert told == [
        ("response.reasoning_summary_text.delta", "hm"),
        ("response.output_text.delta", "I look."),
        ("response.function_call_arguments.delta", CALL["function"]["arguments"]),
    ]
    assert (response.output_text, response.usage and response.usage.total_tokens) == ("I look.", 15)
    with client("chat").chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as chunks:
        message = chunks.get_final_completion().choices[0].message
    assert message.content == "I look."
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == CALL["function"]["arguments"]


@pytest.mark.slow  # seconds to import
def test_anthropics_own_client_reads_a_stream() -> None:
    import anthropic
    import httpx2

    http = httpx2.Client(transport=streamed("messages"))
    client = anthropic.Anthropic(base_url="http://x", api_key="k", http_client=http, _strict_response_validation=True)
    with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as events:
        blocks = events.get_final_message().content
    assert [block.type for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[2].input == {"command": "ls"}
