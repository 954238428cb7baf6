"""What the control plane knows, in one SQLite file: it outlives the server, and memory stays flat."""

from __future__ import annotations

import asyncio
import base64
import secrets
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS thing (
    id TEXT PRIMARY KEY, kind TEXT, name TEXT, parent TEXT, body BLOB, created REAL);
CREATE UNIQUE INDEX IF NOT EXISTS named ON thing (kind, parent, name) WHERE name != '';
CREATE TABLE IF NOT EXISTS entry (dict TEXT, key BLOB, value BLOB, PRIMARY KEY (dict, key));
CREATE TABLE IF NOT EXISTS input (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE, call TEXT, idx INTEGER, function TEXT, state TEXT,
    attempt INTEGER DEFAULT 0, body BLOB, container TEXT DEFAULT '', started REAL, finished INTEGER, output BLOB);
CREATE INDEX IF NOT EXISTS queue ON input (function, state, seq);
CREATE INDEX IF NOT EXISTS place ON input (call, idx);
CREATE INDEX IF NOT EXISTS outcome ON input (call, finished);
CREATE INDEX IF NOT EXISTS unfinished ON input (call, idx) WHERE state != 'done';
CREATE INDEX IF NOT EXISTS at_work ON input (container, state) WHERE state = 'running';
CREATE TABLE IF NOT EXISTS chunk (call TEXT, idx INTEGER, body BLOB, PRIMARY KEY (call, idx));
"""


@dataclass(frozen=True, slots=True)
class Thing:
    """An app, function, image, mount, secret, volume, dict, call or sandbox; `body` is what was asked, as sent."""

    id: str
    kind: str
    name: str
    parent: str
    body: bytes
    created: float


class Store:
    """Things by id and by name, and the tables that others keep in the same file (`sql`)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.sql = sqlite3.connect(folder / "state.db", check_same_thread=False, isolation_level=None)
        self.sql.execute("PRAGMA journal_mode=WAL")
        self.sql.execute("PRAGMA synchronous=OFF")  # it has to outlive the process, not the machine
        self.sql.executescript(_SCHEMA)

    def add(self, kind: str, prefix: str, *, name: str = "", parent: str = "", body: bytes = b"") -> Thing:
        thing = Thing(new_id(prefix), kind, name, parent, body, time.time())
        self.sql.execute(
            "INSERT INTO thing VALUES (?, ?, ?, ?, ?, ?)", (thing.id, kind, name, parent, body, thing.created)
        )
        return thing

    def find(self, thing_id: str) -> Thing | None:
        row = self.sql.execute("SELECT * FROM thing WHERE id = ?", (thing_id,)).fetchone()
        return Thing(*row) if row else None

    def named(self, kind: str, name: str, parent: str = "") -> Thing | None:
        query = "SELECT * FROM thing WHERE kind = ? AND parent = ? AND name = ?"
        row = self.sql.execute(query, (kind, parent, name)).fetchone()
        return Thing(*row) if row else None

    def all(self, kind: str, parent: str | None = None) -> Iterator[Thing]:
        query = "SELECT * FROM thing WHERE kind = ? AND (? IS NULL OR parent = ?) ORDER BY rowid"
        return (Thing(*row) for row in self.sql.execute(query, (kind, parent, parent)))

    def rewrite(self, thing_id: str, body: bytes) -> None:
        self.sql.execute("UPDATE thing SET body = ? WHERE id = ?", (body, thing_id))

    def rename(self, thing_id: str, name: str) -> None:
        self.sql.execute("UPDATE thing SET name = ? WHERE id = ?", (name, thing_id))

    def remove(self, thing_id: str) -> None:
        self.sql.execute("DELETE FROM thing WHERE id = ?", (thing_id,))

    def close(self) -> None:
        self.sql.close()


class Bells:
    """Wakes those who wait for something to change; keeps nothing of what nobody waits for."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def ring(self, key: str) -> None:
        for waiter in self._waiting.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, key: str, seconds: float) -> bool:
        """Whether it rang within so many seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(waiter)
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._forget(key, waiter)
        return True

    def _forget(self, key: str, waiter: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(key, set())
        waiting.discard(waiter)
        if not waiting:
            self._waiting.pop(key, None)


def new_id(prefix: str) -> str:
    """An id as Modal's are: a prefix that says the kind, and 22 letters and digits; 26 of sb2, a sandbox."""
    return f"{prefix.removesuffix('2')}-{secrets.token_hex(13 if prefix == 'sb2' else 11)}"


def token() -> str:
    """A token of the form of Modal's (a JWT) that never expires; nothing checks its signature."""
    head, claims = (base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b"{}", b'{"exp":4102444800}'))
    return f"{head}.{claims}."
