"""The memory store in one SQLite file: memories, their tags with counts, and full text.

Used from one thread; `tracker.memory.cortex` is the asyncio face of it.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import orjson
from msgspec.structs import replace

from koderz_tracker.memory import database
from koderz_tracker.memory.database import BUSY_SECONDS, connect, explained, transaction
from koderz_tracker.memory.detail import about_of, gist_of, happened_in, merged, name_of
from koderz_tracker.memory.memories import (
    Draft,
    Memory,
    as_memory,
    columns_of,
    draft_of,
    fingerprint,
    ready,
    says_the_same,
)
from koderz_tracker.records import now
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
    suite: str | None = None
    task: str | None = None
    model: str | None = None
    arm: str | None = None
    solver: str | None = None
    outcome: str | None = None  # passed, failed or fault
    cause: str | None = None
    after: int | None = None  # with a larger id

    def conditions(self, columns: Mapping[str, str] = database.OF_MEMORY) -> tuple[str, list[Any]]:
        """The SQL conditions on columns of these names, beginning with AND, and their parameters. Tags are apart."""
        project = (
            f"({columns['project']} IN (?, ''))"
            if self.or_no_project
            else f"{columns['project']} = ?"
        )
        clauses = {
            **{
                f"{columns[name]} = ?": getattr(self, name)
                for name in database.CELL
                if name != "project"
            },
            project: self.project,
            f"{columns['created_at']} >= ?": self.since,
            f"{columns['created_at']} < ?": self.before,
            f"{columns['id']} = ?": self.id,
            f"{columns['id']} > ?": self.after,
        }
        meant = {condition: value for condition, value in clauses.items() if value is not None}
        return "".join(f" AND {condition}" for condition in meant), list(meant.values())


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A filter as SQL over the memories of things: walked by the rarest tag if few carry that, else by the things."""

    tags: Sequence[int]  # their ids, the rarest first
    by_tag: bool
    filters: str
    values: Sequence[Any]

    def condition(self) -> tuple[str, Sequence[Any]]:
        """The SQL condition, beginning with AND, under which a row of `thing_text` has a memory that fits."""
        if not self.tags and not self.filters:
            return "", ()
        if self.by_tag:
            return self.query(database.FITS_BY_TAG, "1")
        return self.query(database.FITS, "c.thing = thing_text.rowid")

    def query(self, statement: str, of: str, *more: Any) -> tuple[str, Sequence[Any]]:
        """A statement over the memories that fit, of the things or cells that the condition `of` names."""
        return statement.format(trials=self._trials(of)), (*self.tags, *self.values, *more)

    def _trials(self, of: str) -> str:
        tagged = database.IS_TAGGED * (len(self.tags) - self.by_tag)
        return (database.OF_TAG if self.by_tag else database.OF_CELLS).format(
            of=of, filters=tagged + self.filters
        )


Progress = Callable[[int, int], None]
"""Is told how many memories a store has taken over of how many."""


