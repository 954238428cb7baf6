"""The memory store in one SQLite file: memories, their tags with counts, and full text.

Used from one thread; `tracker.memory.cortex` is the asyncio face of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from koderz_tracker.memory import sql
from koderz_tracker.memory.database import BUSY_SECONDS, connect, explained, transaction
from koderz_tracker.memory.memories import Draft, Memory, as_memory, ready
from koderz_tracker.memory.writer import Writer, writing
from koderz_tracker.scrubber import Scrubber


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A selection of memories: those that match every field that is set."""

    tags: Sequence[str] = ()  # all of them
    category: str | None = None
    type: str | None = None
    project: str | None = None
    or_no_project: bool = False  # with `project`: also memories that belong to none
    since: str | None = None  # created then or later; ISO 8601
    before: str | None = None  # created earlier
    id: int | None = None

    def conditions(self) -> tuple[str, list[Any]]:
        """The SQL conditions on the table `m`, beginning with AND, and their parameters. Tags are handled apart."""
        project = "(m.project = ? OR m.project IS NULL)" if self.or_no_project else "m.project = ?"
        clauses = {
            "m.category = ?": self.category,
            "m.type = ?": self.type,
            project: self.project,
            "m.created_at >= ?": self.since,
            "m.created_at < ?": self.before,
            "m.id = ?": self.id,
        }
        meant = {condition: value for condition, value in clauses.items() if value is not None}
        return "".join(f" AND {condition}" for condition in meant), list(meant.values())


class Store:
    """An open store. Every method raises StoreDown if the file can't be read or written."""

    def __init__(
        self, path: Path, *, create: bool = True, scrubber: Scrubber | None = None, timeout: float = BUSY_SECONDS
    ) -> None:
        self.path = path
        self._scrubber = scrubber or Scrubber()
        self._timeout = timeout
        self._connection = connect(path, create=create, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with explained(self.path):
            self._connection.close()

    def remember(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores memories in one transaction, durable on return; returns their ids.

        A memory whose key is known is brought up to date: nothing changes where it already says the same, or
        something newer. Raises InvalidMemory before anything is stored.
        """
        checked = [ready(draft, self._scrubber) for draft in drafts]
        with self._writing() as writer:
            return [writer.put(draft) for draft in checked]

    def add_new(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores the memories that are not there yet, by key or else by content; returns their ids."""
        checked = [ready(draft, self._scrubber) for draft in drafts]
        with self._writing() as writer:
            return [id for draft in checked if not writer.knows(draft) for id in (writer.put(draft),)]

    def select(self, wanted: Filter, *, limit: int | None = None, newest_first: bool = False) -> list[Memory]:
        """The memories that match, in the order in which they were stored."""
        with self.snapshot():
            found = self._indexed(wanted, limit, newest_first)
            if wanted.tags:
                newer = self.unindexed(wanted)
                found = [*reversed(newer), *found] if newest_first else [*found, *newer]
            return found[:limit]

    def unindexed(self, wanted: Filter) -> list[Memory]:
        """The memories that match among the newest few, which the indexes don't cover yet."""
        conditions, values = wanted.conditions()
        written = [orjson.dumps(tag).decode() for tag in wanted.tags]
        conditions += " AND instr(m.tags, ?)" * len(written)  # most are left out by this, the others looked at
        newest = map(as_memory, self.rows(sql.UNINDEXED.format(filters=conditions), [*values, *written]))
        return [memory for memory in newest if set(wanted.tags).issubset(memory.tags)]

    def get(self, which: int | str) -> Memory | None:
        """The memory with this id or key."""
        statement = sql.BY_ID if isinstance(which, int) else sql.BY_KEY
        for row in self.rows(statement, (which,)):
            return as_memory(row)
        return None

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a reading statement of `tracker.memory.sql`."""
        with explained(self.path):
            return self._connection.execute(statement, parameters).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A block in which all reads see the same moment, whatever others write meanwhile."""
        with explained(self.path), transaction(self._connection, "DEFERRED"):
            yield

    def last_id(self) -> int:
        """The id of the newest memory, the largest of all; 0 for an empty store."""
        return int(self.rows(sql.LAST_ID)[0][0])

    def delete(self, memories: Iterable[Memory]) -> int:
        """Deletes memories; returns how many there were. The caller has to leave out protected ones."""
        with self._writing() as writer:
            return sum(writer.drop(memory.id) for memory in memories)

    def replace(self, kept: Memory, others: Iterable[Memory], tags: Sequence[str]) -> None:
        """Merges memories into one of them, which gets all tags."""
        with self._writing() as writer:
            for other in others:
                writer.drop(other.id)
            writer.retag(kept.id, tags)

    def touch(self, memories: Iterable[Memory]) -> None:
        """Counts accesses to memories. If another process is writing at length, they are not counted."""
        self._write_if_free(lambda writer: writer.touch(memories), patience=0.25)

    def index_newest(self) -> None:
        """Brings the indexes up to date with every memory, unless another process is writing."""
        if self.rows(sql.IS_BEHIND):
            self._write_if_free(Writer.catch_up, patience=0)

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Runs a writing statement of `tracker.memory.sql`; returns the id of a row that it added."""
        with explained(self.path), transaction(self._connection):
            return self._connection.execute(statement, parameters).lastrowid or 0

    def check(self) -> str:
        """ "ok", or what is wrong with the file."""
        with explained(self.path):
            found = str(self._connection.execute("PRAGMA quick_check").fetchone()[0])
            if found != "ok":
                return found
            for what, query in sql.CHECKS.items():
                if wrong := self._connection.execute(query).fetchone()[0]:
                    return f"{wrong} {what}"
        return "ok"

    def _rarest_first(self, tags: Sequence[str]) -> list[int] | None:
        """The ids of tags, the rarest first; None if no memory has one of them."""
        found = [self._connection.execute(sql.TAG, (tag,)).fetchone() for tag in dict.fromkeys(tags)]
        if not all(row and row[1] for row in found):
            return None
        return [id for id, _ in sorted(found, key=lambda row: int(row[1]))]

    def _indexed(self, wanted: Filter, limit: int | None, newest_first: bool) -> list[Memory]:
        tags = self._rarest_first(wanted.tags)
        if tags is None:
            return []
        conditions, values = wanted.conditions()
        statement = sql.select(len(tags), conditions, newest_first=newest_first)
        return [as_memory(row) for row in self.rows(statement, [*tags, *values, -1 if limit is None else limit])]

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        with explained(self.path), writing(self._connection) as writer:
            yield writer

    def _write_if_free(self, work: Callable[[Writer], None], *, patience: float) -> None:
        """Writes on behalf of a reader; does nothing if another process keeps writing or nobody may write."""
        with explained(self.path):
            self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * patience)}")
            try:
                with writing(self._connection) as writer:
                    work(writer)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY):
                    raise
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * self._timeout)}")
