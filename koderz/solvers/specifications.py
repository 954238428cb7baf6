"""Specifications that a frontier model wrote before, so that `--reuse-spec` needn't pay for them again."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from koderz.paths import cache_folder
from koderz.types import Message
from tracker.files import write_whole
from tracker.messages import text_of


def cached_spec(model: str, messages: tuple[Message, ...]) -> str | None:
    """What `model` wrote when it was asked this, or None."""
    try:
        return _path(model, messages).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def keep_spec(model: str, messages: tuple[Message, ...], text: str) -> None:
    """Puts a specification into the cache. A cache that can't be written is left alone: the journal has it."""
    path = _path(model, messages)
    with contextlib.suppress(OSError, UnicodeEncodeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [text.encode()], durable=False)


def _path(model: str, messages: tuple[Message, ...]) -> Path:
    asked = "\0".join([model, *(f"{m['role']}\0{text_of(m)}" for m in messages)])
    return cache_folder() / "specs" / f"{hashlib.sha256(asked.encode('utf-8', 'replace')).hexdigest()}.md"
