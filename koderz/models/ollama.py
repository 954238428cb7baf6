"""Ollama's `/api/chat`, and the list of models that an Ollama has."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from koderz.errors import Fault, Unreachable
from koderz.models.faults import Retryable, problem_of
from koderz.models.messages import ollama_messages, parted
from koderz.models.names import Endpoint, ModelName
from koderz.models.providers import endpoint_for
from koderz.models.remote import RemoteModel
from koderz.models.wire import (
    Body,
    Wire,
    WireReply,
    called,
    count,
    decode,
    decode_reply,
    encode,
    fetched,
    finish,
    instead_of,
    no_answer,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.providers import Service
    from koderz.models.transport import Http
    from koderz.types import Message, Sampling

_PATIENCE = 0.5  # seconds; an Ollama is near, or there is none


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    thinking: Any = None
    tool_calls: list[Any] | None = None


class _Reply(Body, kw_only=True):
    message: _Message
    done: bool | None = None
    done_reason: Any = None
    model: Any = None
    prompt_eval_count: Any = None
    eval_count: Any = None


class _Details(msgspec.Struct):
    family: str | None = None


class _Tagged(msgspec.Struct):
    name: str
    digest: str = ""
    details: _Details | None = None


class _Tags(msgspec.Struct):
    models: list[_Tagged] | None = None


class _Thinking(msgspec.Struct):
    values: list[Any] | None = None


class _Shown(msgspec.Struct):
    capabilities: list[str] | None = None
    thinking: Any = None


class OllamaWire(Wire):
    """The chat API of an Ollama."""

    path = "/api/chat"
    # No `parameters`: Ollama takes all of them, for every model.

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.api_key)
        self._num_ctx = endpoint.num_ctx
        self._keep_alive = endpoint.keep_alive
        self._efforts: list[Any] | None = None  # that the model can be told: words, true and false

    async def look_at_efforts(self, http: Http, model: str, /) -> None:
        """Asks the Ollama how much the model can be told to think: another word would silently be its default."""
        if self._efforts is None:
            response = await http.post("/api/show", encode({"model": model}), self.headers)
            if not 200 <= response.status < 300:
                raise problem_of(response)
            # The values of `think` that a model knows: those that its Ollama lists; else off, if it can think.
            shown = decode(response.body, _Shown)
            try:
                listed = msgspec.convert(shown.thinking, _Thinking).values
            except msgspec.ValidationError:
                listed = None
            if listed is not None:
                self._efforts = listed
            else:
                self._efforts = [False] if "thinking" in (shown.capabilities or ()) else []

    def settled(self, sampling: Sampling) -> tuple[Sampling, tuple[str, ...]]:
        """Without a budget, which has no place, and an effort that the model doesn't know."""
        left = ["reasoning_tokens"] if sampling.reasoning_tokens is not None else []
        effort = sampling.reasoning_effort
        if effort is not None and (False if effort == "none" else effort) not in (
            self._efforts or ()
        ):
            left.append("reasoning_effort")
            effort = None
        return replace(sampling, reasoning_effort=effort, reasoning_tokens=None), tuple(left)

    def request(
        self, model: str, messages: Sequence[Message], sampling: Sampling
    ) -> dict[str, Any]:
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
        if sampling.reasoning_effort is not None:
            kept["think"] = (
                False if sampling.reasoning_effort == "none" else sampling.reasoning_effort
            )
        return {
            "model": model,
            "messages": ollama_messages(conversation),
            "stream": False,
            "options": options,
            **kept,
        }

    def read(self, body: bytes) -> WireReply:
        reply = decode_reply(body, _Reply)
        message = reply.message
        if message.content is None and message.role is None:
            raise no_answer("its message has no content")
        if reply.done is False:
            raise no_answer("it isn't done")
        text, reason = (
            message.content or "",
            words(reply.done_reason) or ("stop" if reply.done else None),
        )
        calls = called(message.tool_calls or (), text)
        return WireReply(
            text=text,
            reasoning=words(message.thinking),
            finish_reason=finish(reason, text, calls=calls),
            model=words(reply.model),
            tokens_in=count(reply.prompt_eval_count),
            tokens_out=count(reply.eval_count),
            tool_calls=calls,
        )

    async def look(self, http: Http, model: str, _say: Callable[[str], None], /) -> dict[str, str]:
        tags = await fetched(http, "/api/tags", self.headers, _Tags)
        if tags is None:
            return {}
        installed = {_full(tagged.name): tagged for tagged in tags.models or ()}
        found = installed.get(_full(model))
        if found is None:
            others = instead_of(
                model, [tagged.name.removesuffix(":latest") for tagged in installed.values()]
            )
            raise Unreachable(
                f"the Ollama at {http.address} has no model {model}; {others}; get it by: ollama pull {model}"
            )
        return {"digest": found.digest} if found.digest else {}

    async def chat_models(self, http: Http) -> list[str] | None:
        """The names of the models that can chat; None if no Ollama answers."""
        tags = await fetched(http, "/api/tags", self.headers, _Tags)
        if tags is None:
            return None
        names = [tagged.name for tagged in tags.models or () if not _embeds(tagged)]
        chats = await asyncio.gather(*(self._chats(http, name) for name in names))
        return [name for name, chat in zip(names, chats, strict=True) if chat]

    async def _chats(self, http: Http, name: str) -> bool:
        """Whether a model can chat; true if its Ollama is too old to say."""
        try:
            shown = decode(
                (await http.post("/api/show", encode({"model": name}), self.headers)).body, _Shown
            )
        except (Retryable, Fault):
            return True
        return shown.capabilities is None or "completion" in shown.capabilities


def open_model(name: ModelName, service: Service) -> RemoteModel:
    """Opens a model of an Ollama."""
    return RemoteModel(name, OllamaWire(service.endpoint), service)


async def discover_ollama(environ: Mapping[str, str]) -> list[str] | None:
    """The names of the chat models of the Ollama at OLLAMA_HOST or its default address.

    None where no Ollama answers within half a second. Raises KoderzError for a malformed OLLAMA_HOST.
    """
    endpoint = endpoint_for(ModelName("ollama", ""), environ=environ)
    assert endpoint.base_url
    if not await _listens(endpoint.base_url):
        return None
    from koderz.models.transport import Http

    http = Http(endpoint.base_url, timeout=_PATIENCE, secret=endpoint.api_key)
    try:
        return await OllamaWire(endpoint).chat_models(http)
    except (Retryable, Fault):
        return None
    finally:
        await http.aclose()


async def _listens(base_url: str) -> bool:
    """Whether anything accepts a connection at the address; far cheaper than a request by HTTP."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _embeds(tagged: _Tagged) -> bool:
    family = (tagged.details.family if tagged.details else None) or ""
    return "bert" in family or "embed" in tagged.name


def _full(model: str) -> str:
    """A model's name with its tag, in lower case: `Llama3` is `llama3:latest`."""
    tagged = ":" in model.rpartition("/")[2]
    return (model if tagged else f"{model}:latest").lower()
