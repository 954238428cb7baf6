"""Keeps secrets out of the memory store: it outlives runs, is exported, and is read by other programs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import orjson

REDACTED = "[redacted]"

_SECRET_VARIABLE = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(_\d+)?$")
_LEAST_LENGTH = 6  # of a variable's value: a shorter one is more likely a word of the text

# A model may write anything, so a pattern that begins with a repetition begins only where its characters do:
# else a megabyte of them is gone through once for each.
_SHAPES = re.compile(
    r"""
      \bsk-[A-Za-z0-9_-]{8,}                                  # OpenAI, Anthropic, OpenRouter
    | \b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,}
    | \bglpat-[A-Za-z0-9_-]{16,}
    | \bhf_[A-Za-z0-9]{20,} | \bgsk_[A-Za-z0-9]{20,} | \bnpm_[A-Za-z0-9]{30,} | \br8_[A-Za-z0-9]{30,}
    | \bpypi-[A-Za-z0-9_-]{40,}
    | \bxox[abeprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    | \bAIza[0-9A-Za-z_-]{30,}
    | \ba[ks]-[A-Za-z0-9]{20,}\b                              # Modal
    | (?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}   # a JSON web token
    | -----BEGIN\ [A-Z\ ]{0,40}PRIVATE\ KEY-----.*?(?:-----END\ [A-Z\ ]{0,40}PRIVATE\ KEY-----|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_AUTHORIZATION = re.compile(
    r"""(\bauthorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|token|digest)\s+)?|\bbearer\s+)"""
    r"""([A-Za-z0-9+/=._~-]{8,})""",
    re.IGNORECASE,
)
_URL_CREDENTIALS = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://)[^/\s@\"']+@", re.IGNORECASE)
_NAME = (
    r"[A-Za-z0-9_-]*(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase"
    r"|access[_-]?key|private[_-]?key|client[_-]?secret|credentials?|auth[_-]?token|access[_-]?token|token)"
)
_ASSIGNED = re.compile(
    rf"""((?<![A-Za-z0-9_-]){_NAME})(["']?)(\s*[:=]\s*)(?:(["'])(.*?)\4|([^\s"',;&)\]}}]+))""", re.IGNORECASE
)
_SECRET_NAME = re.compile(rf"{_NAME}|authorization|cookie", re.IGNORECASE)
_NAMES = ("key", "token", "secret", "passw", "passphrase", "credential", "bearer", "authorization", "cookie")
"""All but the shapes and the addresses match only a text that has one of these in lower case, as do private keys."""
_PREFIXES = (
    re.compile(r"-(?:(?<=[as]k-)|(?<=as-)|(?<=glpat-)|(?<=pypi-)|(?<=xox.-))"),
    re.compile(r"_(?:(?<=gh[oprsu]_)|(?<=github_pat_)|(?<=hf_)|(?<=gsk_)|(?<=npm_)|(?<=r8_))"),
    re.compile(r"I(?:(?<=AKI)A|(?<=ASI)A|(?<=AI)za)"),
    re.compile(r"J(?<=eyJ)"),
)
"""The other shapes match only a text in which one of these does. Each looks for its rarest character first, which is
an order of magnitude faster than to look for every beginning by itself."""


class Scrubber:
    """Takes secrets out of texts: what looks like one, and what this environment holds as one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        values = {
            value for name, value in environ.items() if _SECRET_VARIABLE.search(name) and len(value) >= _LEAST_LENGTH
        }
        self._known = sorted(values, key=len, reverse=True)
        self._escaped = [orjson.dumps(value).decode()[1:-1] for value in self._known]

    def is_clean(self, text: str) -> bool:
        """Whether a text, or what it says as JSON, holds no secret for sure: most are, and need no second look."""
        if _is_suspect(text) or ("@" in text and "://" in text):
            return False
        return not any(value in text for value in (*self._known, *self._escaped))

    def text(self, text: str) -> str:
        """The text with `[redacted]` in place of each secret."""
        if len(text) < _LEAST_LENGTH:
            return text
        for value in self._known:
            if value in text:
                text = text.replace(value, REDACTED)
        if "@" in text and "://" in text:
            text = _URL_CREDENTIALS.sub(rf"\1{REDACTED}@", text)
        if _is_suspect(text):
            text = _SHAPES.sub(REDACTED, text)
            text = _AUTHORIZATION.sub(rf"\1{REDACTED}", text)
            text = _ASSIGNED.sub(_without_value, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with its texts scrubbed, and those of secret-like names left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self._named(name, item) for name, item in value.items()}
        return value

    def _named(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value and _is_suspect(name) and _SECRET_NAME.fullmatch(name):
            return REDACTED
        return self.value(value)


def _is_suspect(text: str) -> bool:
    """Whether any of the patterns but that of addresses might match. Most texts are done with here, at once."""
    for prefix in _PREFIXES:
        if prefix.search(text):
            return True
    lowered = text.lower().replace("tokens", "")  # which are counted, not kept
    for name in _NAMES:  # noqa: SIM110 a generator would take four times as long
        if name in lowered:
            return True
    return False


def _without_value(match: re.Match[str]) -> str:
    name, name_quote, sign, quote, quoted, bare = match.groups()
    value = quoted if quote else bare
    if value == REDACTED or not _is_secret(name, name_quote, quote, value):
        return match[0]
    return f"{name}{name_quote}{sign}{quote or ''}{REDACTED}{quote or ''}"


def _is_secret(name: str, name_quote: str, quote: str | None, value: str) -> bool:
    """Whether an assigned value is more likely a secret than a word or a piece of code."""
    if quote:
        return len(value) >= 4
    if name_quote or "(" in value or REDACTED in value:  # JSON's numbers and null; a call
        return False
    if name.lower().endswith("token") and not name.isupper():
        return len(value) >= 16 or (len(value) >= 6 and any(char.isdigit() for char in value))
    return len(value) >= 4
