"""Messages of a conversation: what they say as text, and how a long one is stored once for many calls.

A message is JSON as chat completions have it: `role`, `content` (a text, or a list of parts) and whatever else was
sent with it, such as `tool_calls`, `tool_call_id` or `name`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
from msgspec.structs import replace

from tracker.records import Call, LongMessage

MESSAGE_BYTES = 4096  # above this, a message is stored once and named by its digest

_PLAIN = frozenset({"role", "content"})


def text_of(message: Mapping[str, Any]) -> str:
    """What a message says, for people and for counting: its text, and its other parts and fields in a few words."""
    content = message.get("content")
    if isinstance(content, str) and len(message) == len(_PLAIN):
        return content
    said = [content if isinstance(content, str) else "\n".join(map(_part, content or ()))]
    said += [f"{name}: {orjson.dumps(value).decode()}" for name, value in message.items() if name not in _PLAIN]
    return "\n".join(filter(None, said))


def digest_of(text: str) -> str:
    """SHA-256 of the text in UTF-8, 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def share_messages(call: Call, stored: set[int]) -> list[LongMessage | Call]:
    """The call with its long messages named by digest, after those that `stored` doesn't know yet.

    `stored` holds the first 64 bits of each digest and is brought up to date.
    """
    if all(_is_plain(message) and len(message["content"]) <= MESSAGE_BYTES // 4 for message in call.messages):
        return [call]
    new: list[LongMessage | Call] = []
    messages: list[dict[str, Any]] = []
    for message in call.messages:
        is_plain = _is_plain(message)
        text = message["content"] if is_plain else orjson.dumps(message).decode()
        size = len(text.encode("utf-8", "surrogatepass"))
        if size <= MESSAGE_BYTES:
            messages.append(message)
            continue
        digest, role = digest_of(text), message["role"]
        messages.append({"role": role, "digest": digest, "bytes": size, **({} if is_plain else {"json": True})})
        if int(digest[:16], 16) not in stored:
            stored.add(int(digest[:16], 16))
            new.append(LongMessage(digest=digest, role=role, content=text))
    return [*new, replace(call, messages=messages)]


def restored(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The message that `share_messages` named by a digest, from the text that it stored."""
    if message.get("json"):
        whole: dict[str, Any] = orjson.loads(text)
        return whole
    return {"role": message["role"], "content": text}


def _is_plain(message: Mapping[str, Any]) -> bool:
    return message.keys() == _PLAIN and isinstance(message["content"], str)


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return f"[{part.get('name') or part.get('type', 'part')}]" if isinstance(part, dict) else str(part)
