"""The label that a reply names, by one of its words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

_SAID = r"(?:answer\s+is|answer\s*:)[\s:*_`\"'(\[]*"
_OPEN, _CLOSE = r"(?:\(|\[|\*\*|__|`|\")\s*", r"\s*(?:\)|\]|\*\*|__|`|\")"


@dataclass(frozen=True)
class Labels:
    """Labels, and the words that mean each of them."""

    words: Mapping[str, tuple[str, ...]]  # by label
    texts: Mapping[str, str] = field(default_factory=dict)  # the whole option that a label stands for
    is_cased: bool = False  # whether `a` isn't A

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Labels:
        """The labels of a choice, such as A to E or 1 to 5."""
        return cls({label: (label,) for label in options}, options, is_cased=True)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.words)

    def read(self, reply: str) -> set[str]:
        """The labels that a reply names; several where it doesn't say which.

        They are looked for as the reply's only word, after "answer is" or "Answer:", in brackets or bold, then
        anywhere; at last an option's whole text is.
        """
        alone = reply.strip().strip("()[]{}*_`\"'.,:; \n")
        if label := self._label.get(self._folded(alone)):
            return {label}
        for pattern in self._patterns:
            if found := {self._label[self._folded(each)] for each in pattern.findall(reply)}:
                return found
        return self._by_text(reply)

    @cached_property
    def _label(self) -> dict[str, str]:
        return {self._folded(word): label for label, words in self.words.items() for word in words}

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        any_word = "|".join(map(_spaced, sorted(self._spelled, key=len, reverse=True)))
        word = rf"({any_word})(?![^\W_])"
        if self.is_cased:
            word = rf"(?-i:{word})"
        return tuple(
            re.compile(pattern, re.IGNORECASE)
            for pattern in (rf"{_SAID}{word}", rf"{_OPEN}{word}[.:]?{_CLOSE}", rf"(?<![^\W_]){word}")
        )

    @property
    def _spelled(self) -> set[str]:
        return {word for words in self.words.values() for word in words}

    def _folded(self, word: str) -> str:
        flat = " ".join(word.split())
        return flat if self.is_cased else flat.casefold()

    def _by_text(self, reply: str) -> set[str]:
        """The options whose text stands in the reply and isn't part of another one that does."""
        said = _words(reply)
        found = {label: words for label, text in self.texts.items() if (words := _words(text)) and words in said}
        return {
            label
            for label, words in found.items()
            if not any(words != others and words in others for others in found.values())
        }


def _spaced(word: str) -> str:
    return r"\s+".join(map(re.escape, word.split()))


def _words(text: str) -> str:
    """Its words in lower case, each between spaces; empty where it has none."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} " if words else ""
