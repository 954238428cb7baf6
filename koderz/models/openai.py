"""OpenAI's chat completions, as OpenAI, vLLM, llama.cpp, LM Studio, OpenRouter and many others serve them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from koderz.models.endpoints import own_address
from koderz.models.faults import clean
from koderz.models.remote import RemoteModel
from koderz.models.wire import WireReply, count, decode, fetched, finish, inner_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.names import ModelName
    from koderz.models.pool import Service
    from koderz.models.transport import Http
    from koderz.types import Message, Sampling

_MOST_SHOWN = 5  # names of models that a server offers instead


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: list[_Part] | str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | float | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    prompt_tokens_details: _Details | None = None


class _ChatCompletion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


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
        completion = decode(body, _ChatCompletion)
        if completion.error is not None and not completion.choices:
            raise inner_error(completion.error)
        choice = completion.choices[0] if completion.choices else _Choice()
        message = choice.message or _Message()
        text, thought = _told(message.content)
        usage = completion.usage or _Usage()
        details = usage.prompt_tokens_details or _Details()
        return WireReply(
            text=text or message.refusal or "",
            reasoning=message.reasoning_content or message.reasoning or thought,
            finish_reason="refusal" if message.refusal else finish(choice.finish_reason),
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
        offered = [listed.id for listed in models.data or ()] if models else []
        if offered and model not in offered:
            names = clean(", ".join(offered[:_MOST_SHOWN]))
            say(f"{http.base_url} doesn't list {model}; it lists {names}{', …' * (len(offered) > _MOST_SHOWN)}")
        return {}


def open_model(name: ModelName, service: Service) -> RemoteModel:
    """A model behind chat completions."""
    return RemoteModel(name, OpenAIWire(service.endpoint.api_key), service)


def _told(content: str | list[_Part] | None) -> tuple[str, str]:
    """Text and reasoning of a message's content, which is a text or a list of parts."""
    if not isinstance(content, list):
        return content or "", ""
    text = "".join(part.text or "" for part in content if part.type != "thinking")
    return text, "".join("".join(_told(part.thinking)) for part in content)
