"""Requests that agents send in three wire formats, and the answers to them.

A request is packed into messages, so that it is a call like any other: recorded, with what is long in it once. A
server of the same wire is sent it as it is but for model and stream; for any other it is translated into messages as
chat completions have them, and so is the reply. A module a wire does that: `chat` for chat completions, `responses`
for OpenAI's responses, `messages` for Anthropic's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from koderz.types import Message, Reply

REQUEST = "request"
"""The role of the first message of a client's request."""

ITEM = "item"
"""The role of a message that stands for another item of a conversation, such as the call of a tool."""

PATHS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
"""The path of each wire format's endpoint."""

_ALIAS = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
}
_CONVERSATION = {"chat": "messages", "responses": "input", "messages": "messages"}
_NONE: Mapping[str, str] = MappingProxyType({})
_HEADERS = ("anthropic-beta", "openai-beta")
_PARTS = ("tools", "system", "instructions")


class MalformedError(ValueError):
    """A request doesn't fit its wire format, or holds something that can't be translated, which the message names."""


class NotSpokenError(Exception):
    """The server doesn't speak the wire format of a client's request."""


class Translated(NamedTuple):
    """A request as messages in a form that every model understands."""

    messages: list[Message]
    dropped: tuple[str, ...]  # what only the provider of that wire could have honoured


class Client(Protocol):
    """One wire format from a server's side."""

    def translated(self, body: Mapping[str, Any]) -> Translated:
        """The request as messages. Raises MalformedError for anything that can't be translated."""

    def answer(self, reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer to the request `body`."""

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """The answer as a stream of events."""

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of an error response."""


def client_of(wire: str) -> Client:
    """The wire format with this name."""
    return cast("Client", import_module(f"koderz.models.clients.{wire}"))


def packed(wire: str, body: Mapping[str, Any], headers: Mapping[str, str] = _NONE) -> list[Message]:
    """A request as messages, with its relevant headers. Raises MalformedError if it has no conversation."""
    name = _CONVERSATION[wire]
    said = body.get(name)
    if isinstance(said, str) and wire == "responses":
        said = [{"role": "user", "content": said}]
    if not isinstance(said, list) or not said or not all(isinstance(each, dict) for each in said):
        raise MalformedError(f"{name} has to be a list of at least one object")
    parts = [part for part in _PARTS if isinstance(body.get(part), str | list)]
    fields = {
        key: value
        for key, value in body.items()
        if key not in (name, "model", "stream", "stream_options", *parts)
    }
    known = {key: headers[key] for key in _HEADERS if key in headers}
    return [
        {
            "role": REQUEST,
            "content": None,
            "wire": wire,
            "fields": fields,
            "parts": parts,
            "headers": known,
        },
        *(
            {"role": "tools" if part == "tools" else "system", "content": body[part]}
            for part in parts
        ),
        *(each if _is_message(each) else {"role": ITEM, "content": [each]} for each in said),
    ]


def wire_of(messages: Sequence[Message]) -> str:
    """The wire format of a packed client's request; empty for other messages."""
    first = messages[0] if messages else {}
    return str(first["wire"]) if first.get("role") == REQUEST else ""


def headers_of(messages: Sequence[Message]) -> Mapping[str, str]:
    """The headers to send a packed request with."""
    headers: Mapping[str, str] = messages[0]["headers"] if wire_of(messages) else _NONE
    return headers


def unpacked(messages: Sequence[Message]) -> dict[str, Any]:
    """The client's request from packed messages, without model and stream."""
    first, *others = messages
    count = len(first["parts"])
    parts = {
        part: message["content"] for part, message in zip(first["parts"], others, strict=False)
    }
    said = [
        message["content"][0] if message["role"] == ITEM else message for message in others[count:]
    ]
    return {**first["fields"], **parts, _CONVERSATION[first["wire"]]: said}


def translated(messages: Sequence[Message]) -> Translated:
    """A packed request for a model that doesn't speak its wire format. Raises MalformedError."""
    return client_of(wire_of(messages)).translated(unpacked(messages))


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a request; None for those left to the server."""
    found: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "seed", "max_tokens"), None) | {
        "stop": ()
    }
    for name, value in body.items():
        known = _ALIAS.get(name, name)
        if known == "stop" and isinstance(value, str | list):
            found[known] = (value,) if isinstance(value, str) else tuple(value)
        elif known in found and isinstance(value, int | float) and not isinstance(value, bool):
            # a cost is reckoned by max_tokens
            found[known] = None if known == "max_tokens" and value < 1 else value
    return found


def refuse(
    body: Mapping[str, Any], wire: str, impossible: Mapping[str, Callable[[Any], bool]]
) -> None:
    """Raises MalformedError for a field that the request uses and that no translation has a place for."""
    for name, is_harmless in impossible.items():
        if body.get(name) is not None and not is_harmless(body[name]):
            raise MalformedError(
                f"{name}: the model doesn't speak the wire /{wire}, and this can't be translated"
            )


def no_place(what: object) -> MalformedError:
    """The error for something that can't be translated."""
    return MalformedError(f"{what!r:.120}: this can't be translated for a model of another wire")


def offer(tools: Sequence[Mapping[str, Any]], choice: Any) -> list[Message]:
    """The message that offers tools. `choice` is as in chat completions; None for the default."""
    if not tools:
        return []
    return [
        {
            "role": "tools",
            "content": [*tools],
            **({} if choice in (None, "auto") else {"choice": choice}),
        }
    ]


def event(data: Mapping[str, Any], *, name: bool = True) -> bytes:
    """A server-sent event, by default named after its type."""
    import orjson

    head = f"event: {data['type']}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def _is_message(item: Mapping[str, Any]) -> bool:
    has_role = isinstance(item.get("role"), str) and item["role"] not in (ITEM, REQUEST)
    return has_role and "content" in item and isinstance(item["content"], str | list | None)
