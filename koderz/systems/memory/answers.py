"""Answers that fit a client: pages of lists, parts of long texts, and never more characters than it takes."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from koderz_tracker.memory.detail import Detail, shown
from koderz_tracker.memory.memories import InvalidMemory

USUAL, MOST = 25_000, 2_000_000
"""Characters of an answer: what every client takes, and what one may ask for."""

_MARK = 4  # bytes by which a cursor knows a hit again
_LEFT = 400  # characters of a page for what isn't memories: counts, names, a short cursor
_NOTE = 120  # characters of a note on what was cut


def text_of(answer: Any, most: int = USUAL) -> str:
    """The answer as a client gets it: text as it is, all else as JSON, cut where it would be too long."""
    text = answer if isinstance(answer, str) else orjson.dumps(answer).decode()
    if len(text) <= most:
        return text
    cut: list[str] = []
    if isinstance(answer, str):
        return f"{answer[: most - _NOTE]}\n… (cut after {most - _NOTE:,} of {len(answer):,} characters)"
    told = _within(orjson.loads(text), most - 4 * _NOTE, "answer", cut)
    told = told if isinstance(told, dict) else {"items": told}
    return orjson.dumps({**told, "cut": [part_of(note, 0, _NOTE) for note in cut[:3]]}).decode()


def _within(value: Any, room: int, name: str, cut: list[str]) -> Any:
    """The value with its longest texts and lists cut so that its JSON has at most so many characters."""
    if (size := _size(value)) <= room:
        return value
    cut.append(f"{name}: a part of {size:,} characters; maxCharacters gives more")
    if isinstance(value, dict):
        left, told = room - 2, {}
        pending = sorted(value, key=lambda key: _size(value[key]))
        # the shortest are whole, the others share what is left
        for place, key in enumerate(pending):
            share = left // (len(pending) - place) - _size(key) - 2
            if share < 2:  # of a long name, or of too many
                continue
            told[key] = _within(value[key], share, key, cut)
            left -= _size(key) + _size(told[key]) + 2
        return {key: told[key] for key in value if key in told}
    if isinstance(value, list):
        kept = fitting(value, room + _LEFT - 2)
        return kept if _size(kept) <= room else [_within(kept[0], room - 3, name, cut)]
    return part_of(value, 0, room - 2) if isinstance(value, str) else None


def _size(value: Any) -> int:
    return len(orjson.dumps(value).decode())


def part_of(text: str, offset: int, room: int) -> str:
    """The text from `offset` on, so much of it that its JSON, without quotes, has at most `room` characters."""
    length = max(0, room)
    while (size := _size(text[offset : offset + length]) - 2) > room:
        length = min(length - 1, length * room // size)
    return text[offset : offset + length]


def in_parts(memory: Mapping[str, Any], most: int, offset: int = 0) -> dict[str, Any]:
    """A memory whole or, where it is too long, a part of its content, with where the next begins.

    Where its other fields are too long, too, it is a part of the memory's JSON, named `json`.
    """
    rest, name, text = {**memory, "content": ""}, "content", memory["content"]
    if _size(rest) > most // 2:
        rest, name, text = {"id": memory["id"]}, "json", orjson.dumps(memory).decode()
    if offset > len(text):
        raise InvalidMemory(f"offset {offset}: memory {memory['id']} has {len(text)} characters")
    part = part_of(text, offset, most - _size(rest) - _LEFT)
    answer = {**rest, name: part}
    if len(part) == len(text):
        return answer
    end = offset + len(part)
    more = {"next_offset": end} if end < len(text) else {}
    return answer | {"characters": len(text), "offset": offset, **more}


def page_of(
    memories: Iterable[Mapping[str, Any]], detail: Detail, most: int
) -> list[dict[str, Any]]:
    """The first memories that fit. One too long for any is told by its lesson, and where it is whole."""

    def told(memory: Mapping[str, Any]) -> dict[str, Any]:
        if (size := _size(answer := shown(memory, detail))) > most - _LEFT:
            answer = {
                **shown(memory, "lesson"),
                "characters": size,
                "whole": f"get_memory {memory['id']}",
            }
        return answer

    return fitting(map(told, memories), most)


def fitting(items: Iterable[Any], most: int) -> list[Any]:
    """The first items that fit into an answer, at least one."""
    found: list[Any] = []
    left = most - _LEFT
    for item in items:
        left -= _size(item) + 1
        if left < 0 and found:
            break
        found.append(item)
    return found


def seen_in(cursor: str) -> frozenset[bytes]:
    """The marks of the hits that were shown before this cursor. Raises InvalidMemory."""
    try:
        marks = b64decode(cursor, validate=True)
    except ValueError:
        marks = b"?"
    if len(marks) % _MARK:
        raise InvalidMemory(f"cursor {cursor[:40]!r}: give the one of the answer before, as it is")
    return frozenset(marks[at : at + _MARK] for at in range(0, len(marks), _MARK))


def cursor_after(seen: Iterable[bytes], page: Sequence[Mapping[str, Any]]) -> str:
    """The cursor behind a page: it knows every hit that was shown.

    Ranks change while a run writes, so that neither a place nor a score says where to go on.
    """
    return b64encode(b"".join(sorted({*seen, *map(mark_of, page)}))).decode()


def mark_of(hit: Mapping[str, Any]) -> bytes:
    """The mark by which a cursor knows a hit: of the thing that it is about, else of the memory."""
    return hashlib.blake2b(str(hit.get("thing") or hit["id"]).encode(), digest_size=_MARK).digest()
