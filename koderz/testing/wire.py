"""The interface of the three wire formats, and helpers that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Protocol

import orjson

from koderz.types import Completion, Message, Sampling

Kind = Literal["ollama", "openai", "anthropic"]
Json = dict[str, Any]

# the time that every reply claims: 2026-01-01, so that equal requests get equal bytes
CREATED = 1_767_225_600


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model, in a form that is the same for all wire formats."""

    kind: Kind
    model: str
    messages: tuple[Message, ...]  # the system prompt first
    sampling: Sampling
    stream: bool
    body: Mapping[str, Any] = field(repr=False)  # as sent
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)  # names in lower case
    digest: str = field(init=False)
    """A digest of the conversation, 16 hex digits: equal for equal messages, whatever the wire, model or sampling."""

    def __post_init__(self) -> None:
        text = orjson.dumps([(message["role"], message["content"]) for message in self.messages])
        object.__setattr__(self, "digest", blake2b(text, digest_size=8).hexdigest())


class Wire(Protocol):
    """The wire format of one kind of server."""

    @property
    def kind(self) -> Kind: ...

    @property
    def content_type(self) -> str:
        """The content type of a stream."""

    def parse(self, body: Json, headers: Mapping[str, str], /) -> Request:
        """The parsed request. Raises KeyError, TypeError or ValueError for a body that the real server would refuse."""

    def reply(self, request: Request, completion: Completion, /) -> Json:
        """The body of a whole reply."""

    def stream(self, request: Request, completion: Completion, /) -> Sequence[bytes]:
        """The pieces of a streamed reply."""

    def error(self, status: int, message: str, /) -> Json:
        """The body of an error."""

    def unknown_model(self, model: str, /) -> Json:
        """The body of the 404 for an unknown model."""

    def refused(self, parameter: str, value: object, /) -> Json:
        """The body of the 400 for a parameter that this model doesn't take."""

    def key_of(self, headers: Mapping[str, str], /) -> str | None:
        """The API key of a request; None if this kind of server asks for none."""


def messages_of(body: Json) -> tuple[Message, ...]:
    """The conversation, with text parts of each message joined. Raises as `Wire.parse` does."""
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' has to be a list of at least one message")
    return tuple(
        {"role": str(one["role"]), "content": text_of(one.get("content"))} for one in messages
    )


def text_of(content: object) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError("'content' has to be text or a list of parts")
    return "".join(str(part.get("text", "")) for part in content)


def sampling_of(
    given: Mapping[str, Any], *, max_tokens: Sequence[str], stop: str = "stop"
) -> Sampling:
    """The sampling settings among `given`; `max_tokens` lists the possible names of the limit."""
    limits = (given[name] for name in max_tokens if given.get(name) is not None)
    stops = given.get(stop) or ()
    return Sampling(
        temperature=_number(given.get("temperature")),
        max_tokens=next((int(limit) for limit in limits), None),
        top_p=_number(given.get("top_p")),
        seed=None if given.get("seed") is None else int(given["seed"]),
        stop=(stops,) if isinstance(stops, str) else tuple(map(str, stops)),
    )


def pieces_of(text: str, *, count: int = 4) -> list[str]:
    """A text in about `count` pieces, as streamed; empty for an empty text."""
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]


def event(data: Json, *, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def bearer_token(headers: Mapping[str, str]) -> str:
    """The key in an Authorization header; empty without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a number was expected, not {value!r}")
    return float(value)
