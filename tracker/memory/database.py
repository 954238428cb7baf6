"""The store's SQLite file: opening it, its settings, schema and transactions, and its errors in plain words."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from koderz_tracker.errors import KoderzError
from koderz_tracker.memory.sql import APPLICATION_ID, MIGRATIONS

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
