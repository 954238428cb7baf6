"""Messages of a conversation: their text, and the storing of a long one once for many calls.

A message is JSON as chat completions have it: `role`, `content` (a text, or a list of parts) and whatever else was
sent with it, such as `tool_calls`, `tool_call_id` or `name`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from koderz_tracker.records import Call, LongMessage

MESSAGE_BYTES = 4096  # above this, a message is stored once and named by its digest

_PLAIN = frozenset({"role", "content"})
_WITH_TOOLS = ("request", "tools")  # the roles that a conversation with tools begins with
_STANDING = (*_WITH_TOOLS, "system")  # what stays as it is while a conversation goes on


def text_of(message: Mapping[str, Any]) -> str:
    """A message as text, for people and for counting: its content, and its other parts and fields in a few words."""
    content = message.get("content")
    if isinstance(content, str) and len(message) == len(_PLAIN):
        return content
    parts = [content if isinstance(content, str) else "\n".join(map(_part, content or ()))]
    parts += [
        f"{name}: {orjson.dumps(value).decode()}"
        for name, value in message.items()
        if name not in _PLAIN
    ]
    return "\n".join(filter(None, parts))


def letters_of(message: Mapping[str, Any]) -> int:
    """The number of characters of text in a message, names included; encoded pictures count as 0."""
    content = message.get("content")
    return (
        len(content)
        if isinstance(content, str) and len(message) == len(_PLAIN)
        else _letters(message)
    )


def is_picture(text: str) -> bool:
    """Whether a text is an encoded picture rather than words: long, in ASCII, and without a blank."""
    return len(text) > MESSAGE_BYTES and text.isascii() and " " not in text and "\n" not in text


def _letters(value: Any) -> int:
    if isinstance(value, str):
        return 0 if is_picture(value) else len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + _letters(item) for name, item in value.items())
    return sum(map(_letters, value)) if isinstance(value, list | tuple) else 1


def digest_of(text: str) -> str:
    """SHA-256 of the text in UTF-8, 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def share_messages(call: Call, stored: set[int]) -> list[LongMessage | Call]:
    """The call with its long messages replaced by digests, preceded by the messages not yet in `stored`.

    `stored` holds the first 64 bits of each digest and is brought up to date.
    """
    if all(
        _is_plain(message) and len(message["content"]) <= MESSAGE_BYTES // 4
        for message in call.messages
    ):
        return [call]
    new: list[LongMessage | Call] = []
    messages: list[dict[str, Any]] = []
    for group in _groups(call.messages):
        is_plain = len(group) == 1 and _is_plain(group[0])
        content = group[0] if len(group) == 1 else group
        text = group[0]["content"] if is_plain else orjson.dumps(content).decode()
        size = len(text.encode("utf-8", "surrogatepass"))
        if size <= MESSAGE_BYTES:
            messages += group
            continue
        digest, role = digest_of(text), group[0]["role"]
        messages.append(
            {"role": role, "digest": digest, "bytes": size, **({} if is_plain else {"json": True})}
        )
        if int(digest[:16], 16) not in stored:
            stored.add(int(digest[:16], 16))
            new.append(LongMessage(digest=digest, role=role, content=text))
    return [*new, replace(call, messages=messages)]


def _groups(messages: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Groups messages that are stored together: in a conversation with tools, as many as make one long text.

    It grows at its end, so that what is stored of its beginning is the same for every call.
    """
    grouped = bool(messages) and messages[0]["role"] in _WITH_TOOLS
    group: list[dict[str, Any]] = []
    size = 0
    for message in messages:
        grows = grouped and (group or message["role"] not in _STANDING)
        group.append(message)
        size += len(orjson.dumps(message)) if grows else 0
        if not grows or size > MESSAGE_BYTES:
            yield group
            group, size = [], 0
    yield from ([message] for message in group)


def restored(message: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
    """The messages that `share_messages` replaced by a digest, read from the stored text."""
    if not message.get("json"):
        return [{"role": message["role"], "content": text}]
    whole: Any = orjson.loads(text)
    return whole if isinstance(whole, list) else [whole]


def _is_plain(message: Mapping[str, Any]) -> bool:
    return message.keys() == _PLAIN and isinstance(message["content"], str)


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return (
        f"[{part.get('name') or part.get('type', 'part')}]" if isinstance(part, dict) else str(part)
    )
