"""The store's SQLite file: its statements, settings, schema and transactions, and its errors in plain words."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from koderz_tracker.errors import KoderzError

APPLICATION_ID = 0x6B6F6472  # "kodr", so that another program's database isn't taken for ours

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE memories (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT,
            title TEXT NOT NULL,
            content TEXT NOT NULL,
            category TEXT NOT NULL,
            type TEXT NOT NULL,
            tags TEXT NOT NULL,
            importance TEXT NOT NULL,
            metadata TEXT NOT NULL,
            project TEXT,
            salience REAL NOT NULL,
            access_count INTEGER NOT NULL,
            created_at TEXT NOT NULL,
            updated_at TEXT NOT NULL,
            last_accessed TEXT,
            fingerprint INTEGER
        )
        """,
        "CREATE UNIQUE INDEX memories_key ON memories (key) WHERE key IS NOT NULL",
        "CREATE INDEX memories_fingerprint ON memories (fingerprint) WHERE key IS NULL",
        "CREATE TABLE tags (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, n INTEGER NOT NULL)",
        """
        CREATE TABLE memory_tags (
            tag_id INTEGER NOT NULL,
            memory_id INTEGER NOT NULL,
            PRIMARY KEY (tag_id, memory_id)
        ) WITHOUT ROWID
        """,
    ),
    (),  # full text of memories, which the last version replaces
    (
        """
        CREATE TABLE sessions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            project TEXT,
            started_at TEXT NOT NULL,
            ended_at TEXT,
            summary TEXT
        )
        """,
        """
        CREATE INDEX memories_lesson ON memories (json_extract(metadata, '$.lesson_cause'), id)
        WHERE json_extract(metadata, '$.lesson_cause') IS NOT NULL
        """,
    ),
    (
        "CREATE TABLE index_mark (last_id INTEGER NOT NULL)",
        "INSERT INTO index_mark SELECT coalesce(max(id), 0) FROM memories",
    ),
    (
        # The indexes begin anew, and catch up from the first memory on: of text there is one row a thing.
        "DROP TABLE IF EXISTS memory_text",
        "DELETE FROM memory_tags",
        "DELETE FROM tags",
        "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        """
        CREATE VIRTUAL TABLE thing_text USING fts5 (
            about, content, tokenize = "porter unicode61 remove_diacritics 2"
        )
        """,
        "CREATE VIRTUAL TABLE thing_words USING fts5vocab (thing_text, row)",
        """
        CREATE TABLE cells (
            id INTEGER PRIMARY KEY,
            thing INTEGER NOT NULL,
            suite TEXT NOT NULL,
            task TEXT NOT NULL,
            model TEXT NOT NULL,
            arm TEXT NOT NULL,
            solver TEXT NOT NULL,
            outcome TEXT NOT NULL,
            cause TEXT NOT NULL,
            project TEXT NOT NULL,
            category TEXT NOT NULL,
            type TEXT NOT NULL,
            UNIQUE (thing, suite, task, model, arm, solver, outcome, cause, project, category, type)
        )
        """,
        "CREATE INDEX cells_task ON cells (task)",
        """
        CREATE TABLE trials (
            memory_id INTEGER PRIMARY KEY,
            cell INTEGER NOT NULL,
            created_at TEXT NOT NULL,
            score REAL
        )
        """,
        "CREATE INDEX trials_cell ON trials (cell, created_at, score)",
        "UPDATE index_mark SET last_id = 0",
    ),
    (
        """
        CREATE TABLE vectors (
            thing INTEGER PRIMARY KEY,
            model TEXT NOT NULL,
            vector BLOB NOT NULL CHECK (typeof(vector) = 'blob')
        )
        """,
    ),
)
"""The statements that lead from each version of the schema to the next; their number is the latest version."""

COLUMNS = (
    "id, key, title, content, category, type, tags, importance, metadata, project, salience, "
    "access_count, created_at, updated_at, last_accessed"
)

_M = ", ".join(f"m.{name}" for name in COLUMNS.split(", "))

INSERT = (
    f"INSERT INTO memories ({COLUMNS.removeprefix('id, ')}, fingerprint) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
UPDATE = (
    "UPDATE memories SET title = ?, content = ?, category = ?, type = ?, tags = ?, importance = ?, metadata = ?, "
    "project = ?, salience = ?, created_at = ?, updated_at = ? WHERE id = ?"
)
DELETE = "DELETE FROM memories WHERE id = ?"
BY_KEY = f"SELECT {COLUMNS} FROM memories WHERE key = ?"
BY_ID = f"SELECT {COLUMNS} FROM memories WHERE id = ?"
BY_FINGERPRINT = "SELECT id FROM memories WHERE key IS NULL AND fingerprint = ? LIMIT 1"
LAST_ID = "SELECT coalesce(max(id), 0) FROM memories"
TOUCH = "UPDATE memories SET access_count = access_count + 1, last_accessed = ? WHERE id = ?"

CELL = {
    **{
        name: f"coalesce(CAST(json_extract(m.metadata, '$.{key}') AS TEXT), '')"
        for name, key in (
            ("suite", "suite"),
            ("task", "problem_id"),
            ("model", "model"),
            ("arm", "arm"),
        )
    },
    "solver": "coalesce(CAST(json_extract(m.metadata, '$.solver') AS TEXT), '')",
    "outcome": (
        "CASE json_extract(m.metadata, '$.success') WHEN 1 THEN 'passed' WHEN 0 THEN 'failed' "
        "ELSE iif(json_extract(m.metadata, '$.reason') IS NULL, '', 'fault') END"
    ),
    "cause": "coalesce(CAST(json_extract(m.metadata, '$.cause') AS TEXT), '')",
    "project": "coalesce(m.project, '')",
    "category": "m.category",
    "type": "m.type",
}
"""The columns of `cells`, by which memories are narrowed, each with its origin in a memory."""

OF_MEMORY = {**CELL, "created_at": "m.created_at", "id": "m.id"}
OF_TRIAL = {
    **{name: f"c.{name}" for name in CELL},
    "created_at": "r.created_at",
    "id": "r.memory_id",
}
"""The columns by which a walk over memories, or over trials, is narrowed."""

_SCORE = "iif(json_type(m.metadata, '$.score') IN ('integer', 'real'), json_extract(m.metadata, '$.score'), NULL)"
_PLACED = f"SELECT {_M}, {_SCORE}, {', '.join(CELL.values())} FROM memories m"
TO_INDEX = f"{_PLACED} WHERE m.id > (SELECT last_id FROM index_mark) ORDER BY m.id LIMIT ?"
TO_PLACE = f"{_PLACED} WHERE m.id = ?"
NEW_THING = "INSERT INTO things (name) VALUES (?) ON CONFLICT DO NOTHING"
THING = "SELECT id FROM things WHERE name = ?"
NEW_CELL = f"INSERT INTO cells (thing, {', '.join(CELL)}) VALUES (?{', ?' * len(CELL)}) ON CONFLICT DO NOTHING"
CELL_ID = f"SELECT id FROM cells WHERE thing = ? {' '.join(f'AND {name} = ?' for name in CELL)}"
PUT_TRIAL = "INSERT OR REPLACE INTO trials (memory_id, cell, created_at, score) VALUES (?, ?, ?, ?)"
THING_OF = "SELECT c.thing FROM trials r JOIN cells c ON c.id = r.cell WHERE r.memory_id = ?"
DROP_TRIAL = "DELETE FROM trials WHERE memory_id = ?"
DROP_CELLS = (
    "DELETE FROM cells WHERE thing = ? AND NOT EXISTS (SELECT 1 FROM trials WHERE cell = cells.id)"
)
DROP_THING = "DELETE FROM things WHERE id = ?"
KEEP_VECTOR = (
    "INSERT OR REPLACE INTO vectors SELECT ?, ?, ? "
    # as it was made of
    "WHERE EXISTS (SELECT 1 FROM thing_text WHERE rowid = ? AND about = ? AND content = ?)"
)
DROP_VECTOR = "DELETE FROM vectors WHERE thing = ?"
_HAVE_NONE = (
    "FROM things t CROSS JOIN thing_text x ON x.rowid = t.id WHERE t.id > ? AND NOT EXISTS "
    "(SELECT 1 FROM vectors v WHERE v.thing = t.id AND v.model = ? AND length(v.vector) = ?)"
)
WITHOUT_VECTOR = f"SELECT t.id, t.name, x.about, x.content {_HAVE_NONE} ORDER BY t.id LIMIT ?"
HAVE_NO_VECTOR = f"SELECT count(*) {_HAVE_NONE}"
VECTORS = (
    "SELECT rowid, vector FROM vectors AS thing_text "
    "WHERE model = ? AND length(vector) = ? {narrowed} ORDER BY rowid"
)
FITTING = "SELECT rowid FROM things AS thing_text WHERE 1 {narrowed}"
TEXT = "SELECT about, content FROM thing_text WHERE rowid = ?"
PUT_TEXT = "INSERT OR REPLACE INTO thing_text (rowid, about, content) VALUES (?, ?, ?)"
DROP_TEXT = "DELETE FROM thing_text WHERE rowid = ?"
NEWEST_OF_THING = (
    f"SELECT {_M} FROM cells c JOIN trials r ON r.cell = c.id JOIN memories m ON m.id = r.memory_id "
    "WHERE c.thing = ? ORDER BY m.id DESC LIMIT ?"
)
INDEX_MARK = "SELECT last_id FROM index_mark"
INDEXED = "SELECT last_id, (SELECT coalesce(max(id), 0) FROM memories) FROM index_mark"
MOVE_MARK = "UPDATE index_mark SET last_id = ?"
IS_BEHIND = "SELECT 1 FROM memories WHERE id > (SELECT last_id FROM index_mark) LIMIT 1"
CHECK_TEXT = "INSERT INTO thing_text (thing_text) VALUES ('integrity-check')"
OPTIMIZE_TEXT = "INSERT INTO thing_text (thing_text) VALUES ('optimize')"

NEW_TAG = "INSERT INTO tags (name, n) VALUES (?, ?)"
TAG = "SELECT id, n FROM tags WHERE name = ?"
TAG_COUNT = "SELECT n FROM tags WHERE id = ?"
COUNT_TAG = "UPDATE tags SET n = n + ? WHERE id = ?"
DROP_TAG = "DELETE FROM tags WHERE id = ? AND n = 0"
LINK = "INSERT INTO memory_tags (tag_id, memory_id) VALUES (?, ?)"
UNLINK = "DELETE FROM memory_tags WHERE tag_id = ? AND memory_id = ?"
CHECKS = {
    "tags are miscounted": (
        "SELECT count(*) FROM tags WHERE n != (SELECT count(*) FROM memory_tags WHERE tag_id = tags.id)"
    ),
    "tags of memories don't lead to them": (
        "SELECT count(*) FROM memories m, json_each(m.tags) j WHERE m.id <= (SELECT last_id FROM index_mark) "
        "AND NOT EXISTS (SELECT 1 FROM tags g "
        "JOIN memory_tags t ON t.tag_id = g.id WHERE g.name = j.value AND t.memory_id = m.id)"
    ),
    "memories are not among the things, or are there before their time": (
        "SELECT count(*) FROM memories m WHERE (id <= (SELECT last_id FROM index_mark)) "
        "!= EXISTS (SELECT 1 FROM trials r WHERE r.memory_id = m.id)"
    ),
    "things have no text or no memory": (
        "SELECT count(*) FROM things t WHERE NOT EXISTS (SELECT 1 FROM thing_text x WHERE x.rowid = t.id) "
        "OR NOT EXISTS (SELECT 1 FROM cells c JOIN trials r ON r.cell = c.id WHERE c.thing = t.id)"
    ),
    "vectors are of no thing": "SELECT count(*) FROM vectors WHERE thing NOT IN (SELECT id FROM things)",
}
"""Queries that count each kind of damage; each gives 0 in a sound store."""

TOTALS = (
    "SELECT count(*), min(created_at), max(created_at), avg(salience) FROM memories "
    "WHERE ?1 IS NULL OR project = ?1"
)
COUNTS = "SELECT {column}, count(*) FROM memories WHERE ?1 IS NULL OR project = ?1 GROUP BY 1 ORDER BY 2 DESC, 1"
COMMON_TAGS = "SELECT name, n FROM tags ORDER BY n DESC, name LIMIT 20"
TAG_TOTAL = "SELECT count(*) FROM tags"
DUPLICATES = (
    "SELECT group_concat(id) FROM memories WHERE key IS NULL "
    "GROUP BY title, content, category, project HAVING count(*) > 1 ORDER BY min(id)"
)
START_SESSION = "INSERT INTO sessions (project, started_at) VALUES (?, ?)"
END_SESSION = "UPDATE sessions SET ended_at = ?, summary = coalesce(?, summary) WHERE id = ?"
SESSION = "SELECT project, started_at FROM sessions WHERE id = ?"

HOLD = "SELECT count(*) FROM thing_text WHERE thing_text MATCH ?"
HITS = "SELECT count(*) FROM (SELECT 1 FROM thing_text WHERE thing_text MATCH ? LIMIT ?)"
NAMED = """
    SELECT thing FROM cells WHERE task = ?1
    UNION SELECT c.thing FROM memories m JOIN trials r ON r.memory_id = m.id JOIN cells c ON c.id = r.cell
    WHERE m.key = ?1
    UNION SELECT c.thing FROM (SELECT id FROM tags WHERE name = ?1 AND n <= 20) g JOIN memory_tags t ON t.tag_id = g.id
    JOIN trials r ON r.memory_id = t.memory_id JOIN cells c ON c.id = r.cell
"""
HELD = "SELECT 1 FROM thing_text WHERE rowid = (SELECT id FROM things WHERE name = ?) AND thing_text MATCH ?"
NEAR = (
    "SELECT term, doc FROM thing_words WHERE term >= ? AND term < ? "
    "AND length(term) >= 4 AND term NOT GLOB '*[^a-z]*' AND ({parts})"
)
HOLDING = "SELECT about, content FROM thing_text WHERE thing_text MATCH ? ORDER BY rowid LIMIT 1"
LIKENESS = 'CREATE VIRTUAL TABLE thing_text USING fts5 (about, tokenize = "porter unicode61 remove_diacritics 2")'
LIKE = "INSERT INTO thing_text (rowid, about) VALUES (?, ?)"
MOST_ALIKE = (
    "SELECT rowid FROM thing_text WHERE thing_text MATCH ? ORDER BY bm25(thing_text), rowid"
)
LAST_THING = "SELECT coalesce(max(id), 0) FROM things"
MATCHES = (
    "SELECT rowid, bm25(thing_text, 4.0, 1.0) AS relevance FROM thing_text "
    "WHERE thing_text MATCH ? {narrowed} ORDER BY relevance, rowid LIMIT ?"
)
NEWEST_MATCHES = (
    "SELECT rowid FROM thing_text WHERE thing_text MATCH ? {narrowed} ORDER BY rowid DESC LIMIT ?"
)
OF_CELLS = "cells c CROSS JOIN trials r ON r.cell = c.id WHERE {of}{filters}"
OF_TAG = (
    "memory_tags g CROSS JOIN trials r ON r.memory_id = g.memory_id CROSS JOIN cells c ON c.id = r.cell "
    "WHERE {of} AND g.tag_id = ?{filters}"
)
FITS = "AND EXISTS (SELECT 1 FROM {trials})"
FITS_BY_TAG = "AND rowid IN (SELECT c.thing FROM {trials})"
IS_TAGGED = (
    " AND EXISTS (SELECT 1 FROM memory_tags o WHERE o.tag_id = ? AND o.memory_id = r.memory_id)"
)
TRIED = "SELECT c.thing, c.id, c.outcome, count(*), max(r.created_at), max(r.score) FROM {trials} GROUP BY c.id"
NEWEST_TRIAL = "SELECT max(r.memory_id) FROM {trials} AND r.created_at = ?"
BEST_TRIAL = "SELECT r.memory_id FROM {trials} AND r.score IS ? ORDER BY r.created_at DESC, r.memory_id DESC LIMIT 1"
UNINDEXED = f"SELECT {_M} FROM memories m WHERE m.id > (SELECT last_id FROM index_mark) {{filters}} ORDER BY m.id"
LESSONS = (
    f"SELECT {COLUMNS} FROM memories "
    "WHERE json_extract(metadata, '$.lesson_cause') = ?1 AND json_extract(metadata, '$.lesson_cause') IS NOT NULL "
    "AND id <= ?2 AND updated_at <= ?3 AND (json_extract(metadata, '$.problem_id') = ?4) = ?5 "
    "AND json_extract(metadata, '$.simulated') = ?6 ORDER BY id DESC LIMIT ?7"
)


def select(tags: int, filters: str, *, newest_first: bool) -> str:
    """A query for memories with all of several tags; the tag ids are the first parameters, the rarest first.

    The planner neither knows the counts nor reorders by them, so the order is laid down: one walk over the
    rarest tag, and a look-up for each other one. `limit` is the last parameter; -1 means none.
    """
    source = "memories m"
    conditions = ["1"]
    if tags:
        source = "memory_tags t CROSS JOIN memories m ON m.id = t.memory_id"
        others = (
            "EXISTS (SELECT 1 FROM memory_tags o WHERE o.tag_id = ? AND o.memory_id = t.memory_id)"
        )
        conditions = ["t.tag_id = ?", *[others] * (tags - 1)]
    order = "t.memory_id" if tags else "m.id"
    direction = "DESC" if newest_first else "ASC"
    return f"SELECT {_M} FROM {source} WHERE {' AND '.join(conditions)} {filters} ORDER BY {order} {direction} LIMIT ?"


BUSY_SECONDS = 60.0  # how long a writer waits for the others
# of a memory's content, and of all that happened to a thing, for full text
INDEXED_CHARACTERS = 8192


class StoreDown(KoderzError):
    """The memory store can't be opened, read or written at present."""

    exit_code = 4


class StoreDamaged(StoreDown):
    """The file is no database, or its contents contradict each other."""

    def __init__(self, where: object, why: str) -> None:
        super().__init__(
            f"the memory store {where} is damaged ({why}); set it up anew from the journals with: "
            "koderz sync --rebuild (the damaged file is kept beside it)"
        )


def connect(
    path: Path, *, create: bool = True, timeout: float = BUSY_SECONDS
) -> sqlite3.Connection:
    """Connects to the store and upgrades its schema. Raises StoreDown with advice on what to do.

    Every commit is durable when it returns (WAL, synchronous FULL), and every transaction that writes takes
    its lock when it begins: one that had only read before could not wait for it.
    """
    if not create and not path.exists():
        raise StoreDown(
            f"there is no memory store at {path}; the next run makes one, or: koderz sync --all"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreDown(
            f"the folder of the memory store {path} can't be made ({error.strerror})"
        ) from None
    with explained(path):
        connection = sqlite3.connect(
            path, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        try:
            version = _version(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA cache_size = -65536")  # KiB
            if version < len(MIGRATIONS):
                _switch_to_wal(connection, timeout)
                migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def transaction(
    connection: sqlite3.Connection, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE"
) -> Iterator[None]:
    """A transaction: all writes in the block are stored together or not at all; use "DEFERRED" for reading alone."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an error of SQLite into a StoreDown that says what to do."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a mistake of ours
        raise
    except sqlite3.Error as error:
        raise _explain(path, error) from error


def _explain(path: Path, error: sqlite3.Error) -> StoreDown:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreDown(
            f"the memory store {path} is locked by another process; try again once it has let go"
        )
    if code in (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
    ):
        return StoreDown(
            f"the memory store {path} can't be written ({error}); mend its rights, or name another with KODERZ_MEMORY"
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreDown(
            f"the disk that holds the memory store {path} is full; make room, then: koderz sync --all"
        )
    unreadable = any(words in str(error) for words in ("malformed", "Could not decode"))
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or unreadable:
        return StoreDamaged(path, str(error))
    return StoreDown(f"the memory store {path}: {error}")


def migrate(connection: sqlite3.Connection, to: int = len(MIGRATIONS)) -> None:
    """Upgrades the schema to a version, in all steps or none; another process may have done so meanwhile."""
    with transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for statements in MIGRATIONS[version:to]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(version, to)}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version; 0 for an empty file. Raises StoreDown for a file that is not ours, or newer."""
    # in one, or tables would be there whose id was read before they were
    with transaction(connection, "DEFERRED"):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreDown(
            f"{path} is a database of another program; name another file with KODERZ_MEMORY"
        )
    if version > len(MIGRATIONS):
        raise StoreDown(
            f"the memory store {path} was made by a newer koderz (schema {version}, this one knows {len(MIGRATIONS)}); "
            "update koderz, or name another file with KODERZ_MEMORY"
        )
    return int(version)


def _switch_to_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Switches the file to WAL. SQLite doesn't wait by itself if several processes create the store at once."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
