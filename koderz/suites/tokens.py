"""How long a text is: tokens of a named tokenizer, and lengths as people write them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from koderz.errors import KoderzError, Unreachable
from koderz.settings.installation import extra_command

CHARS_A_TOKEN = 4
MILLION = 1 << 20


class Tokenizer(Protocol):
    """Counts tokens."""

    @property
    def name(self) -> str:
        """As every length says it."""

    @property
    def digest(self) -> str:
        """Changes with what it counts."""

    def count(self, text: str) -> int:
        """How many tokens the text has."""


class Characters:
    """A quarter of the characters, rounded up: no tokenizer of any model, but the same everywhere."""

    name = digest = "chars/4"

    def count(self, text: str) -> int:
        return -(-len(text) // CHARS_A_TOKEN)


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A `tokenizer.json` of Hugging Face's tokenizers."""

    name: str
    digest: str
    tokenizer: Any

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def load_tokenizer(name: str) -> Tokenizer:
    """`chars/4`, or a file. Raises KoderzError for one that can't be read, Unreachable where the extra is missing."""
    if name == Characters.name:
        return Characters()
    path = Path(name)
    if not path.is_file():
        raise KoderzError(
            f"--tokenizer {name}: there is no such file; name a tokenizer.json, or chars/4"
        )
    try:
        from tokenizers import Tokenizer as Loaded  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise Unreachable(
            f"--tokenizer FILE needs tokenizers; run: {extra_command('data')}"
        ) from None
    data = path.read_bytes()
    try:
        loaded = Loaded.from_str(data.decode())
    except Exception as error:  # noqa: BLE001 the library raises Exception itself
        raise KoderzError(f"--tokenizer {name}: not a tokenizer.json: {str(error)[:200]}") from None
    return TokenizerFile(path.name, hashlib.sha256(data).hexdigest()[:16], loaded)


def read_length(word: str) -> int:
    """`4096`, or a power of two as `128K` and `1M`. Raises ValueError for anything else."""
    unit = {"K": 1 << 10, "M": MILLION}.get(word[-1:].upper())
    digits = word[:-1] if unit else word
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise ValueError(word)
    return int(digits) * (unit or 1)


def wrong_lengths(words: Iterable[str]) -> str:
    """Error in lengths as people write them, or an empty text."""
    try:
        fine = all(1 <= read_length(word) <= 1 << 30 for word in words)
    except ValueError:
        fine = False
    return "" if fine else "a length is a number of tokens, such as 4096, 128K or 1M"
