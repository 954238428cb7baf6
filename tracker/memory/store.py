"""The memory store: memories, their tags with a kept count, and full text, in one SQLite file.

Used from one thread; `tracker.memory.cortex` is the asyncio face of it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import orjson

from tracker.memory import sql
from tracker.memory.database import BUSY_SECONDS, StoreDamaged, connect, explained, indexed, transaction, words_of_tags
from tracker.memory.memories import Draft, Memory, fingerprint, ready
from tracker.memory.scrubbing import Scrubber
from tracker.records import now

_TAGS, _METADATA = (sql.COLUMNS.split(", ").index(name) for name in ("tags", "metadata"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which memories are meant: those that fit everything said."""

    tags: Sequence[str] = ()  # all of them
    category: str | None = None
    type: str | None = None
    project: str | None = None
    or_no_project: bool = False  # with `project`: also memories that belong to none
    since: str | None = None  # created then or later; ISO 8601
    before: str | None = None  # created earlier

    def conditions(self) -> tuple[str, list[Any]]:
        """As SQL on the table `m`, beginning with AND, and its parameters; tags apart."""
        project = "(m.project = ? OR m.project IS NULL)" if self.or_no_project else "m.project = ?"
        said = {
            "m.category = ?": self.category,
            "m.type = ?": self.type,
            project: self.project,
            "m.created_at >= ?": self.since,
            "m.created_at < ?": self.before,
        }
        meant = {condition: value for condition, value in said.items() if value is not None}
        return "".join(f" AND {condition}" for condition in meant), list(meant.values())


