"""Anthropic's messages API."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from koderz.models.messages import anthropic_messages, parted
from koderz.models.providers import Anthropic
from koderz.models.remote import RemoteModel
from koderz.models.wire import (
    Body,
    Part,
    Wire,
    WireReply,
    called,
    count,
    decode_reply,
    encode,
    fetched,
    finish,
    text_and_reasoning,
    told_cost,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.names import ModelName
    from koderz.models.providers import Service
    from koderz.models.transport import Http
    from koderz.types import Message, Sampling

_VERSION = "2023-06-01"
_CHOICES = {"required": "any", "none": "none"}
_REPLY = "reply_in_json"  # a tool by which a reply is had that is an object of a schema
_MAX_TOKENS = 8192  # of an answer where none are asked for: the format wants a number


class _Reply(Body, kw_only=True):
    content: list[Part]
    stop_reason: str
    usage: Any = None
    model: Any = None


class AnthropicWire(Wire):
    """The messages API below a base URL without `/v1`."""

    client = "messages"
    path = "/v1/messages"
    parameters = ("temperature", "top_p", "stop_sequences", "max_tokens", "thinking")
    lacking = ("seed",)
    reasoning = MappingProxyType({
        **dict.fromkeys(("thinking", "budget_tokens"), "thinking"),
        **dict.fromkeys(("effort", "output_config"), "output_config"),
    })  # fmt: skip

    def __init__(self, api_key: str) -> None:
        key = {"x-api-key": api_key} if api_key else {}
        self.headers = {"anthropic-version": _VERSION, **key}

    def settled(self, sampling: Sampling) -> tuple[Sampling, tuple[str, ...]]:
        """Without the effort `minimal`, which is no level there, and what is refused beside thinking."""
        left: list[str] = []
        if sampling.reasoning_effort == "minimal":
            sampling = replace(sampling, reasoning_effort=None)
            left.append("reasoning_effort")
        if sampling.reasons and sampling.reasoning_effort != "none":
            refused = {"temperature": sampling.temperature, "top_p": sampling.top_p}
            left += [name for name, value in refused.items() if value is not None]
            sampling = replace(sampling, temperature=None, top_p=None)
        return sampling, tuple(left)

    def request(
        self, model: str, messages: Sequence[Message], sampling: Sampling
    ) -> dict[str, Any]:
        offer, conversation = parted(messages)
        system, turns = anthropic_messages(conversation)
        tools, choice = [_offered(tool) for tool in offer.tools], _chosen(offer.choice)
        if sampling.response_format and not tools:
            tools = [
                {
                    "name": _REPLY,
                    "description": "Gives the reply.",
                    "input_schema": sampling.response_format,
                }
            ]
            # A model that thinks can't be made to use a tool, only be offered one.
            choice = None if _thinking(sampling) else {"type": "tool", "name": _REPLY}
        effort = sampling.reasoning_effort
        asked = {
            "system": system or None,
            "tools": tools or None,
            "tool_choice": choice,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_sequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "thinking": _thinking(sampling)
            or ({"type": "disabled"} if sampling.reasoning_effort == "none" else None),
            "output_config": None if effort in (None, "none") else {"effort": effort},
        }
        given = {name: value for name, value in asked.items() if value is not None}
        limit = _MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
        return {
            "model": model,
            "messages": turns,
            "max_tokens": limit + (sampling.reasoning_tokens or 0),
            **given,
        }

    def read(self, body: bytes) -> WireReply:
        reply = decode_reply(body, _Reply)
        text, reasoning = text_and_reasoning(reply.content)
        replies = [
            encode(part.input).decode()
            for part in reply.content
            if part.name == _REPLY and part.input
        ]
        text += "\n" * bool(text and replies) + "\n".join(replies)
        uses = [part for part in reply.content if part.type == "tool_use" and part.name != _REPLY]
        found = [
            {"id": use.id, "function": {"name": use.name, "arguments": use.input}} for use in uses
        ]
        calls = called(found, text)
        fresh = count(reply.usage, "input_tokens")
        read = count(reply.usage, "cache_read_input_tokens") or 0
        written = count(reply.usage, "cache_creation_input_tokens") or 0
        return WireReply(
            text=text,
            reasoning=reasoning,
            finish_reason="stop"
            if replies and not calls
            else finish(reply.stop_reason, text, calls=calls),
            model=words(reply.model),
            tokens_in=None if fresh is None else fresh + read + written,
            tokens_out=count(reply.usage, "output_tokens"),
            cache_read=read,
            cache_write=written,
            tokens_reasoning=count(reply.usage, "output_tokens_details", "thinking_tokens"),
            cost=told_cost(reply.usage),
            tool_calls=calls,
        )

    async def look(self, http: Http, model: str, _say: Callable[[str], None], /) -> dict[str, str]:
        at_home = http.base_url == Anthropic.address
        await fetched(http, f"/v1/models/{quote(model)}", self.headers, dict, must_exist=at_home)
        return {}


def _thinking(sampling: Sampling) -> dict[str, Any] | None:
    """How a model is told to think: up to a budget, or as it sees fit; None if it isn't."""
    if sampling.reasoning_tokens is not None:
        return {"type": "enabled", "budget_tokens": sampling.reasoning_tokens}
    return {"type": "adaptive"} if sampling.reasoning_effort not in (None, "none") else None


def _offered(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    described = {"description": function["description"]} if "description" in function else {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], **described, "input_schema": schema}


def _chosen(choice: Any) -> dict[str, Any] | None:
    if isinstance(choice, dict):
        return {"type": "tool", "name": choice["function"]["name"]}
    return {"type": _CHOICES[choice]} if choice in _CHOICES else None


def open_model(name: ModelName, service: Service) -> RemoteModel:
    """Opens a model that is reached by Anthropic's messages API."""
    return RemoteModel(name, AnthropicWire(service.endpoint.api_key), service)
