"""Removes secrets from everything made from a journal: sinks, exports, reports and the memory store.

The journal alone holds what was asked as it was asked, since a run is replayed from it. What is made of it outlives
it, is sent to servers, and is read by other people and programs.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from msgspec import Struct
from msgspec.structs import replace

from koderz_tracker.plain_text import REDACTED, RUN_LENGTH, WORDS, is_plain
from koderz_tracker.records import Plan

R = TypeVar("R", bound=Struct)

_SECRET_VARIABLE = re.compile(
    r"(?:API_?KEY|_KEY|TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?)(_\d+)?$", re.IGNORECASE
)
_SHORT, _REMEMBERED = 40, 10_000  # characters of a text that is remembered, and how many are
_LEAST_LENGTH = 6  # of a variable's value: a shorter one is more likely a word of the text
_LONGEST_WORD = 24  # letters of part of a path that is a word
_LEAST_CODED = 16  # of a value whose first half and base64 are looked for, too
_URL_SAFE = str.maketrans("+/", "-_")
KEY_VARIABLES = "key_variables"
"""The key of a plan's details whose value names variables that hold the keys of the models' providers."""

_USER_PART = re.compile(
    r"[a-z][a-z0-9+.-]{0,20}://([^/\s@:]{1,512})(?::([^/\s@]{1,512}))?@", re.IGNORECASE
)
_ADDRESS = re.compile(
    r"([a-z][a-z0-9+.-]*://)?(?:([^/?#]*)@)?([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#(.*))?",
    re.IGNORECASE | re.DOTALL,
)
# letters and digits in a row, of which keys and identifiers are made
_RUN = re.compile(r"[A-Za-z0-9]{12,}")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"[A-Za-z]{1,7}|[0-9]{1,9}|not?[-_ ]?(?:needed|required|key.*)|lm-studio|placeholder|simulated|sk-x+",
    re.IGNORECASE,
)
"""Values given as a key where none is needed."""


class Scrubber:
    """Removes secrets from texts: text that looks like one, and values of this environment's secret variables.

    `variables` are names of variables that hold secrets beside those that are named so.
    """

    def __init__(
        self, environ: Mapping[str, str] = os.environ, variables: Iterable[str] = ()
    ) -> None:
        named = {environ.get(name, "") for name in variables}
        named |= {value for name, value in environ.items() if is_secret_variable(name)}
        named |= {
            part
            for value in environ.values()
            for part in (*_passwords_in(value), *_secrets_of_path(value))
        }
        values = {
            value
            for value in named
            if len(value) >= _LEAST_LENGTH and not _PLACEHOLDER.fullmatch(value)
        }
        self._known = sorted(
            {form for value in values for form in _forms(value)}, key=len, reverse=True
        )
        self._words: set[str] = set()  # short texts without secrets: the same few in every record

    def text(self, text: str) -> str:
        """The text with `[redacted]` in place of each secret."""
        if len(text) < _LEAST_LENGTH or text in self._words:
            return text
        scrubbed = text
        for value in self._known:
            if value in scrubbed:
                scrubbed = scrubbed.replace(value, REDACTED)
        if not is_plain(scrubbed):
            scrubbed = _without_credentials(scrubbed)
        if len(text) <= _SHORT and scrubbed == text and len(self._words) < _REMEMBERED:
            self._words.add(text)
        return scrubbed

    def address(self, address: str) -> str:
        """The address with `[redacted]` in place of every part that could be a secret.

        That is who asks, the values of a query, a fragment, and each segment of the path that `text` would change, or
        that may be drawn at random. Any other address is returned as it is.
        """
        scheme, user, host, path, query, fragment = _parts_of(address)
        segments = [
            REDACTED if self._is_secret(segment) else segment for segment in path.split("/")
        ]
        pairs = [
            REDACTED if not name else f"{name}{REDACTED}"
            for name in re.findall(r"([^&]*=|)[^&]+", query or "")
        ]
        return "".join((
            scheme or "",
            f"{REDACTED}@" if user is not None else "",
            self.text(host),
            "/".join(segments),
            "" if query is None else f"?{'&'.join(pairs)}",
            "" if fragment is None else f"#{REDACTED}",
        ))  # fmt: skip

    def _is_secret(self, segment: str) -> bool:
        from urllib.parse import unquote

        plain = unquote(segment)
        return _may_be_drawn(plain) or self.text(plain) != plain

    def value(self, value: Any) -> Any:
        """A JSON value with its texts scrubbed and the values of secret names left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {
                self.text(name): REDACTED
                if isinstance(item, str) and item and _is_telling(name)
                else self.value(item)
                for name, item in value.items()
            }
        if isinstance(value, Struct):
            return self.record(value)
        return value

    def record(self, record: R) -> R:
        """A journal record with its texts scrubbed."""
        changed = {}
        for name in _texts_of(type(record)):
            value = getattr(record, name)
            if value and (scrubbed := self.value(value)) != value:
                changed[name] = scrubbed
        return replace(record, **changed) if changed else record


def is_secret_variable(name: str) -> bool:
    """Whether a variable's name says that it holds a secret."""
    return _SECRET_VARIABLE.search(name) is not None


