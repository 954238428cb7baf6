"""OpenAI's chat completions, also served by vLLM, llama.cpp, LM Studio, OpenRouter and many others."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from koderz.models.messages import parted
from koderz.models.providers import OpenAI
from koderz.models.remote import RemoteModel
from koderz.models.wire import (
    Body,
    Part,
    Wire,
    WireReply,
    called,
    count,
    decode_reply,
    fetched,
    finish,
    inner_error,
    instead_of,
    no_answer,
    text_and_reasoning,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.names import ModelName
    from koderz.models.providers import Service
    from koderz.models.transport import Http
    from koderz.types import Message, Sampling


_CUTS = {"max_output_tokens": "max_tokens"}


class _Message(msgspec.Struct):
    content: str | list[Part] | UnsetType | None = UNSET
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: Any = None
    error: Any = None  # OpenRouter's, where a provider gave up on the way


class _ChatCompletion(Body, kw_only=True):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: Any = None
    model: Any = None


class _Listed(msgspec.Struct):
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Listed] | None = None


def _formatted(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}} if schema else None


class OpenAIWire(Wire):
    """Chat completions below a base URL that usually ends in `/v1`."""

    client = "chat"
    path = "/chat/completions"
    parameters = ("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "response_format")
    other_names = MappingProxyType({"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"})

    def request(self, model: str, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop) or None,
            "response_format": _formatted(sampling.response_format),
        }
        offer, conversation = parted(messages)
        asked |= {"tools": offer.tools or None, "tool_choice": offer.choice}
        given = {name: value for name, value in asked.items() if value is not None}
        return {"model": model, "messages": conversation, **given}

    def read(self, body: bytes) -> WireReply:
        completion = decode_reply(body, _ChatCompletion)
        choice = completion.choices[0]
        if choice.error:
            raise inner_error(choice.error)
        message = choice.message
        said, thought = text_and_reasoning(None if message.content is UNSET else message.content)
        reasoning = words(message.reasoning_content) or words(message.reasoning) or thought
        refusal = words(message.refusal)
        text = said or refusal
        old = [{"function": message.function_call}] if message.function_call else []
        calls = called([*(message.tool_calls or ()), *old], text)
        reason = finish(words(choice.finish_reason), text, calls=calls)
        if message.content is UNSET and not (text or reasoning or calls or reason in ("length", "refusal")):
            raise no_answer("its message has no content")  # mlx-lm and Gemini leave it out where the thinking took all
        return WireReply(
            text=text,
            reasoning=reasoning,
            finish_reason="refusal" if refusal else reason,
            model=words(completion.model),
            tokens_in=count(completion.usage, "prompt_tokens"),
            tokens_out=count(completion.usage, "completion_tokens"),
            cache_read=count(completion.usage, "prompt_tokens_details", "cached_tokens") or 0,
            tool_calls=calls,
        )

    async def look(self, http: Http, model: str, say: Callable[[str], None], /) -> dict[str, str]:
        if http.base_url == OpenAI.address:
            await fetched(http, f"/models/{quote(model)}", self.headers, _Listed, must_exist=True)
            return {}
        models = await fetched(http, "/models", self.headers, _Models)
        listed = models.data or () if models else ()
        offered = [one.id.removeprefix("models/") for one in listed]  # as Google has it
        if offered and model not in offered:
            say(f"{http.address} doesn't list {model}; {instead_of(model, offered)}")
        return {}


class _Text(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str
    content: list[_Text] | None = None
    summary: list[_Text] | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    call_id: str | None = None


class _Reason(msgspec.Struct):
    reason: str | None = None


class _Response(Body, kw_only=True):
    output: list[_Item]
    status: str | None = None
    incomplete_details: _Reason | None = None
    usage: Any = None
    model: Any = None


class ResponsesWire(OpenAIWire):
    """The responses API, only for requests of clients that speak it; koderz itself uses chat completions."""

    client = "responses"
    path = "/responses"

    def read(self, body: bytes) -> WireReply:
        response = decode_reply(body, _Response)
        parts = [part for item in response.output if item.type == "message" for part in item.content or ()]
        text = "".join(part.text or part.refusal or "" for part in parts)
        thoughts = [
            part.text or "" for item in response.output if item.type == "reasoning" for part in item.summary or ()
        ]
        items = [item for item in response.output if item.type in ("function_call", "custom_tool_call")]
        made = [
            {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments or {"input": item.input}}}
            for item in items
        ]
        calls = called(made, text)
        cut = response.incomplete_details.reason if response.incomplete_details else None
        return WireReply(
            text=text,
            reasoning="\n\n".join(filter(None, thoughts)),
            finish_reason=finish(_CUTS.get(cut or "", cut) or response.status, text, calls=calls),
            model=words(response.model),
            tokens_in=count(response.usage, "input_tokens"),
            tokens_out=count(response.usage, "output_tokens"),
            cache_read=count(response.usage, "input_tokens_details", "cached_tokens") or 0,
            tool_calls=calls,
        )


def open_model(name: ModelName, service: Service) -> RemoteModel:
    """Opens a model that is reached by chat completions."""
    key = service.endpoint.api_key
    return RemoteModel(name, OpenAIWire(key), service, ResponsesWire(key))
