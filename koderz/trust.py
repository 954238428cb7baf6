"""What the user has said may run code or receive data, by the digest of the bytes that ask for it.

A koderz.toml and a run's plan can both come with somebody else's repository.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from koderz.errors import KoderzError


def require_trust(data: bytes, what: str, *, grant: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Passes if these bytes are trusted, or are so from now on. Otherwise a KoderzError that begins with `what`."""
    if grant:
        remember(data, environ)
    elif _digest(data) not in _trusted(_store(environ)):
        raise KoderzError(f"{what}. Read it; if it may, say so once with --trust-config (it holds until it changes)")


def remember(data: bytes, environ: Mapping[str, str] = os.environ) -> None:
    """Trusts these bytes from now on. Raises KoderzError where that can't be written down."""
    store = _store(environ)
    draft = store.with_suffix(f".{os.getpid()}")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(orjson.dumps([*_trusted(store), _digest(data)]))
        draft.replace(store)
    except OSError as error:
        raise KoderzError(f"{store} can't be written, so trust can't be remembered ({error.strerror})") from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _store(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "koderz" / "trusted.json"


def _trusted(store: Path) -> list[Any]:
    try:
        found = orjson.loads(store.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return []
    return found if isinstance(found, list) else []
