"""Files for texts that are too large for a journal line, and for bytes."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from koderz_tracker.errors import JournalError, StorageError
from koderz_tracker.files import open_own, pieces, refuse_links, whole_file, write_whole
from koderz_tracker.records import Attempt, Blob, Call, Once, Record, Text

BLOB_BYTES = 1 << 20  # above this, a text lies in blobs/
MOST_BYTES = 256 << 20  # of one text

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[0-9a-f]{64}\.gz")

_TEXTS = {
    "message": ("content",),
    "call": ("reply", "text", "reasoning", "body"),
    "attempt": ("program", "feedback", "detail"),
    "reward": ("reply", "program"),
}
"""The fields of each kind of record that may be moved to a blob; other fields stay in the line, however long."""


def spill(record: Record, folder: Path) -> Record:
    """A copy of the record in which each text above 1 MB is a Blob, stored durably under `folder/blobs`."""
    if isinstance(record, Once):
        stored = _store(orjson.dumps(record.value).decode(), folder)
        return record if isinstance(stored, str) else replace(record, value=stored, in_blob=True)
    return with_texts(record, lambda _, text: _spilled(text, folder))


def with_texts(record: Record, change: Callable[[str, Text], Text | None]) -> Record:
    """A copy of the record with `change(field name, text)` in place of each text and artifact."""
    texts = {name: getattr(record, name) for name in _TEXTS.get(record.kind, ())}
    changed: dict[str, Any] = {name: change(name, text) for name, text in texts.items() if text}
    if isinstance(record, Attempt) and record.artifacts:
        changed["artifacts"] = {
            name: change("artifacts", text) for name, text in record.artifacts.items()
        }
    if isinstance(record, Call) and record.items:
        items = (
            record.items if isinstance(record.items, Blob) else orjson.dumps(record.items).decode()
        )
        new = change("items", items)
        if new is not items:
            changed["items"] = orjson.loads(new) if isinstance(new, str) else new
    changed = {name: new for name, new in changed.items() if new is not texts.get(name)}
    return replace(record, **changed) if changed else record


def _spilled(text: Text, folder: Path) -> Text:
    if isinstance(text, str):
        return _store(text, folder)
    if not text.data or (text.private and len(text.data) <= BLOB_BYTES):
        return text
    stored = _store_data(base64.b64decode(text.data), folder, binary=text.binary)
    return replace(stored, private=text.private)


def read_text(text: Text, folder: Path) -> str:
    """A text as a string, read from `folder/blobs` if it is a Blob; for a private text, its marker.

    Raises JournalError if it is gone or another one. No more than its size is unpacked, and at most 256 MB.
    """
    if isinstance(text, str) or text.private:
        return str(text)
    return read_data(text, folder).decode("utf-8", "replace")


def read_data(blob: Blob, folder: Path) -> bytes:
    """The bytes that a blob stands for. Raises JournalError if they are gone or others."""
    if not _DIGEST.fullmatch(blob.blob) or not 0 <= blob.bytes <= MOST_BYTES:
        raise JournalError(
            f"{folder}: {blob.blob[:64]!r} of {blob.bytes} bytes names no text in blobs/"
        )
    path = _path(folder, blob.blob)
    try:
        with open_own(path, 3) as packed, gzip.open(packed) as file:
            data = file.read(blob.bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(
            f"{path}: the text {blob.blob[:12]}… is gone from blobs/ ({error})"
        ) from None
    if hashlib.sha256(data).hexdigest() != blob.blob:
        raise JournalError(
            f"{path}: the text {blob.blob[:12]}… in blobs/ isn't the one that was put there"
        )
    return data


def fetched(record: Record, folder: Path) -> Record:
    """A copy of the record with values, artifacts and private texts read back from `folder/blobs`.

    Other texts are fetched by `read_text`.
    """
    if not isinstance(record, Once):
        return with_texts(record, lambda name, text: _inline(name, text, folder))
    if not record.in_blob:
        return record
    try:
        value = orjson.loads(read_text(msgspec.convert(record.value, Blob), folder))
    except (msgspec.ValidationError, orjson.JSONDecodeError) as error:
        raise JournalError(
            f"{folder}: the value of {record.name!r} can't be read: {error}"
        ) from None
    return replace(record, value=value, in_blob=False)


def _inline(name: str, text: Text, folder: Path) -> Text:
    if isinstance(text, str) or text.data:
        return text
    if text.binary or text.private:
        return replace(text, data=base64.b64encode(read_data(text, folder)).decode())
    return read_text(text, folder) if name in ("artifacts", "items") else text


def whole(record: Record, folder: Path) -> Record:
    """A copy of the record with every text and value inline, except bytes. Raises JournalError if one is gone."""
    if isinstance(record, Once):
        return fetched(record, folder)
    return with_texts(
        record,
        lambda _, text: text if isinstance(text, str) or text.binary else read_text(text, folder),
    )


def _store(text: str, folder: Path) -> Text:
    if len(text) <= BLOB_BYTES // 4:
        return text
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= BLOB_BYTES else _store_data(data, folder)


def _store_data(data: bytes, folder: Path, *, binary: bool = False) -> Blob:
    if len(data) > MOST_BYTES:
        raise JournalError(
            f"a text of {len(data):,} bytes can't be recorded; the most is {MOST_BYTES:,}"
        )
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data), binary)
    path = _path(folder, blob.blob)
    with contextlib.suppress(JournalError):
        if path.exists():
            read_data(blob, folder)
            return blob
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, [gzip.compress(data, compresslevel=6, mtime=0)])
    except OSError as error:
        raise StorageError(f"{path} can't be written ({error.strerror})") from None
    return blob


def _path(folder: Path, digest: str) -> Path:
    return folder / "blobs" / f"{digest}.gz"


def copy_blobs(folder: Path, to: Path) -> None:
    """Copies the texts of another run's folder. They have to be there before the lines that name them.

    Nothing else is copied from that folder, and no link is followed.
    """
    blobs = folder / "blobs"
    refuse_links([blobs])
    for path in blobs.iterdir() if blobs.is_dir() else ():
        target = to / "blobs" / path.name
        if (
            _FILE.fullmatch(path.name)
            and path.is_file()
            and not path.is_symlink()
            and not target.exists()
        ):
            target.parent.mkdir(exist_ok=True)
            copy_file(path, target, path.stat().st_size)


def copy_file(source: Path, target: Path, size: int) -> None:
    """Copies the first `size` bytes of a file durably; the target appears whole or not at all."""
    with whole_file(target) as file:
        for data in pieces(source, size):
            size -= file.write(data)
        if size:
            raise JournalError(f"{source} became shorter while it was read")
