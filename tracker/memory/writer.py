"""Writing to the store within one transaction, and keeping its indexes by tag and of full text."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

from msgspec.structs import replace

from koderz_tracker.memory import sql
from koderz_tracker.memory.database import indexed, transaction
from koderz_tracker.memory.memories import (
    Draft,
    Memory,
    as_memory,
    columns_of,
    draft_of,
    fingerprint,
    parsed,
    says_the_same,
)
from koderz_tracker.records import now

LAG = 256  # memories at most that the indexes don't know yet: what a recall may have to catch up with, ~20 ms
AT_ONCE = 20_000  # memories at most that are kept in mind until the indexes are told of them


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[Writer]:
    """A transaction with its writer: all that is written is stored together or not at all."""
    with transaction(connection):
        writer = Writer(connection)
        yield writer
        writer.settle()


class Writer:
    """The write operations of one transaction.

    The store's own indexes, by tag and of full text, lag behind: they know the memories up to one of them, kept
    in `index_mark`, and the newer ones enter them together. One by one, that would cost more than all the rest
    of storing a memory. Who asks the indexes has to look through the newest memories too, or let them catch up.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute, self._executemany = connection.execute, connection.executemany
        self._time = now()
        self._mark = self._last_id = self._marked()
        self._links: defaultdict[str, defaultdict[int, int]] = defaultdict(partial(defaultdict, int))
        """For each tag and memory: 1 if the memory gets the tag, -1 if it loses it."""

    def knows(self, draft: Draft) -> bool:
        """Whether a memory is stored already: by its key, or without a key by its content."""
        if draft.key is not None:
            return bool(self._execute(sql.BY_KEY, (draft.key,)).fetchone())
        mark = fingerprint(draft, draft.created_at or self._time)
        return bool(self._execute(sql.BY_FINGERPRINT, (mark,)).fetchone())

    def put(self, draft: Draft) -> int:
        """Adds a memory, or updates the one with its key; returns its id."""
        created = draft.created_at or self._time
        mark = fingerprint(draft, created) if draft.key is None else None
        times = (draft.access_count, created, draft.updated_at or created, draft.last_accessed)
        added = self._execute(sql.INSERT, (draft.key, *columns_of(draft), *times, mark))
        if not added.rowcount:
            known = self._execute(sql.BY_KEY, (draft.key,)).fetchone()
            return self._bring_up_to_date(as_memory(known), draft)
        assert added.lastrowid is not None
        self._last_id = added.lastrowid
        if self._last_id - self._mark > AT_ONCE:
            self.settle()
        return added.lastrowid

    def drop(self, id: int) -> int:
        """Removes a memory from the table and the indexes; 0 if it is gone already."""
        row = self._execute(sql.BY_ID, (id,)).fetchone()
        if row is None:
            return 0
        self._index(sql.UNINDEX_TEXT, id, as_memory(row), -1)
        self._execute(sql.DELETE, (id,))
        return 1

    def retag(self, id: int, tags: Sequence[str]) -> None:
        """Replaces a memory's tags, if it is still there."""
        row = self._execute(sql.BY_ID, (id,)).fetchone()
        if row is not None:
            memory = as_memory(row)
            self._overwrite(memory, replace(draft_of(memory), tags=tags, updated_at=self._time))

    def touch(self, memories: Iterable[Memory]) -> None:
        """Counts accesses to memories."""
        self._executemany(sql.TOUCH, [(self._time, memory.id) for memory in memories])

    def settle(self) -> None:
        """Updates the indexes by the changes of this transaction."""
        if self._last_id - self._mark > LAG:
            self.catch_up()
        if self._links:
            self._link()

    def catch_up(self) -> None:
        """Brings the indexes up to date with every memory."""
        for id, tags in self._execute(sql.UNINDEXED_TAGS):
            for tag in parsed(id, tags):
                self._links[tag][id] += 1
        self._execute(sql.INDEX_NEWER)
        self._execute(sql.MOVE_MARK)
        self._mark = self._marked()

    def _bring_up_to_date(self, memory: Memory, draft: Draft) -> int:
        newer = replace(
            draft, created_at=draft.created_at or memory.created_at, updated_at=draft.updated_at or self._time
        )
        if not says_the_same(memory, newer) and newer.updated_at and newer.updated_at >= memory.updated_at:
            self._overwrite(memory, newer)
        return memory.id

    def _overwrite(self, memory: Memory, draft: Draft) -> None:
        self._index(sql.UNINDEX_TEXT, memory.id, memory, -1)
        self._execute(sql.UPDATE, (*columns_of(draft), draft.created_at, draft.updated_at, memory.id))
        self._index(sql.INDEX_TEXT, memory.id, draft, 1)

    def _index(self, statement: str, id: int, said: Memory | Draft, change: Literal[1, -1]) -> None:
        """Adds a memory's text to the full-text index or removes it; removing needs the text as it was indexed."""
        if id <= self._mark:
            self._execute(statement, (id, said.title, " ".join(said.tags), indexed(said.content)))
            for tag in said.tags:
                self._links[tag][id] += change

    def _link(self) -> None:
        """Writes the changed links between tags and memories, in the order of storing, and the counts of tags."""
        added: list[tuple[int, int]] = []
        removed: list[tuple[int, int]] = []
        for tag, changes in self._links.items():
            if any(changes.values()):
                tag_id = self._counted(tag, sum(changes.values()))
                added += ((tag_id, id) for id, change in changes.items() if change > 0)
                removed += ((tag_id, id) for id, change in changes.items() if change < 0)
        self._executemany(sql.LINK, sorted(added))
        self._executemany(sql.UNLINK, removed)
        self._executemany(sql.DROP_TAG, [(tag_id,) for tag_id, _ in removed])
        self._links.clear()

    def _marked(self) -> int:
        """The newest memory that the indexes cover."""
        return int(self._execute(sql.INDEX_MARK).fetchone()[0])

    def _counted(self, tag: str, change: int) -> int:
        """Changes the count of a tag; returns its id."""
        known = self._execute(sql.TAG, (tag,)).fetchone()
        if known:
            self._execute(sql.COUNT_TAG, (change, known[0]))
            return int(known[0])
        added = self._execute(sql.NEW_TAG, (tag, change)).lastrowid
        assert added is not None
        return added
