"""Ollama's `/api/chat`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from koderz.errors import Unreachable
from koderz.models.messages import ollama_messages, parted
from koderz.models.remote import RemoteModel
from koderz.models.wire import Body, WireReply, called, count, decode_reply, fetched, finish, instead_of, no_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.endpoints import Endpoint
    from koderz.models.names import ModelName
    from koderz.models.pool import Service
    from koderz.models.transport import Http
    from koderz.types import Message, Sampling


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Any] | None = None


class _Reply(Body, kw_only=True):
    message: _Message
    done: bool | None = None
    done_reason: str | None = None
    model: str | None = None
    prompt_eval_count: int | float | None = None
    eval_count: int | float | None = None


class Details(msgspec.Struct):
    """What kind of model it is."""

    family: str | None = None


class Tagged(msgspec.Struct):
    """A model that an Ollama has."""

    name: str
    digest: str = ""
    details: Details | None = None


class Tags(msgspec.Struct):
    """The answer of `/api/tags`."""

    models: list[Tagged] | None = None


class OllamaWire:
    """Chat with a model of an Ollama."""

    client = ""
    path = "/api/chat"
    parameters: tuple[str, ...] = ()  # Ollama takes all of them, for every model
    other_names: Mapping[str, str] = MappingProxyType({})

    lacking: tuple[str, ...] = ()
    remedy = "start it by: ollama serve; or set OLLAMA_HOST to where it is"

    def __init__(self, endpoint: Endpoint) -> None:
        key = endpoint.api_key
        self.headers: Mapping[str, str] = {"authorization": f"Bearer {key}"} if key else {}
        self._num_ctx = endpoint.num_ctx
        self._keep_alive = endpoint.keep_alive

    def request(self, model: str, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
        asked = {
            "num_ctx": self._num_ctx,
            "seed": sampling.seed,
            "temperature": sampling.temperature,
            "num_predict": sampling.max_tokens,
            "top_p": sampling.top_p,
            "stop": list(sampling.stop) or None,
        }
        options = {name: value for name, value in asked.items() if value is not None}
        kept: dict[str, Any] = {} if self._keep_alive is None else {"keep_alive": self._keep_alive}
        offer, conversation = parted(messages)
        if offer.tools and offer.choice != "none":
            kept["tools"] = offer.tools
        if sampling.response_format:
            kept["format"] = sampling.response_format
        return {"model": model, "messages": ollama_messages(conversation), "stream": False, "options": options, **kept}

    def read(self, body: bytes) -> WireReply:
        reply = decode_reply(body, _Reply)
        message = reply.message
        if message.content is None and message.role is None:
            raise no_answer("its message has no content")
        if reply.done is False:
            raise no_answer("it isn't done")
        functions = [each.get("function") or {} for each in message.tool_calls or () if isinstance(each, dict)]
        text, reason = message.content or "", reply.done_reason or ("stop" if reply.done else None)
        calls = called([(each.get("name"), each.get("arguments"), None) for each in functions], text)
        return WireReply(
            text=text,
            reasoning=message.thinking or "",
            finish_reason=finish(reason, text, calls=calls),
            model=reply.model or "",
            tokens_in=count(reply.prompt_eval_count),
            tokens_out=count(reply.eval_count),
            tool_calls=calls,
        )

    async def look(self, http: Http, model: str, _say: Callable[[str], None], /) -> dict[str, str]:
        tags = await fetched(http, "/api/tags", self.headers, Tags)
        if tags is None:
            return {}
        installed = {_full(tagged.name): tagged for tagged in tags.models or ()}
        found = installed.get(_full(model))
        if found is None:
            others = instead_of(model, [tagged.name.removesuffix(":latest") for tagged in installed.values()])
            raise Unreachable(
                f"the Ollama at {http.base_url} has no model {model}; {others}; get it by: ollama pull {model}"
            )
        return {"digest": found.digest} if found.digest else {}


def open_model(name: ModelName, service: Service) -> RemoteModel:
    """A model of an Ollama."""
    return RemoteModel(name, OllamaWire(service.endpoint), service)


def _full(model: str) -> str:
    """A model's name with its tag, in lower case: `Llama3` is `llama3:latest`."""
    tagged = ":" in model.rpartition("/")[2]
    return (model if tagged else f"{model}:latest").lower()
