"""The memory type: its fields, its row in the table, the checks before it is stored, and imported memories."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec
import orjson
from msgspec.structs import replace

from koderz_tracker.errors import KoderzError
from koderz_tracker.memory.database import StoreDamaged
from koderz_tracker.scrubber import Scrubber

Category = Literal[
    "architecture",
    "pattern",
    "preference",
    "error",
    "context",
    "learning",
    "todo",
    "note",
    "relationship",
    "custom",
]
Type = Literal["short_term", "long_term", "episodic"]
Importance = Literal["low", "normal", "high", "critical"]
CATEGORIES: tuple[str, ...] = get_args(Category)
TYPES: tuple[str, ...] = get_args(Type)
IMPORTANCE: Mapping[str, float] = dict(zip(get_args(Importance), (0.3, 0.5, 0.8, 1.0), strict=True))
"""Maps importance to the salience with which a memory begins, 0..1."""

PROTECTED_TAGS = frozenset({"result", "benchmark_run"})
"""Tags that, like critical importance, protect a memory from being deleted, merged or ranked lower with age."""


class InvalidMemory(KoderzError):
    """A memory or a query is not valid."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A memory to be stored. Times are local, ISO 8601. A Struct, since thousands are stored at a time."""

    title: str
    content: str
    category: str = "note"
    type: str = "long_term"
    tags: Sequence[str] = ()
    importance: str = "normal"
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    project: str | None = None
    key: str | None = None  # with one, a memory of the same key is brought up to date
    salience: float | None = None  # None: that of its importance
    access_count: int = 0
    created_at: str | None = None  # None: now, or what it was
    # None: now; an older one leaves a memory of the same key as it is
    updated_at: str | None = None
    last_accessed: str | None = None


class Memory(msgspec.Struct, frozen=True):
    """A stored memory; its fields are the table's columns in order. A Struct, since hundreds are read at a time."""

    id: int
    key: str | None
    title: str
    content: str
    category: str
    type: str
    tags: list[str]
    importance: str
    metadata: dict[str, Any]
    project: str | None
    salience: float
    access_count: int
    created_at: str
    updated_at: str
    last_accessed: str | None

    @property
    def is_protected(self) -> bool:
        return self.importance == "critical" or not PROTECTED_TAGS.isdisjoint(self.tags)

    def as_dict(self) -> dict[str, Any]:
        """The memory as exported: importance as a word, tags as a list, metadata a dict with `benchmark_run_id`."""
        values = {name: getattr(self, name) for name in _FIELDS}
        values["metadata"] = {"benchmark_run_id": None, **self.metadata}
        return values


_FIELDS = Memory.__struct_fields__
_TAGS, _METADATA = map(_FIELDS.index, ("tags", "metadata"))


def ready(draft: Draft, scrubber: Scrubber) -> Draft:
    """The draft checked for storing, without secrets. Raises InvalidMemory."""
    choose("category", draft.category, CATEGORIES)
    choose("type", draft.type, TYPES)
    choose("importance", draft.importance, tuple(IMPORTANCE))
    if not _text("title", draft.title).strip():
        raise InvalidMemory("a memory needs a title")
    try:
        metadata: dict[str, Any] = orjson.loads(orjson.dumps(dict(draft.metadata)))
    except (TypeError, ValueError) as error:
        raise InvalidMemory(f"metadata has to be a JSON object: {error}") from None
    return replace(
        draft,
        title=scrubber.text(_text("title", draft.title)),
        content=scrubber.text(_text("content", draft.content)),
        tags=list(dict.fromkeys(map(scrubber.text, distinct_tags(draft.tags)))),
        metadata=scrubber.value(metadata),
        project=None if draft.project is None else _text("project", draft.project),
        key=None if draft.key is None else _text("key", draft.key),
        salience=IMPORTANCE[draft.importance] if draft.salience is None else draft.salience,
        created_at=moment(draft.created_at, "created_at") if draft.created_at else None,
    )