def shown_address(address: str, environ: Mapping[str, str] = os.environ) -> str:
    """An address in the form in which it may be shown and recorded, see `Scrubber.address`."""
    return Scrubber(environ).address(address)


def secrets_of(address: str) -> list[str]:
    """The segments of an address's path that could be secrets, as written and decoded."""
    from urllib.parse import unquote

    scrubber = Scrubber({})
    found = [
        part
        for part in _parts_of(address)[3].split("/")
        if scrubber.address(f"/{part}") != f"/{part}"
    ]
    return [form for part in found for form in dict.fromkeys((part, unquote(part)))]


def fits(address: str, recorded: str) -> bool:
    """Whether `Scrubber.address` may have made `recorded` from this whole address."""
    pattern = re.escape(recorded.strip().rstrip("/")).replace(re.escape(REDACTED), "[^/]+")
    return (
        REDACTED not in address and re.fullmatch(pattern, address.strip().rstrip("/")) is not None
    )


def scrubber_of(plan: Plan, environ: Mapping[str, str] = os.environ) -> Scrubber:
    """The scrubber of a run: it knows the variables of `secret_variables`.

    And what addresses in the settings hold that could be a secret, which earlier versions recorded.
    """
    addresses = {
        name: value for name, value in plan.config.items() if name.endswith("_url") and value
    }
    return Scrubber({**environ, **addresses}, secret_variables(plan))


def secret_variables(plan: Plan) -> list[str]:
    """Variables that hold a run's secrets however they are named: by its settings, or by its models' providers."""
    named = [str(value) for name, value in plan.config.items() if name.endswith("_env") and value]
    headers = [str(each).partition("=$")[2] for each in plan.config.get("extra_headers") or ()]
    return [*named, *filter(None, headers), *plan.basis.key_variables]


_IDENTITIES = frozenset({
    "kind", "time", "run_id", "experiment_id", "problem_id", "task_id", "tasks", "digest", "key", "solver", "arm",
    "cells", "blob", "model", "models", "answered_by",
})  # fmt: skip


@functools.cache
def _texts_of(kind: type[Struct]) -> tuple[str, ...]:
    """The fields of a kind of record that may hold text written by others."""
    hints = {
        name: hint
        for base in kind.__mro__
        for name, hint in getattr(base, "__annotations__", {}).items()
    }
    plain = {
        "Whole",
        "float",
        "bool",
        "Whole | None",
        "float | None",
        "dict[str, float]",
        "dict[str, float] | None",
    }
    return tuple(
        name
        for name in kind.__struct_fields__
        if name not in _IDENTITIES and hints[name] not in plain
    )


def _passwords_in(value: str) -> Iterable[str]:
    """The passwords of an address, such as that of a proxy, and a user name that is a token."""
    from urllib.parse import unquote

    return [
        unquote(part)
        for found in _USER_PART.finditer(value)
        for part in (found[2] or found[1], found[2] or "")
    ]


def _secrets_of_path(value: str) -> Iterable[str]:
    """The possible secrets in the path of a variable's value, if it is one address."""
    return secrets_of(value) if "://" in value and not re.search(r"\s|://.*://", value) else ()


def _parts_of(address: str) -> Sequence[Any]:
    """Scheme, user, host, path, query and fragment with their separators; None for a missing part."""
    found = _ADDRESS.fullmatch(address)
    assert found, "any text matches"
    return found.groups()


def _may_be_drawn(segment: str) -> bool:
    """Whether a path segment may be random text; names of models and versions of an API are not."""
    if _UUID.search(segment):
        return True
    for run in _RUN.findall(segment):
        is_mixed = any(map(str.isdigit, run)) and any(map(str.isalpha, run))
        if len(run) >= _LONGEST_WORD or (
            is_mixed and (len(run) >= RUN_LENGTH or len(run) < 2 * len(_WORD.findall(run)))
        ):
            return True
    return False


def _forms(value: str) -> Iterable[str]:
    """The forms in which a secret may occur: as it is, in JSON, in an address, in base64, and its first half."""
    from base64 import b64encode
    from urllib.parse import quote

    yield from (value, orjson.dumps(value).decode()[1:-1], quote(value, safe=""))
    if len(value) < _LEAST_CODED:
        return
    yield value[: len(value) // 2]
    data = value.encode("utf-8", "surrogateescape")
    # bytes in front of it: those that its first letters share with them are left out
    for before in range(3):
        whole = (before + len(data)) * 8 // 6
        coded = b64encode(bytes(before) + data).decode()[-(-before * 8 // 6) : whole]
        yield from (coded, coded.translate(_URL_SAFE))


def _without_credentials(text: str) -> str:
    # its patterns take longer to compile than most commands to start
    from koderz_tracker.credentials import FINDERS

    for find in FINDERS:
        if spans := find(text):
            pieces: list[str] = []
            at = 0
            for start, end in spans:
                if start >= at:
                    pieces += [text[at:start], REDACTED]
                at = max(at, end)
            text = "".join([*pieces, text[at:]])
    return text


@functools.lru_cache(maxsize=1024)
def _is_telling(name: str) -> bool:
    """Whether a name says that its value is a secret."""
    if not any(word in name.lower() for word in WORDS):
        return False
    from koderz_tracker.credentials import SECRET_NAME

    return SECRET_NAME.fullmatch(name) is not None
