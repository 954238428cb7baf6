"""Keeps secrets out of everything that is made of a journal: sinks, exports, reports and the memory store.

The journal alone holds what was asked as it was asked, since a run is replayed from it. What is made of it outlives
it, is sent to servers, and is read by other people and programs.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
from msgspec import Struct
from msgspec.structs import replace

from tracker.credentials import Span, tokens
from tracker.records import Plan

R = TypeVar("R", bound=Struct)

REDACTED = "[redacted]"

_SECRET_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?)(_\d+)?$", re.IGNORECASE)
_LEAST_LENGTH = 6  # of a variable's value: a shorter one is more likely a word of the text
_PLACEHOLDER = re.compile(
    r"[A-Za-z]{1,7}|not?[-_ ]?(?:needed|required|key.*)|lm-studio|placeholder|simulated|sk-x+", re.IGNORECASE
)
"""Values that keys are given where none is needed."""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,9}-----|\Z)", re.DOTALL
)
_URL_CREDENTIALS = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://([^/\s@\"']{1,512})@", re.IGNORECASE)
_AUTHORIZATION = re.compile(
    r"""(?:\bauthorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|token|digest)\s+)?|\bbearer\s+)"""
    r"""([A-Za-z0-9+/=._~-]{8,})""",
    re.IGNORECASE,
)
_NAME = (
    r"[A-Za-z0-9_-]*(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase"
    r"|access[_-]?key|private[_-]?key|credentials?|token|(?-i:[A-Z0-9]_KEY))"
)
_ASSIGNED = re.compile(
    rf"""(?<![A-Za-z0-9_-])({_NAME})(["']?)([ \t]*[:=][ \t]*)(?:(["'])(.{{0,4096}}?)\4|([^\s"',;&)\]}}]+))""",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(rf"{_NAME}|authorization|cookie", re.IGNORECASE)
_TELLING = re.compile(
    r"(?:(?:api|access|private|secret|_)[_-]?key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization)"
    r"[\"']?[ \t]*[:=]|bearer\s"
)
"""What a text in lower case has to have for one of the patterns of names to match."""
_WORDS = ("key", "token", "secret", "passw", "passphrase", "credential", "authorization", "bearer")
_CODE = re.compile(r"[A-Za-z_][A-Za-z_.]*(?:[\[({].*)?|[\[({].*")  # a name, an attribute, the beginning of more
_CONSTANTS = frozenset({"None", "True", "False", "null", "true", "false", "..."})


class Scrubber:
    """Takes secrets out of texts: what looks like one, and what this environment holds as one.

    `variables` are names of variables that hold secrets beside those that are named so.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, variables: Iterable[str] = ()) -> None:
        named = {environ.get(name, "") for name in variables}
        named |= {value for name, value in environ.items() if _SECRET_VARIABLE.search(name)}
        values = {value for value in named if len(value) >= _LEAST_LENGTH and not _PLACEHOLDER.fullmatch(value)}
        forms = {
            form for value in values for form in (value, orjson.dumps(value).decode()[1:-1], quote(value, safe=""))
        }
        self._known = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text with `[redacted]` in place of each secret."""
        if len(text) < _LEAST_LENGTH:
            return text
        for value in self._known:
            if value in text:
                text = text.replace(value, REDACTED)
        for spans in (_private_keys, _user_parts, tokens, _named_values):
            text = _without(text, spans(text))
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with its texts scrubbed, and those of secret-like names left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self._named(name, item) for name, item in value.items()}
        return value

    def record(self, record: R) -> R:
        """A record of the journal with its texts scrubbed."""
        changed = {}
        for name in _texts_of(type(record)):
            value = getattr(record, name)
            if value and (scrubbed := self.value(value)) != value:
                changed[name] = scrubbed
        return replace(record, **changed) if changed else record

    def _named(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value and _is_word_of_secrets(name) and _SECRET_NAME.fullmatch(name):
            return REDACTED
        return self.value(value)


def scrubber_of(plan: Plan, environ: Mapping[str, str] = os.environ) -> Scrubber:
    """Of a run: it knows the variables that the run's settings name, such as `api_key_env`."""
    named = [str(value) for name, value in plan.config.items() if name.endswith("_env") and value]
    return Scrubber(environ, named)


_IDENTITIES = frozenset(
    {
        "kind",
        "time",
        "run_id",
        "experiment_id",
        "problem_id",
        "task_id",
        "tasks",
        "digest",
        "key",
        "solver",
        "solvers",
        "model",
        "answered_by",
    }
)


@functools.cache
def _texts_of(kind: type[Struct]) -> tuple[str, ...]:
    """The fields of a kind of record that may hold what somebody wrote."""
    hints = kind.__annotations__
    plain = {"int", "float", "bool", "int | None", "float | None", "dict[str, float]", "dict[str, float] | None"}
    return tuple(name for name in kind.__struct_fields__ if name not in _IDENTITIES and hints[name] not in plain)


def _without(text: str, spans: Iterable[Span]) -> str:
    pieces, at = [], 0
    for start, end in spans:
        if start >= at:
            pieces += [text[at:start], REDACTED]
        at = max(at, end)
    return "".join([*pieces, text[at:]]) if at else text


def _private_keys(text: str) -> Iterator[Span]:
    if "PRIVATE KEY" in text:
        yield from (match.span() for match in _PRIVATE_KEY.finditer(text))


def _user_parts(text: str) -> Iterator[Span]:
    if "@" in text and "://" in text:
        yield from (match.span(1) for match in _URL_CREDENTIALS.finditer(text))


def _is_word_of_secrets(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in (*_WORDS, "cookie"))


def _is_telling(text: str) -> bool:
    lowered = text.lower()
    for word in _WORDS:
        if word in lowered:
            return _TELLING.search(lowered) is not None
    return False


def _named_values(text: str) -> list[Span]:
    if not _is_telling(text):
        return []
    spans = [match.span(1) for match in _AUTHORIZATION.finditer(text)]
    spans += [match.span(5 if match[4] else 6) for match in _ASSIGNED.finditer(text) if _is_secret(match)]
    return sorted(spans)


def _is_secret(match: re.Match[str]) -> bool:
    """Whether an assigned value is more likely a secret than a word or a piece of code."""
    name, name_quote, sign, quote, quoted, bare = match.groups()
    value = quoted if quote else bare
    if REDACTED in value or value.lower() == name.lower():
        return False
    if not quote and (name_quote or "(" in bare or bare in _CONSTANTS):  # JSON's numbers and null; a call
        return False
    if not quote and sign[0] in " \t" and _CODE.fullmatch(bare):  # as in `password = given`
        return False
    if name.lower().endswith("token") and not name.isupper():
        return len(value) >= 16 or (len(value) >= 6 and any(map(str.isdigit, value)))
    return len(value) >= 4