class Store:
    """An open store. Every method raises StoreDown if the file can't be read or written."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        scrubber: Scrubber | None = None,
        timeout: float = BUSY_SECONDS,
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self._scrubber = scrubber or Scrubber()
        self._timeout = timeout
        self._connection = connect(path, create=create, timeout=timeout)
        self._take_over(progress)

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
            return [
                id for draft in checked if not writer.knows(draft) for id in (writer.put(draft),)
            ]

    def select(
        self, wanted: Filter, *, limit: int | None = None, newest_first: bool = False
    ) -> list[Memory]:
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
        # most are left out by this, the others looked at
        conditions += " AND instr(m.tags, ?)" * len(written)
        newest = map(
            as_memory, self.rows(database.UNINDEXED.format(filters=conditions), [*values, *written])
        )
        return [memory for memory in newest if set(wanted.tags).issubset(memory.tags)]

    def get(self, which: int | str) -> Memory | None:
        """The memory with this id or key."""
        statement = database.BY_ID if isinstance(which, int) else database.BY_KEY
        for row in self.rows(statement, (which,)):
            return as_memory(row)
        return None

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a reading statement of `tracker.memory.database`."""
        with explained(self.path):
            return self._connection.execute(statement, parameters).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A block in which all reads see the same moment, whatever others write meanwhile."""
        with explained(self.path), transaction(self._connection, "DEFERRED"):
            yield

    def last_id(self) -> int:
        """The id of the newest memory, the largest of all; 0 for an empty store."""
        return int(self.rows(database.LAST_ID)[0][0])

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
        if self.rows(database.IS_BEHIND):
            self._write_if_free(Writer.catch_up, patience=0)

    def keep_vectors(self, made: Sequence[tuple[Any, ...]]) -> None:
        """Stores vectors of things whose texts are still those they were made of, unless another process is writing."""
        self._write_if_free(lambda writer: writer.keep_vectors(made), patience=0)

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Runs a writing statement of `tracker.memory.database`; returns the id of a row that it added."""
        with explained(self.path), transaction(self._connection):
            return self._connection.execute(statement, parameters).lastrowid or 0

    def check(self) -> str:
        """ "ok", or what is wrong with the file. Raises StoreDamaged where full text is, which only SQLite can tell."""
        with explained(self.path):
            found = str(self._connection.execute("PRAGMA quick_check").fetchone()[0])
            if found != "ok":
                return found
            self._connection.execute(database.CHECK_TEXT)
            for what, query in database.CHECKS.items():
                if wrong := self._connection.execute(query).fetchone()[0]:
                    return f"{wrong} {what}"
        return "ok"

    def narrowed(self, wanted: Filter) -> Narrowed | None:
        """The filter as SQL over things; None if no memory that the indexes know has its tags."""
        tags = self._rarest_first(wanted.tags)
        if tags is None:
            return None
        is_rare = bool(tags) and self.rows(database.TAG_COUNT, tags[:1])[0][0] <= RARE
        return Narrowed(tags, is_rare, *wanted.conditions(database.OF_TRIAL))

    def _rarest_first(self, tags: Sequence[str]) -> list[int] | None:
        """The ids of tags, the rarest first; None if no memory has one of them."""
        found = [
            self._connection.execute(database.TAG, (tag,)).fetchone() for tag in dict.fromkeys(tags)
        ]
        if not all(row and row[1] for row in found):
            return None
        return [id for id, _ in sorted(found, key=lambda row: int(row[1]))]

    def _indexed(self, wanted: Filter, limit: int | None, newest_first: bool) -> list[Memory]:
        tags = self._rarest_first(wanted.tags)
        if tags is None:
            return []
        conditions, values = wanted.conditions()
        statement = database.select(len(tags), conditions, newest_first=newest_first)
        return [
            as_memory(row)
            for row in self.rows(statement, [*tags, *values, -1 if limit is None else limit])
        ]

    def _take_over(self, progress: Progress | None) -> None:
        """Enters the memories of a store of an older version in the indexes; what fails now is left to others.

        It takes turns with whoever else writes, or takes the store over too: each batch is a transaction of its own.
        """
        ((mark, last),) = self.rows(database.INDEXED)
        is_old = last - mark > LAG
        while is_old and mark < last:
            if progress:
                progress(mark, last)
            self._write_if_free(Writer.catch_up, patience=self._timeout)
            before, ((mark, last),) = mark, self.rows(database.INDEXED)
            if mark == before:
                return
            time.sleep(_TURN)

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
                if error.sqlite_errorcode & 0xFF not in (
                    sqlite3.SQLITE_BUSY,
                    sqlite3.SQLITE_READONLY,
                ):
                    raise
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * self._timeout)}")


