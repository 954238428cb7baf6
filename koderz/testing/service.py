"""The server's answer to one request: checks first, then a reply or a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

import orjson

from koderz.errors import Fault, KoderzError
from koderz.testing import anthropic, ollama, openai
from koderz.testing.faults import Faults
from koderz.testing.openai import ResponsesWire
from koderz.testing.replies import Answer, NoReply, empty, truncated, with_reasoning_inline
from koderz.testing.wire import Json, Request, Wire
from koderz.types import Completion

Reasoning = Literal["inline", "reasoning_content", "reasoning"]
Status = int | str

BROKEN: Mapping[str, bytes] = {"garbage": b"<html>\x00\xff this is no JSON", "hollow": b"{}"}


@dataclass(frozen=True, slots=True)
class Manner:
    """The behaviour of the server; `koderz.testing.ModelServer` documents each field."""

    latency: float
    api_key: str | None
    models: tuple[str, ...]
    refuse: frozenset[str]
    reasoning: Reasoning
    retry_after: str


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as received; `path` is without its query, header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class SentReply:
    """An answer. Its `status` is for the records: an HTTP status, or the word of a fault."""

    status: Status
    pieces: Sequence[bytes] = ()  # of the body: one, or as many as are streamed
    http_status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    streamed: bool = False  # of a length that isn't said beforehand


class ModelService:
    """Answers requests, any number at once."""

    def __init__(self, manner: Manner, faults: Faults, answer: Answer) -> None:
        self._manner, self._faults, self._answer = manner, faults, answer
        inline = manner.reasoning == "inline"
        self._wires: Mapping[str, Wire] = {
            "/api/chat": ollama.OllamaWire(),
            "/v1/chat/completions": openai.OpenAIWire("reasoning" if inline else manner.reasoning),
            "/v1/responses": ResponsesWire(),
            "/v1/messages": anthropic.AnthropicWire(),
        }

    def wire_of(self, http: HttpRequest) -> Wire | None:
        """The wire format of a request to a model; None for every other request."""
        return self._wires.get(http.path) if http.method == "POST" else None

    def check(self, wire: Wire, http: HttpRequest) -> Request | SentReply:
        """The parsed request, or the refusal of its key, body or model."""
        if not self._may_enter(wire, http):
            return _error(401, wire.error(401, "invalid API key"))
        try:
            request = wire.parse(orjson.loads(http.body), http.headers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return _error(400, wire.error(400, _reason(error)))
        if not self._has(request.model):
            return _error(404, wire.unknown_model(request.model))
        values = {**request.body, **(request.body.get("options") or {})}
        for parameter in sorted(self._manner.refuse & values.keys()):
            return _error(400, wire.refused(parameter, values[parameter]))
        return request

    async def complete(self, wire: Wire, request: Request) -> SentReply:
        """A reply in the request's wire format, or the fault that was drawn for the request."""
        fault = self._faults.draw(f"{request.digest} {request.sampling.seed}")
        if self._manner.latency:
            await asyncio.sleep(self._manner.latency)
        if fault is not None and fault.isdecimal():
            return self._failed(wire, int(fault))
        if fault == "hang":
            return SentReply(fault)
        if fault is not None and fault in BROKEN:
            return SentReply(fault, [BROKEN[fault]])
        try:
            completion = await self._answer(request)
        except NoReply as error:
            return _error(400, wire.error(400, error.args[0]))
        except Fault as error:
            return _error(500, wire.error(500, str(error)))
        return self._sent(wire, request, completion, fault)

    def overloaded(self, wire: Wire) -> SentReply:
        return self._failed(wire, 429)

    def catalogue(self, http: HttpRequest) -> SentReply:
        """The answer to requests for lists of models, versions and token counts."""
        path, claude = http.path, "anthropic-version" in http.headers
        if path.startswith("/v1/models"):
            wire: Wire = self._wires["/v1/messages" if claude else "/v1/chat/completions"]
            return self._models(wire, http, claude=claude)
        if path == "/api/show":
            return self._show(http)
        if (http.method, path) == ("POST", "/v1/messages/count_tokens"):
            return self._tokens(http)
        plain: Mapping[str, Json] = {
            "/api/tags": ollama.tags(self._manner.models),
            "/api/version": ollama.VERSION,
        }
        if path in plain:
            return _ok(plain[path])
        if path == "/":
            return SentReply(200, [b"Ollama is running"], content_type="text/plain")
        return _error(404, {"error": f"there is nothing at {http.method} {path}"})

    def _models(self, wire: Wire, http: HttpRequest, *, claude: bool) -> SentReply:
        if not self._may_enter(wire, http):
            return _error(401, wire.error(401, "invalid API key"))
        module = anthropic if claude else openai
        name = unquote(http.path.removeprefix("/v1/models")).strip("/")
        if not name:
            return _ok(module.models_list(self._manner.models))
        return (
            _ok(module.model_entry(name))
            if self._has(name)
            else _error(404, wire.unknown_model(name))
        )

    def _show(self, http: HttpRequest) -> SentReply:
        wire = self._wires["/api/chat"]
        try:
            body = orjson.loads(http.body)
            model = str(body.get("model") or body["name"])
        except (KeyError, ValueError, AttributeError) as error:
            return _error(400, wire.error(400, _reason(error)))
        return _ok(ollama.show()) if self._has(model) else _error(404, wire.unknown_model(model))

    def _tokens(self, http: HttpRequest) -> SentReply:
        """The token count of a request to Anthropic's messages: a quarter of its letters, as the bridge counts."""
        wire = self._wires["/v1/messages"]
        if not self._may_enter(wire, http):
            return _error(401, wire.error(401, "invalid API key"))
        try:
            request = wire.parse({"max_tokens": 1, **orjson.loads(http.body)}, http.headers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return _error(400, wire.error(400, _reason(error)))
        if not self._has(request.model):
            return _error(404, wire.unknown_model(request.model))
        return _ok(
            {"input_tokens": sum(len(message["content"]) for message in request.messages) // 4}
        )

    def _may_enter(self, wire: Wire, http: HttpRequest) -> bool:
        key = wire.key_of(http.headers)
        return self._manner.api_key is None or key is None or key == self._manner.api_key

    def _has(self, model: str) -> bool:
        names = {name.removesuffix(":latest") for name in self._manner.models}
        return model.removesuffix(":latest") in names

    def _failed(self, wire: Wire, status: int) -> SentReply:
        headers = {"retry-after": self._manner.retry_after} if status in (429, 503, 529) else {}
        return _error(
            status,
            wire.error(status, f"this server was told to answer {status} now and then"),
            headers,
        )

    def _sent(
        self, wire: Wire, request: Request, completion: Completion, fault: str | None
    ) -> SentReply:
        if self._manner.reasoning == "inline":
            completion = with_reasoning_inline(completion)
        if fault == "truncated":
            completion = truncated(completion)
        elif fault == "empty":
            completion = empty(completion)
        status = fault or 200
        if request.stream:
            return SentReply(
                status,
                wire.stream(request, completion),
                content_type=wire.content_type,
                streamed=True,
            )
        return SentReply(status, [orjson.dumps(wire.reply(request, completion))])


def read_models(names: Collection[str]) -> tuple[str, ...]:
    """The names of the models. Raises KoderzError if there are none."""
    if isinstance(names, str) or not names:
        raise KoderzError('give the names of the models as a tuple, such as models=("recorded",)')
    return tuple(names)


def _ok(body: Json) -> SentReply:
    return SentReply(200, [orjson.dumps(body)])


def _error(status: int, body: Json, headers: Mapping[str, str] | None = None) -> SentReply:
    return SentReply(status, [orjson.dumps(body)], status, headers=headers or {})


def _reason(error: Exception) -> str:
    return f"missing: {error}" if isinstance(error, KeyError) else str(error)
