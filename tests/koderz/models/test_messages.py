"""Messages with more than text: each wire format carries them whole, or refuses them by name."""

from __future__ import annotations

from typing import Any

import pytest

from koderz.errors import Fault
from koderz.models.anthropic import AnthropicWire
from koderz.models.names import Endpoint
from koderz.models.ollama import OllamaWire
from koderz.models.openai import OpenAIWire
from koderz.types import Message, Sampling

CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"x": 1}'}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
ELSEWHERE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
CONVERSATION: list[Message] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "what is this"}, PICTURE]},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "content": "a cat", "tool_call_id": "c1"},
    {"role": "user", "content": "so?"},
]
PLAIN: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def openai(messages: list[Message]) -> dict[str, Any]:
    return OpenAIWire(Endpoint()).request("m", messages, Sampling())


def ollama(messages: list[Message]) -> dict[str, Any]:
    return OllamaWire(Endpoint(base_url="")).request("m", messages, Sampling())


def anthropic(messages: list[Message]) -> dict[str, Any]:
    return AnthropicWire("").request("m", messages, Sampling())


def test_openai_is_sent_what_the_solver_wrote() -> None:
    messages = [*CONVERSATION, {"role": "user", "name": "ann", "content": None, "of_a_new_kind": [1]}]

    assert openai(messages)["messages"] == messages


def test_ollama_has_images_apart_and_arguments_as_objects() -> None:
    assert ollama(CONVERSATION)["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what is this", "images": ["aGk="]},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "run", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "a cat", "tool_call_id": "c1", "tool_name": "run"},
        {"role": "user", "content": "so?"},
    ]
    own = {"role": "user", "content": "see", "images": ["aGk="]}
    assert ollama([own])["messages"] == [own]


def test_anthropic_has_blocks_and_results_of_tools_in_the_users_turn() -> None:
    request = anthropic(CONVERSATION)

    assert request["system"] == "be brief"
    assert request["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "run", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "a cat"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]


def test_anthropic_takes_blocks_of_its_own_and_images_by_address() -> None:
    cached = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}

    request = anthropic([{"role": "system", "content": [cached]}, {"role": "user", "content": [ELSEWHERE]}])

    assert request["system"] == [cached]
    source = {"type": "url", "url": "https://example.org/a.png"}
    assert request["messages"][0]["content"] == [{"type": "image", "source": source}]


def test_plain_messages_are_sent_as_plain_text() -> None:
    assert openai(PLAIN)["messages"] == ollama(PLAIN)["messages"] == PLAIN
    assert anthropic(PLAIN) | {"max_tokens": 0} == {
        "model": "m",
        "system": "s",
        "messages": [{"role": "user", "content": "u"}],
        "max_tokens": 0,
    }


@pytest.mark.parametrize(
    ("wire", "message", "told"),
    [
        (ollama, {"role": "user", "content": "x", "name": "ann"}, "no place for the field 'name'"),
        (ollama, {"role": "user", "content": [ELSEWHERE]}, "Ollama's chat can't carry a message of the user"),
        (ollama, {"role": "user", "content": [{"type": "input_audio"}]}, "input_audio"),
        (ollama, {"role": "user", "content": ["text"]}, "no place for this part"),
        (anthropic, {"role": "user", "content": "x", "name": "ann"}, "no place for the field 'name'"),
        (anthropic, {"role": "user", "content": [{"type": "input_audio"}]}, "input_audio"),
        (anthropic, {"role": "user", "content": ["text"]}, "no place for this part"),
        (anthropic, {"role": "user", "content": [{"type": "text"}]}, "no place for this part"),
        (
            anthropic,
            {"role": "assistant", "content": "", "tool_calls": [{"id": 1}]},
            "has to be a function with a name",
        ),
        (
            ollama,
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "the arguments of the tool call f are no JSON",
        ),
    ],
)
def test_message_part_without_a_place_is_a_fault_that_names_it(wire: Any, message: Message, told: str) -> None:
    with pytest.raises(Fault, match=told):
        wire([message])
