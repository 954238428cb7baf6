"""OpenAI's chat completions, as OpenAI, vLLM, llama.cpp, LM Studio, OpenRouter and many others serve them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from koderz.models.endpoints import own_address
from koderz.models.remote import RemoteModel
from koderz.models.wire import (
    Body,
    Part,
    WireReply,
    count,
    decode_reply,
    fetched,
    finish,
    inner_error,
    instead_of,
    no_answer,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.names import ModelName
    from koderz.models.pool import Service
    from koderz.models.transport import Http
    from koderz.types import Message, Sampling


class _Message(msgspec.Struct):
    content: str | list[Part] | UnsetType | None = UNSET
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    error: Any = None  # OpenRouter's, where a provider gave up on the way


class _Details(msgspec.Struct):
    cached_tokens: int | float | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    prompt_tokens_details: _Details | None = None


class _ChatCompletion(Body, kw_only=True):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None
    model: str | None = None


class _Listed(msgspec.Struct):
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Listed] | None = None


class OpenAIWire:
    """Chat completions below a base URL that usually ends in `/v1`."""

    path = "/chat/completions"
    parameters: tuple[str, ...] = ("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens")
    other_names: Mapping[str, str] = MappingProxyType(
        {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    )

    lacking: tuple[str, ...] = ()
    remedy = "start the server, or set --base-url or OPENAI_BASE_URL to where it is"

    def __init__(self, api_key: str) -> None:
        self.headers: Mapping[str, str] = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def request(self, model: str, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
        asked = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop) or None,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return {"model": model, "messages": list(messages), **given}

    def read(self, body: bytes) -> WireReply:
        completion = decode_reply(body, _ChatCompletion)
        choice = completion.choices[0]
        if choice.error:
            raise inner_error(choice.error)
        message = choice.message
        said, thought = told(None if message.content is UNSET else message.content)
        reasoning = message.reasoning_content or message.reasoning or thought
        text = said or message.refusal or ""
        reason = finish(choice.finish_reason, text, calls=message.tool_calls or message.function_call)
        if message.content is UNSET and not (text or reasoning or reason in ("length", "refusal")):
            raise no_answer("its message has no content")  # mlx-lm and Gemini leave it out where the thinking took all
        usage = completion.usage or _Usage()
        details = usage.prompt_tokens_details or _Details()
        return WireReply(
            text=text,
            reasoning=reasoning,
            finish_reason="refusal" if message.refusal else reason,
            model=completion.model or "",
            tokens_in=count(usage.prompt_tokens),
            tokens_out=count(usage.completion_tokens),
            cache_read=count(details.cached_tokens) or 0,
        )

    async def look(self, http: Http, model: str, say: Callable[[str], None], /) -> dict[str, str]:
        if http.base_url == own_address("openai"):
            await fetched(http, f"/models/{quote(model)}", self.headers, _Listed, must_exist=True)
            return {}
        models = await fetched(http, "/models", self.headers, _Models)
        offered = (
            [listed.id.removeprefix("models/") for listed in models.data or ()] if models else []
        )  # as Google has it
        if offered and model not in offered:
            say(f"{http.base_url} doesn't list {model}; {instead_of(model, offered)}")
        return {}


def open_model(name: ModelName, service: Service) -> RemoteModel:
    """A model behind chat completions."""
    return RemoteModel(name, OpenAIWire(service.endpoint.api_key), service)
