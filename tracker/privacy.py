"""Encryption of private texts in a run's journal; everything made from the journal shows their digests instead.

They are data that a public page would spoil, such as questions of a benchmark that models are not to be trained on. A
replay needs them, and opens them with the key; nothing else does. They are encrypted as such benchmarks encrypt their
own rows: by XOR with a key, which keeps them from being found, not from being broken.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson
from msgspec.structs import replace

from koderz_tracker.blobs import with_texts
from koderz_tracker.errors import KoderzError
from koderz_tracker.records import Blob, Call, Experiment, Fault, Finished, Once, Plan, Record, Text

_NAME = re.compile(r"[a-z][a-z_]{0,30}")
_CLEAR = frozenset({"container", "digest", "tokenizer", "generator", "type"})
"""Names of fields whose texts koderz itself wrote; any other text in a value is encrypted."""

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_STATUS = re.compile(r"\d{3}\b")


def xored(data: bytes, key: bytes) -> bytes:
    """The data encrypted or decrypted: each byte XORed with the next byte of the repeated key."""
    size = len(data)
    repeated = (key * (size // len(key) + 1))[:size]
    return (int.from_bytes(data) ^ int.from_bytes(repeated)).to_bytes(size)


def marker(digest: str) -> str:
    """The marker shown in place of a private text."""
    return str(Blob(private=digest))


@dataclass(frozen=True, slots=True)
class Privacy:
    """Encrypts and decrypts the private texts of a run's records."""

    key: bytes

    def sealed(self, record: Record, plan: Plan) -> Record:
        """The record with each private text encrypted, or replaced by its digest if no replay needs it."""
        if isinstance(record, Call):
            messages = [
                {**message, "content": self._value(message.get("content"))}
                if message.keys() <= {"role", "content"}
                else {"role": message["role"], "content": self._value(dict(message))}
                for message in record.messages
            ]
            record = replace(record, messages=messages, tool_calls=self._value(record.tool_calls))
        elif isinstance(record, Once):
            return replace(record, value=self._value(record.value))
        elif isinstance(record, Fault | Finished):
            return replace(record, reason=public_reason(record.reason))
        elif isinstance(record, Experiment) and record.note and plan.arm(record.arm).source:
            return replace(record, note=marker(_digest(record.note.encode())))
        return with_texts(record, lambda _, text: self._text(text))

    def opened(self, record: Record) -> Record:
        """The record with its texts decrypted for a replay. Raises KoderzError if the key is another one."""
        if isinstance(record, Once):
            return replace(record, value=self._open_value(record.value))
        if isinstance(record, Call):
            record = replace(record, tool_calls=self._open_value(record.tool_calls))
        return with_texts(record, lambda _, text: self._open(text))

    def _text(self, text: Text) -> Text:
        if isinstance(text, str):
            data = text.encode("utf-8", "surrogatepass")
            return Blob(private=_digest(data), data=_coded(xored(data, self.key)))
        data = base64.b64decode(text.data)
        return Blob(private=text.blob, binary=True, data=_coded(xored(data, self.key)))

    def _open(self, text: Text) -> Text:
        if isinstance(text, str) or not text.private:
            return text
        data = self._decrypted(text.private, text.data)
        if text.binary:
            return Blob(text.private, len(data), True, _coded(data))
        return data.decode("utf-8", "surrogatepass")

    def _value(self, value: Any) -> Any:
        """A JSON value with its texts encrypted; names of fields stay readable if code chose them."""
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]
        if isinstance(value, Mapping) and all(map(_NAME.fullmatch, value)):
            if is_reference(value):
                return value
            return {
                name: item if _is_clear(name, item) else self._value(item)
                for name, item in value.items()
            }
        if not isinstance(value, str | Mapping) or not value:
            return value
        data = orjson.dumps(value)
        return {"private": _digest(data), "data": _coded(xored(data, self.key))}

    def _open_value(self, value: Any) -> Any:
        return _replaced(
            value,
            lambda private: orjson.loads(self._decrypted(private["private"], private["data"])),
        )

    def _decrypted(self, digest: str, coded: str) -> bytes:
        data = xored(base64.b64decode(coded), self.key)
        if _digest(data) != digest:
            raise KoderzError(
                "what the journal holds of private texts was encrypted with another key than this one"
            )
        return data


def is_private(value: object) -> bool:
    """Whether a JSON value stands for a private text."""
    return (
        isinstance(value, Mapping)
        and value.keys() == {"private", "data"}
        and isinstance(value["private"], str)
    )


def is_reference(value: Mapping[str, Any]) -> bool:
    """Whether a part of a message names a stored text instead of holding it."""
    return value.get("type") == "reference"


def shown(value: Any) -> Any:
    """A JSON value with markers in place of its private texts."""
    return _replaced(value, lambda private: marker(private["private"]))


def _replaced(value: Any, made_of: Callable[[Mapping[str, str]], Any]) -> Any:
    """A JSON value with `made_of(reference)` in place of each reference to a private text."""
    if is_private(value):
        return made_of(value)
    if isinstance(value, list | tuple):
        return [_replaced(item, made_of) for item in value]
    if isinstance(value, Mapping):
        return {name: _replaced(item, made_of) for name, item in value.items()}
    return value


def public_reason(reason: str) -> str:
    """The part of a failure's reason that koderz wrote itself; quotations are replaced by their digests."""
    own, *rest = _QUOTED.sub("'…'", reason).split(": ")
    while rest and _STATUS.match(rest[0]) and len(rest[0]) == 3:
        own += f": {rest.pop(0)}"
    return f"{own}: {marker(_digest(reason.encode('utf-8', 'surrogatepass')))}" if rest else own


def _is_clear(name: str, value: object) -> bool:
    return (
        name in _CLEAR
        and isinstance(value, str)
        and re.fullmatch(r"[\w./-]{1,80}", value) is not None
    )


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