def as_memory(row: Sequence[Any]) -> Memory:
    """The memory of a row that begins with `sql.COLUMNS`. Raises StoreDamaged if the row makes no sense."""
    values = list(row[: len(_FIELDS)])
    values[_TAGS], values[_METADATA] = (
        parsed(values[0], values[_TAGS]),
        parsed(values[0], values[_METADATA]),
    )
    return Memory(*values)


def parsed(id: int, text: str) -> Any:
    """The JSON value in a column of a memory. Raises StoreDamaged."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise StoreDamaged(f"memory {id}", str(error)) from None


def columns_of(draft: Draft) -> tuple[Any, ...]:
    """The columns that make up a memory's content, in the order of `sql.INSERT` and `sql.UPDATE`."""
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
    """The memory as a draft for another store: all fields except its id."""
    return Draft(**{name: getattr(memory, name) for name in Draft.__struct_fields__})


def says_the_same(memory: Memory, draft: Draft) -> bool:
    """Whether storing a draft would change nothing in a memory except the time of its change."""
    return (
        columns_of(draft_of(memory)) == columns_of(draft) and memory.created_at == draft.created_at
    )


def choose(name: str, value: str, among: Sequence[str]) -> str:
    """The value, if it is one of `among`. Otherwise raises InvalidMemory, which lists them."""
    if value not in among:
        raise InvalidMemory(f"{name}: invalid value {value!r}; choose from {', '.join(among)}")
    return value


def distinct_tags(tags: Sequence[str]) -> list[str]:
    """Each tag once, in the order given. Raises InvalidMemory for anything but a list of words."""
    distinct = (
        [] if isinstance(tags, str) else list(dict.fromkeys(_text("tags", tag) for tag in tags))
    )
    if isinstance(tags, str) or not all(tag.strip() for tag in distinct):
        raise InvalidMemory("tags are a list of words, none of them empty")
    return distinct


def moment(value: str | datetime, name: str = "since") -> str:
    """A time in the stored form: local, ISO 8601 with microseconds. Raises InvalidMemory."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        local = found.astimezone().replace(tzinfo=None) if found.tzinfo else found
    except (ValueError, TypeError, OverflowError):
        raise InvalidMemory(
            f"{name} {value!r}: give a time in ISO 8601, such as 2026-01-31T12:00:00"
        ) from None
    return local.isoformat(timespec="microseconds")


def fingerprint(draft: Draft, created_at: str) -> int:
    """A digest of 63 bits that tells memories without a key apart, made of the fields that don't change."""
    parts = (draft.title, draft.content, draft.project, created_at)
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidMemory(f"{name} has to be text, not {type(value).__name__}")
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


_TELLING = re.compile(
    r"^(?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError|SyntaxError|IndentationError): .+",
    re.MULTILINE,
)
"""Errors whose messages are about the code alone; the messages of other errors may quote a hidden test."""


def how_it_failed(verdict: str, cause: str, said: str) -> str:
    """A verdict and its cause, with the error's message from `said` if that message can't quote a test."""
    words = f"{verdict} ({cause})" if cause else verdict
    message = _TELLING.search(said)
    return f"{words}: {message[0][:200]}" if message else words


_OTHER_NAMES = {
    "accessCount": "access_count",
    "createdAt": "created_at",
    "lastAccessed": "last_accessed",
}
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
        raise InvalidMemory(
            "memories are a JSON array of objects, or an object that has it as its memories"
        )
    return [_draft(number, entry) for number, entry in enumerate(entries, 1)]


def _draft(number: int, entry: Any) -> Draft:
    if not isinstance(entry, Mapping):
        raise InvalidMemory(f"memory {number} is no JSON object")
    fields: dict[str, Any] = {
        _OTHER_NAMES.get(str(name), str(name)): value for name, value in entry.items()
    }
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
    found = (
        int(value)
        if isinstance(value, str) and len(value) < 20 and value.isdecimal()
        else value or 0
    )
    if not isinstance(found, int | float) or not 0 <= found < 2**63:
        raise ValueError(f"access_count {str(value)[:40]!r} is no count")
    return int(found)


def _salience(value: Any) -> float | None:
    return None if value is None else min(1.0, max(0.0, float(value)))
