"""What the three wire formats have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Protocol

import orjson

from koderz.types import Completion, Message, Sampling

Kind = Literal["ollama", "openai", "anthropic"]
Json = dict[str, Any]

CREATED = 1_767_225_600  # the time that every reply claims: 2026-01-01, so that equal requests get equal bytes


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model, the same whichever wire it came over."""

    kind: Kind
    model: str
    messages: tuple[Message, ...]  # the system prompt first
    sampling: Sampling
    stream: bool
    body: Mapping[str, Any] = field(repr=False)  # as sent
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)  # names in lower case
    digest: str = field(init=False)
    """16 hex digits of the conversation: equal for equal messages, whatever the wire, model or sampling."""

    def __post_init__(self) -> None:
        text = orjson.dumps([(message["role"], message["content"]) for message in self.messages])
        object.__setattr__(self, "digest", blake2b(text, digest_size=8).hexdigest())


class Wire(Protocol):
    """How one kind of server speaks."""

    @property
    def kind(self) -> Kind: ...

    @property
    def content_type(self) -> str:
        """Of a stream."""

    def parse(self, body: Json, headers: Mapping[str, str], /) -> Request:
        """Raises KeyError, TypeError or ValueError for a body that the real server would refuse."""

    def reply(self, request: Request, completion: Completion, /) -> Json:
        """The body of a whole reply."""

    def stream(self, request: Request, completion: Completion, /) -> Sequence[bytes]:
        """The pieces of a reply that is streamed."""

    def error(self, status: int, message: str, /) -> Json:
        """The body of an error."""

    def unknown_model(self, model: str, /) -> Json:
        """What a 404 says."""

    def refused(self, parameter: str, value: object, /) -> Json:
        """What a 400 says of a parameter that this model doesn't take."""

    def key_of(self, headers: Mapping[str, str], /) -> str | None:
        """The API key that a request carries; None where this kind of server asks for none."""


def messages_of(body: Json) -> tuple[Message, ...]:
    """The conversation, with the texts of content that comes in parts joined. Raises as `Wire.parse`."""
    given = body["messages"]
    if not isinstance(given, list) or not given:
        raise ValueError("'messages' has to be a list of at least one message")
    return tuple({"role": str(one["role"]), "content": text_of(one.get("content"))} for one in given)


def text_of(content: object) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError("'content' has to be text or a list of parts")
    return "".join(str(part.get("text", "")) for part in content)


def sampling_of(given: Mapping[str, Any], *, max_tokens: Sequence[str], stop: str = "stop") -> Sampling:
    """The sampling settings among `given`; `max_tokens` names where its limit may stand. Raises as `Wire.parse`."""
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
    """A text in about `count` pieces, as a stream brings it; none for no text."""
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
