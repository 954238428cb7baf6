"""Texts that are too large for a journal line."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import zlib
from pathlib import Path

import orjson
from msgspec.structs import replace

from tracker.errors import JournalError, StorageError
from tracker.records import Blob, Once, Record, Text

BLOB_BYTES = 1 << 20  # above this, a text lies in blobs/

_TEXTS = {
    "message": ("content",),
    "call": ("reply", "text", "reasoning"),
    "attempt": ("program", "feedback", "detail"),
}
"""The fields that may lie in a blob; all others stay in their line, however long."""


def spill(record: Record, folder: Path) -> Record:
    """The record with each text above 1 MB replaced by a Blob, its file durable under `folder/blobs`."""
    if isinstance(record, Once):
        return _spill_value(record, folder)
    large = {
        name: _store(value, folder)
        for name in _TEXTS.get(record.kind, ())
        if isinstance(value := getattr(record, name), str) and len(value) > BLOB_BYTES // 4
    }
    return replace(record, **large) if large else record


def read_text(text: Text, folder: Path) -> str:
    """The text itself, fetched from `folder/blobs` where it lies there. Raises JournalError if it is gone."""
    if isinstance(text, str):
        return text
    try:
        with gzip.open(_path(folder, text.blob)) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(f"{folder}: the text {text.blob[:12]}… is gone from blobs/ ({error})") from None
    if hashlib.sha256(data).hexdigest() != text.blob:
        raise JournalError(f"{folder}: the text {text.blob[:12]}… in blobs/ isn't the one that was put there")
    return data.decode("utf-8", "replace")


def fetched(record: Record, folder: Path) -> Record:
    """The record with a value that lies in `folder/blobs` put back; texts are fetched by `read_text`."""
    if not isinstance(record, Once) or not record.in_blob:
        return record
    value = orjson.loads(read_text(Blob(record.value["blob"], record.value["bytes"]), folder))
    return replace(record, value=value, in_blob=False)


def _spill_value(once: Once, folder: Path) -> Once:
    text = orjson.dumps(once.value).decode()
    if len(text) <= BLOB_BYTES // 4:
        return once
    stored = _store(text, folder)
    return once if isinstance(stored, str) else replace(once, value=stored, in_blob=True)


def _store(text: str, folder: Path) -> Text:
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= BLOB_BYTES:
        return text
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
    path = _path(folder, blob.blob)
    if path.exists():
        return blob
    write_durably(path, gzip.compress(data, compresslevel=6, mtime=0))
    return blob


def _path(folder: Path, digest: str) -> Path:
    return folder / "blobs" / f"{digest}.gz"


def sync_folder(folder: Path) -> None:
    """Makes durable which files a folder holds."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all: under another name, synced, then renamed.

    Raises StorageError where the disk refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StorageError(f"{path} can't be written ({error.strerror})") from None