# memories at most that the indexes don't know yet: what a recall may have to catch up with, ~20 ms
LAG = 256
AT_ONCE = 20_000  # memories at most that are kept in mind until the indexes are told of them
RARE = 2000  # memories with a tag at most, for these to be looked through before the things
BATCH = 1000  # memories of a store of an older version that enter the indexes in one transaction
_TURN = 0.02  # seconds between two of them, for others that wait to write
_RETOLD = 64  # the newest memories of a thing, of which its text is made anew


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
        self._links: defaultdict[str, defaultdict[int, int]] = defaultdict(
            partial(defaultdict, int)
        )
        """For each tag and memory: 1 if the memory gets the tag, -1 if it loses it."""
        self._changed: set[int] = set()  # things of whose memories one was changed or removed
        self._ids: dict[tuple[Any, ...], int] = {}  # of things and cells, by what they are found by
        self._added = 0  # memories that the indexes don't know yet

    def knows(self, draft: Draft) -> bool:
        """Whether a memory is stored already: by its key, or without a key by its content."""
        if draft.key is not None:
            return bool(self._execute(database.BY_KEY, (draft.key,)).fetchone())
        mark = fingerprint(draft, draft.created_at or self._time)
        return bool(self._execute(database.BY_FINGERPRINT, (mark,)).fetchone())

    def put(self, draft: Draft) -> int:
        """Adds a memory, or updates the one with its key; returns its id."""
        created = draft.created_at or self._time
        mark = fingerprint(draft, created) if draft.key is None else None
        times = (draft.access_count, created, draft.updated_at or created, draft.last_accessed)
        added = self._execute(database.INSERT, (draft.key, *columns_of(draft), *times, mark))
        if not added.rowcount:
            known = self._execute(database.BY_KEY, (draft.key,)).fetchone()
            return self._bring_up_to_date(as_memory(known), draft)
        assert added.lastrowid is not None
        self._last_id = added.lastrowid
        self._added += 1
        if self._added > AT_ONCE:
            self.settle()
        return added.lastrowid

    def drop(self, id: int) -> int:
        """Removes a memory from the table and the indexes; 0 if it is gone already."""
        row = self._execute(database.BY_ID, (id,)).fetchone()
        if row is None:
            return 0
        self._unplace(as_memory(row))
        self._execute(database.DELETE, (id,))
        return 1

    def retag(self, id: int, tags: Sequence[str]) -> None:
        """Replaces a memory's tags, if it is still there."""
        row = self._execute(database.BY_ID, (id,)).fetchone()
        if row is not None:
            memory = as_memory(row)
            self._overwrite(memory, replace(draft_of(memory), tags=tags, updated_at=self._time))

    def touch(self, memories: Iterable[Memory]) -> None:
        """Counts accesses to memories."""
        self._executemany(database.TOUCH, [(self._time, memory.id) for memory in memories])

    def keep_vectors(self, made: Sequence[tuple[Any, ...]]) -> None:
        """Stores vectors: parameters of `sql.KEEP_VECTOR`."""
        self._executemany(database.KEEP_VECTOR, made)

    def settle(self) -> None:
        """Updates the indexes by the changes of this transaction."""
        if self._last_id - self._mark > LAG:
            self.catch_up()
        for thing in sorted(self._changed):
            newest = self._execute(database.NEWEST_OF_THING, (thing, _RETOLD)).fetchall()
            self._tell(thing, [*map(as_memory, newest)], anew=True)
        if self._changed:
            self._changed.clear()
            self._ids.clear()
        if self._links:
            self._link()

    def catch_up(self) -> None:
        """Brings the indexes up to date with every memory; with a store of an older version, a batch nearer to it."""
        told: defaultdict[int, list[Memory]] = defaultdict(list)
        trials: list[Sequence[Any]] = []
        for row in self._execute(database.TO_INDEX, (max(BATCH, self._added),)).fetchall():
            memory = as_memory(row)
            id, trial = self._place(memory, row)
            told[id].append(memory)
            trials.append(trial)
            self._mark = memory.id
        self._executemany(database.PUT_TRIAL, trials)
        for id, memories in told.items():
            self._tell(id, memories[::-1])
        self._execute(database.MOVE_MARK, (self._mark,))
        self._added = 0

    def _place(self, memory: Memory, row: Sequence[Any]) -> tuple[int, Sequence[Any]]:
        """Links a memory, of a row of `sql.TO_INDEX`, to its tags; returns the id of its thing, and its trial."""
        score, *columns = row[len(Memory.__struct_fields__) :]
        id = self._id_of(database.NEW_THING, database.THING, name_of(memory))
        cell = self._id_of(database.NEW_CELL, database.CELL_ID, id, *columns)
        for tag in memory.tags:
            self._links[tag][memory.id] += 1
        return id, (memory.id, cell, memory.created_at, score)

    def _unplace(self, memory: Memory) -> None:
        """Takes a memory out of the indexes, if they know it yet."""
        if memory.id <= self._mark:
            self._changed.update(
                thing for (thing,) in self._execute(database.THING_OF, (memory.id,))
            )
            self._execute(database.DROP_TRIAL, (memory.id,))
            for tag in memory.tags:
                self._links[tag][memory.id] -= 1

    def _tell(self, id: int, newest: Sequence[Memory], *, anew: bool = False) -> None:
        """Adds what memories tell of a thing, the newest first, to its text, or writes it anew, if there are any."""
        if anew:
            self._execute(database.DROP_CELLS, (id,))
        if not newest:
            self._execute(database.DROP_VECTOR, (id,))
            self._execute(database.DROP_TEXT, (id,))
            self._execute(database.DROP_THING, (id,))
            return
        known = self._execute(database.TEXT, (id,)).fetchone()
        before = None if anew else known
        about, lines = (before[0], before[1].splitlines()) if before else (about_of(newest[0]), [])
        about = next((text for text in map(about_of, newest) if "\n" in text), about)
        content = merged((line for memory in newest for line in happened_in(memory)), lines)
        if before != (about, content):
            self._execute(database.PUT_TEXT, (id, about, content))
        name = name_of(newest[0])
        if known and gist_of(name, *known) != gist_of(name, about, content):
            self._execute(database.DROP_VECTOR, (id,))

    def _id_of(self, new: str, known: str, *values: Any) -> int:
        """The id of the row with these values, which is added if it isn't there."""
        if values not in self._ids:
            self._execute(new, values)
            (self._ids[values],) = self._execute(known, values).fetchone()
        return self._ids[values]

    def _bring_up_to_date(self, memory: Memory, draft: Draft) -> int:
        newer = replace(
            draft,
            created_at=draft.created_at or memory.created_at,
            updated_at=draft.updated_at or self._time,
        )
        if (
            not says_the_same(memory, newer)
            and newer.updated_at
            and newer.updated_at >= memory.updated_at
        ):
            self._overwrite(memory, newer)
        return memory.id

    def _overwrite(self, memory: Memory, draft: Draft) -> None:
        self._unplace(memory)
        self._execute(
            database.UPDATE, (*columns_of(draft), draft.created_at, draft.updated_at, memory.id)
        )
        if memory.id <= self._mark:
            row = self._execute(database.TO_PLACE, (memory.id,)).fetchone()
            id, trial = self._place(as_memory(row), row)
            self._execute(database.PUT_TRIAL, trial)
            self._changed.add(id)

    def _link(self) -> None:
        """Writes the changed links between tags and memories, in the order of storing, and the counts of tags."""
        added: list[tuple[int, int]] = []
        removed: list[tuple[int, int]] = []
        for tag, changes in self._links.items():
            if any(changes.values()):
                tag_id = self._counted(tag, sum(changes.values()))
                added += ((tag_id, id) for id, change in changes.items() if change > 0)
                removed += ((tag_id, id) for id, change in changes.items() if change < 0)
        self._executemany(database.LINK, sorted(added))
        self._executemany(database.UNLINK, removed)
        self._executemany(database.DROP_TAG, [(tag_id,) for tag_id, _ in removed])
        self._links.clear()

    def _marked(self) -> int:
        """The newest memory that the indexes cover."""
        return int(self._execute(database.INDEX_MARK).fetchone()[0])

    def _counted(self, tag: str, change: int) -> int:
        """Changes the count of a tag; returns its id."""
        known = self._execute(database.TAG, (tag,)).fetchone()
        if known:
            self._execute(database.COUNT_TAG, (change, known[0]))
            return int(known[0])
        added = self._execute(database.NEW_TAG, (tag, change)).lastrowid
        assert added is not None
        return added
