"""Memories as rows of their table, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tracker.memory import sql
from tracker.memory.database import StoreDamaged
from tracker.memory.memories import Draft, Memory

_TAGS, _METADATA = (sql.COLUMNS.split(", ").index(name) for name in ("tags", "metadata"))


def as_memory(row: Sequence[Any]) -> Memory:
    """A row of `sql.COLUMNS`, whatever comes after them. Raises StoreDamaged for one that says nothing."""
    values = list(row[:15])
    values[_TAGS], values[_METADATA] = parsed(values[0], values[_TAGS]), parsed(values[0], values[_METADATA])
    return Memory(*values)


def parsed(id: int, text: str) -> Any:
    """What a column of a memory says as JSON. Raises StoreDamaged."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise StoreDamaged(f"memory {id}", str(error)) from None


def told(draft: Draft) -> tuple[Any, ...]:
    """The columns that make up what a memory says, in the order of `sql.INSERT` and `sql.UPDATE`."""
    return (
        draft.title,
        draft.content,
        draft.category,
        draft.type,
        orjson.dumps(list(draft.tags)).decode(),
        draft.importance,
        orjson.dumps(dict(draft.metadata)).decode(),
        draft.project,
        draft.salience,
    )


def draft_of(memory: Memory) -> Draft:
    """A memory as it may be stored elsewhere: all of it but its id."""
    return Draft(**{name: getattr(memory, name) for name in Draft.__struct_fields__})


def says_the_same(memory: Memory, draft: Draft) -> bool:
    """Whether a draft would leave a memory as it is, but for the time of its change."""
    return told(draft_of(memory)) == told(draft) and memory.created_at == draft.created_at