class Store:
    """A store that is open. Every method raises StoreDown where the file can't be read or written."""

    def __init__(
        self, path: Path, *, create: bool = True, scrubber: Scrubber | None = None, timeout: float = BUSY_SECONDS
    ) -> None:
        self.path = path
        self._scrubber = scrubber or Scrubber()
        self._connection = connect(path, create=create, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with explained(self.path):
            self._connection.close()

    def remember(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores memories in one transaction, durable on return; their ids.

        A memory whose key is known is brought up to date: nothing changes where it already says the same, or
        something newer. Raises InvalidMemory before anything is stored.
        """
        checked = [ready(draft, self._scrubber) for draft in drafts]
        with self._writing() as writer:
            return [writer.put(draft) for draft in checked]

    def add_new(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores those memories that aren't there yet, by their key or else by what they say; their ids."""
        checked = [ready(draft, self._scrubber) for draft in drafts]
        with self._writing() as writer:
            return [id for draft in checked if not writer.knows(draft) for id in (writer.put(draft),)]

    def select(self, wanted: Filter, *, limit: int | None = None, newest_first: bool = False) -> list[Memory]:
        """The memories that fit, in the order in which they were stored."""
        with explained(self.path):
            tags = self._rarest_first(wanted.tags)
            if tags is None:
                return []
            conditions, values = wanted.conditions()
            statement = sql.select(len(tags), conditions, newest_first=newest_first)
            rows = self._connection.execute(statement, [*tags, *values, -1 if limit is None else limit])
            return [as_memory(row) for row in rows]

    def get(self, which: int | str) -> Memory | None:
        """The memory of an id, or of a key."""
        statement = sql.BY_ID if isinstance(which, int) else sql.BY_KEY
        for row in self.rows(statement, (which,)):
            return as_memory(row)
        return None

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement of `tracker.memory.sql` that reads."""
        with explained(self.path):
            return self._connection.execute(statement, parameters).fetchall()

    def last_id(self) -> int:
        """The id of the memory that was stored last; later ones have larger ids. 0 for an empty store."""
        return int(self.rows(sql.LAST_ID)[0][0])

    def delete(self, memories: Iterable[Memory]) -> int:
        """Forgets memories; how many there were. Protected ones have to be left out by the caller."""
        with self._writing() as writer:
            return sum(writer.drop(memory.id) for memory in memories)

    def replace(self, kept: Memory, others: Iterable[Memory], tags: Sequence[str]) -> None:
        """Merges memories into one of them, which gets the tags of all."""
        with self._writing() as writer:
            for other in others:
                writer.drop(other.id)
            writer.retag(kept, tags)

    def touch(self, memories: Iterable[Memory]) -> None:
        """Counts that memories were read. Where another process is writing at length, it goes uncounted."""
        time = now()
        with explained(self.path):
            self._connection.execute("PRAGMA busy_timeout = 250")
            try:
                with transaction(self._connection):
                    self._connection.executemany(sql.TOUCH, [(time, memory.id) for memory in memories])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY):
                    raise
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_SECONDS)}")

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Carries out one statement of `tracker.memory.sql` that writes; the id of a row that it added."""
        with explained(self.path), transaction(self._connection):
            return self._connection.execute(statement, parameters).lastrowid or 0

    def check(self) -> str:
        """ "ok", or what is wrong with the file."""
        with explained(self.path):
            found = str(self._connection.execute("PRAGMA quick_check").fetchone()[0])
            if found != "ok":
                return found
            wrong = sum(self._connection.execute(query).fetchone()[0] for query in (sql.MISCOUNTED, sql.UNLINKED))
        return f"{wrong} tags are miscounted" if wrong else "ok"

    def _rarest_first(self, tags: Sequence[str]) -> list[int] | None:
        """The ids of tags, the rarest first; None where one of them marks no memory."""
        found = [self._connection.execute(sql.TAG, (tag,)).fetchone() for tag in dict.fromkeys(tags)]
        if not all(row and row[1] for row in found):
            return None
        return [id for id, _ in sorted(found, key=lambda row: int(row[1]))]

    @contextmanager
    def _writing(self) -> Iterator[_Writer]:
        with explained(self.path), transaction(self._connection):
            writer = _Writer(self._connection)
            yield writer
            writer.settle()


class _Writer:
    """What one transaction writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._tag_ids: dict[str, int] = {}
        self._counts: Counter[int] = Counter()
        self._time = now()

    def knows(self, draft: Draft) -> bool:
        """Whether a memory is there: by its key, or one without a key that says the same."""
        if draft.key is not None:
            return self._execute(sql.BY_KEY, (draft.key,)).fetchone() is not None
        mark = fingerprint(draft, draft.created_at or self._time)
        return self._execute(sql.BY_FINGERPRINT, (mark,)).fetchone() is not None

    def put(self, draft: Draft) -> int:
        row = None if draft.key is None else self._execute(sql.BY_KEY, (draft.key,)).fetchone()
        return self._add(draft) if row is None else self._bring_up_to_date(as_memory(row), draft)

    def drop(self, id: int) -> int:
        """Takes a memory out of everything; 0 where it is gone already."""
        row = self._execute(sql.BY_ID, (id,)).fetchone()
        if row is None:
            return 0
        memory = as_memory(row)
        self._unindex(memory)
        self._execute(sql.DELETE, (id,))
        for tag in memory.tags:
            self._unlink(tag, id)
        return 1

    def retag(self, memory: Memory, tags: Sequence[str]) -> None:
        draft = draft_of(memory)
        self._overwrite(memory, replace(draft, tags=tags, updated_at=self._time))

    def settle(self) -> None:
        """Writes how often each tag is used now."""
        for tag, change in self._counts.items():
            if change:
                self._execute(sql.COUNT_TAG, (change, tag))
            if change < 0:
                self._execute(sql.DROP_TAG, (tag,))

    def _add(self, draft: Draft) -> int:
        created = draft.created_at or self._time
        mark = fingerprint(draft, created) if draft.key is None else None
        times = (draft.access_count, created, draft.updated_at or created, draft.last_accessed)
        id = self._execute(sql.INSERT, (draft.key, *_told(draft), *times, mark)).lastrowid
        assert id is not None
        self._execute(sql.INDEX_TEXT, (id, draft.title, words_of_tags(draft.tags), indexed(draft.content)))
        for tag in draft.tags:
            self._link(tag, id)
        return id

    def _bring_up_to_date(self, memory: Memory, draft: Draft) -> int:
        newer = replace(
            draft, created_at=draft.created_at or memory.created_at, updated_at=draft.updated_at or self._time
        )
        if not _says_the_same(memory, newer) and newer.updated_at and newer.updated_at >= memory.updated_at:
            self._overwrite(memory, newer)
        return memory.id

    def _overwrite(self, memory: Memory, draft: Draft) -> None:
        self._unindex(memory)
        self._execute(sql.UPDATE, (*_told(draft), draft.created_at, draft.updated_at, memory.id))
        self._execute(sql.INDEX_TEXT, (memory.id, draft.title, words_of_tags(draft.tags), indexed(draft.content)))
        for tag in memory.tags:
            if tag not in draft.tags:
                self._unlink(tag, memory.id)
        for tag in draft.tags:
            if tag not in memory.tags:
                self._link(tag, memory.id)

    def _unindex(self, memory: Memory) -> None:
        """Full text keeps no text of its own, so it has to be told what it knew."""
        words = (memory.title, words_of_tags(memory.tags), indexed(memory.content))
        self._execute(sql.UNINDEX_TEXT, (memory.id, *words))

    def _link(self, tag: str, id: int) -> None:
        tag_id = self._tag_id(tag)
        self._execute(sql.LINK, (tag_id, id))
        self._counts[tag_id] += 1

    def _unlink(self, tag: str, id: int) -> None:
        tag_id = self._tag_id(tag)
        self._execute(sql.UNLINK, (tag_id, id))
        self._counts[tag_id] -= 1

    def _tag_id(self, tag: str) -> int:
        if tag not in self._tag_ids:
            row = self._execute(sql.TAG, (tag,)).fetchone()
            self._tag_ids[tag] = row[0] if row else self._new_tag(tag)
        return self._tag_ids[tag]

    def _new_tag(self, tag: str) -> int:
        """Most tags name one experiment, so a new one begins with its only use counted."""
        id = self._execute(sql.NEW_TAG, (tag,)).lastrowid
        assert id is not None
        self._counts[id] = -1
        return id


def as_memory(row: Sequence[Any]) -> Memory:
    """A row of `sql.COLUMNS`, whatever comes after them. Raises StoreDamaged for one that says nothing."""
    values = list(row[:15])
    try:
        values[_TAGS], values[_METADATA] = orjson.loads(values[_TAGS]), orjson.loads(values[_METADATA])
    except orjson.JSONDecodeError as error:
        raise StoreDamaged(f"memory {values[0]}", str(error)) from None
    return Memory(*values)


def _told(draft: Draft) -> tuple[Any, ...]:
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
    return Draft(
        title=memory.title,
        content=memory.content,
        category=memory.category,
        type=memory.type,
        tags=memory.tags,
        importance=memory.importance,
        metadata=memory.metadata,
        project=memory.project,
        salience=memory.salience,
        key=memory.key,
        access_count=memory.access_count,
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        last_accessed=memory.last_accessed,
    )


def _says_the_same(memory: Memory, draft: Draft) -> bool:
    return _told(draft_of(memory)) == _told(draft) and memory.created_at == draft.created_at
