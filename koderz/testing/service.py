"""The server's answer to one request: checks first, then a reply from its source, or a fault that is drawn."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal, Protocol, runtime_checkable
from urllib.parse import unquote

import orjson

from koderz.errors import Fault, KoderzError
from koderz.models.messages import part
from koderz.testing.wire import (
    VERSION,
    AnthropicWire,
    Json,
    OllamaWire,
    OpenAIWire,
    Request,
    ResponsesWire,
    Wire,
    anthropic_entry,
    anthropic_list,
    openai_entry,
    openai_list,
    show,
    tags,
)
from koderz.types import Completion, Message, Sampling

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
            "/api/chat": OllamaWire(),
            "/v1/chat/completions": OpenAIWire("reasoning" if inline else manner.reasoning),
            "/v1/responses": ResponsesWire(),
            "/v1/messages": AnthropicWire(),
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
            "/api/tags": tags(self._manner.models),
            "/api/version": VERSION,
        }
        if path in plain:
            return _ok(plain[path])
        if path == "/":
            return SentReply(200, [b"Ollama is running"], content_type="text/plain")
        return _error(404, {"error": f"there is nothing at {http.method} {path}"})

    def _models(self, wire: Wire, http: HttpRequest, *, claude: bool) -> SentReply:
        if not self._may_enter(wire, http):
            return _error(401, wire.error(401, "invalid API key"))
        name = unquote(http.path.removeprefix("/v1/models")).strip("/")
        if not name:
            listed = anthropic_list if claude else openai_list
            return _ok(listed(self._manner.models))
        entry = anthropic_entry if claude else openai_entry
        return _ok(entry(name)) if self._has(name) else _error(404, wire.unknown_model(name))

    def _show(self, http: HttpRequest) -> SentReply:
        wire = self._wires["/api/chat"]
        try:
            body = orjson.loads(http.body)
            model = str(body.get("model") or body["name"])
        except (KeyError, ValueError, AttributeError) as error:
            return _error(400, wire.error(400, _reason(error)))
        return _ok(show()) if self._has(model) else _error(404, wire.unknown_model(model))

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


WORDS = frozenset({"hang", "drop", "garbage", "hollow", "empty", "truncated"})
STATUSES = range(400, 600)


class Faults:
    """Draws a fault for each request, in the same way however requests are interleaved.

    `shares` says which part of the requests gets which fault: an HTTP status from 400 to 599, or
    `hang` (never answered), `drop` (closed half-way), `garbage` (no JSON), `hollow` (JSON with no reply in it),
    `empty` (a reply without text) or `truncated` (cut short, for length). The first `fail_first` requests of every
    conversation get 500.
    Raises KoderzError for an unknown fault, or shares that can't be.
    """

    def __init__(self, shares: Mapping[str, float], *, seed: int = 0, fail_first: int = 0) -> None:
        for name in shares:
            if name not in WORDS and not (name.isdecimal() and int(name) in STATUSES):
                raise KoderzError(
                    f"unknown fault {name!r}; one is an HTTP status or {', '.join(sorted(WORDS))}"
                )
        if min(shares.values(), default=0) < 0 or sum(shares.values()) > 1:
            raise KoderzError(
                "the shares of faults have to be at least 0 each, and at most 1 in all"
            )
        self._shares = dict(shares)
        self._seed = seed
        self._fail_first = fail_first
        self._asked: Counter[str] = Counter()

    def draw(self, conversation: str) -> str | None:
        """The fault of the next request of a conversation; None for none."""
        if not self._shares and not self._fail_first:
            return None
        nth = self._asked[conversation]
        self._asked[conversation] += 1
        if nth < self._fail_first:
            return "500"
        drawn = _fraction(f"{self._seed} {conversation} {nth}")
        for name, share in self._shares.items():
            if drawn < share:
                return name
            drawn -= share
        return None


def read_shares(text: str) -> dict[str, float]:
    """A mapping from text such as `429:0.1,500:0.05`. Raises KoderzError for any other text."""
    shares = {}
    for item in filter(None, text.split(",")):
        name, _, share = item.partition(":")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            raise KoderzError(
                f"not a fault and its share: {item!r}; write 429:0.1,drop:0.02"
            ) from None
    return shares


def _fraction(text: str) -> float:
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


CHARACTERS_PER_TOKEN = 4


class NoReply(LookupError):
    """The source has no reply for a conversation."""


@runtime_checkable
class Answering(Protocol):
    """A completer of conversations, such as `koderz.systems.code.simulated.Simulated`."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion: ...


Answered = str | Completion
Replies = (
    str
    | Mapping[str, str | Sequence[str]]
    | Callable[[Request], Answered | Awaitable[Answered]]
    | Answering
)
"""A text for every request; or texts by words that the conversation holds, of which the n-th is for a
conversation with n earlier replies in it, and the last for all that follow; or a function; or a model."""

Answer = Callable[[Request], Awaitable[Completion]]


def answer_from(replies: Replies | None) -> Answer:
    """A function from a request to its completion, which raises NoReply if there is none.

    None stands for the simulated model over HumanEval.
    """
    if replies is None:
        return answer_from(_simulated_humaneval())
    if isinstance(replies, str):
        return _answer_calling(lambda _: replies)
    if isinstance(replies, Mapping):
        return _answer_calling(lambda request: _looked_up(replies, request))
    if isinstance(replies, Answering):
        return lambda request: replies.complete(request.messages, request.sampling)
    return _answer_calling(replies)


def with_reasoning_inline(completion: Completion) -> Completion:
    """The completion as sent by a server that doesn't separate reasoning from reply."""
    if not completion.reasoning:
        return completion
    whole = f"<think>\n{completion.reasoning}\n</think>\n\n{completion.text}"
    return replace(completion, text=completion.raw or whole, reasoning="")


def truncated(completion: Completion) -> Completion:
    """The first half of a completion, as sent by a server that reached its token limit."""
    half = completion.text[: len(completion.text) // 2]
    return replace(
        completion, text=half, finish_reason="length", tokens_out=completion.tokens_out // 2
    )


def empty(completion: Completion) -> Completion:
    return replace(completion, text="", reasoning="", tokens_out=0)


def _simulated_humaneval() -> Answering:
    from koderz.suites import load_suite
    from koderz.suites.options import SimulatedOptions

    suite: Any = load_suite("humaneval")
    found: Answering = suite.simulated_model(suite.tasks, 0, SimulatedOptions())
    return found


def _answer_calling(function: Callable[[Request], Answered | Awaitable[Answered]]) -> Answer:
    async def answer(request: Request) -> Completion:
        answer = function(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, Completion) else _completion(request, answer)

    return answer


def _looked_up(replies: Mapping[str, str | Sequence[str]], request: Request) -> str:
    text = "\n".join(str(one["content"]) for one in request.messages if one["role"] != "assistant")
    found = next((reply for words, reply in replies.items() if words in text), None)
    if found is None:
        raise NoReply(
            f"no reply was given for a conversation that holds none of: {', '.join(replies)}"
        )
    if isinstance(found, str):
        return found
    turns = len([one for one in request.messages if one["role"] == "assistant"])
    return found[min(turns, len(found) - 1)]


def _completion(request: Request, text: str) -> Completion:
    parted = part(text, complete=True)
    return Completion(
        text=parted.text,
        reasoning=parted.reasoning,
        tokens_in=_tokens("".join(message["content"] for message in request.messages)),
        tokens_out=_tokens(text),
        raw=text if parted.cut else None,
    )


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
