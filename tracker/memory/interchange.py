"""Import of exported memories: ours, and those of Cortex, where tags and metadata are JSON strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from koderz_tracker.memory.memories import CATEGORIES, IMPORTANCE, TYPES, Draft, InvalidMemory, moment

_OTHER_NAMES = {"accessCount": "access_count", "createdAt": "created_at", "lastAccessed": "last_accessed"}
_TIMES = ("created_at", "updated_at", "last_accessed")


def drafts_of(data: str | bytes | Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> list[Draft]:
    """The memories of an export, given as JSON text or parsed. Raises InvalidMemory, which names the entry.

    Both forms are read: `tags` a list or a JSON string of one, `metadata` an object or a JSON string of
    one; `importance` a word, or no more than a salience.
    """
    if isinstance(data, str | bytes):
        try:
            data = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidMemory(f"no JSON: {error}") from None
    entries: Any = data.get("memories") if isinstance(data, Mapping) else data
    if not isinstance(entries, Sequence):
        raise InvalidMemory("memories are a JSON array of objects, or an object that has it as its memories")
    return [_draft(number, entry) for number, entry in enumerate(entries, 1)]


def _draft(number: int, entry: Any) -> Draft:
    if not isinstance(entry, Mapping):
        raise InvalidMemory(f"memory {number} is no JSON object")
    fields: dict[str, Any] = {_OTHER_NAMES.get(str(name), str(name)): value for name, value in entry.items()}
    try:
        times = {name: moment(fields[name], name) for name in _TIMES if fields.get(name)}
        return Draft(
            title=fields["title"],
            content=fields.get("content") or "",
            category=_word(fields.get("category"), CATEGORIES, "note"),
            type=_word(fields.get("type"), TYPES, "long_term"),
            tags=_parsed(fields.get("tags"), list, "tags"),
            importance=_importance(fields),
            metadata=_parsed(fields.get("metadata"), dict, "metadata"),
            project=fields.get("project"),
            key=fields.get("key"),
            salience=_salience(fields.get("salience")),
            access_count=_count(fields.get("access_count")),
            **{"created_at": "1970-01-01", **times},
        )
    except KeyError as missing:
        raise InvalidMemory(f"memory {number} has no {missing.args[0]}") from None
    except (TypeError, ValueError, InvalidMemory) as error:
        raise InvalidMemory(f"memory {number}: {error}") from None


def _parsed(value: Any, kind: type[Any], name: str) -> Any:
    """A list or an object, parsed if it is given as JSON text."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value) if value.strip() else None
        except orjson.JSONDecodeError:
            raise InvalidMemory(f"{name} {value[:40]!r} is no JSON") from None
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InvalidMemory(f"{name} has to be a JSON {'array' if kind is list else 'object'}")
    return value


def _word(value: Any, known: Sequence[str], default: str) -> str:
    """The word if we know it, else the default."""
    return value if value in known else default


def _importance(fields: Mapping[str, Any]) -> str:
    word = fields.get("importance")
    if isinstance(word, str) and word in IMPORTANCE:
        return word
    salience = _salience(fields.get("salience"))
    if salience is None:
        return "normal"
    return min(IMPORTANCE, key=lambda name: abs(IMPORTANCE[name] - salience))


def _count(value: Any) -> int:
    """A count that the store can hold. Raises ValueError for anything else."""
    found = int(value) if isinstance(value, str) and len(value) < 20 and value.isdecimal() else value or 0
    if not isinstance(found, int | float) or not 0 <= found < 2**63:
        raise ValueError(f"access_count {str(value)[:40]!r} is no count")
    return int(found)


def _salience(value: Any) -> float | None:
    return None if value is None else min(1.0, max(0.0, float(value)))
