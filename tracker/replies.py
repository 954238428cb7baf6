"""Replies of which figures tell: whose answer can't be read, that were cut off, or that ended by an unknown word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MOST_TRUNCATED = 2.0  # per cent
_MOST_ENDS = 5  # words by which replies ended


@dataclass(frozen=True, slots=True)
class UnreadAnswers:
    """The replies in which no answer was found, or several."""

    count: int
    rate: float  # per cent of the results

    @property
    def text(self) -> str:
        """The share and the number, as text for people."""
        return f"unread {self.rate:.1f}% ({self.count})"


@dataclass(frozen=True, slots=True)
class Truncated:
    """The judged replies that ended by their length: within a text, and before there was any."""

    text: int = 0
    reasoning: int = 0

    def note(self, results: int) -> str:
        """A warning where they are more than 2 % of the results; empty otherwise."""
        count = self.text + self.reasoning
        if not results or 100 * count / results <= _MOST_TRUNCATED:
            return ""
        thought = f", {self.reasoning} of them while the model still thought" if self.reasoning else ""
        share = f"{100 * count / results:.1f}% of the replies ({count} of {results})"
        return f"{share} were cut off by their length{thought}: raise --max-tokens"


def told_ends(unknown: Mapping[str, int]) -> Iterator[str]:
    """Sentences on the replies that ended by words that koderz doesn't know, the commonest words first."""
    ends = sorted(unknown.items(), key=lambda end: (-end[1], end[0]))
    shown, rest = ends[:_MOST_ENDS], sum(count for _, count in ends[_MOST_ENDS:])
    for word, count in [*((repr(word), count) for word, count in shown), ("other words", rest)]:
        if count:
            yield f"{count} {'reply' if count == 1 else 'replies'} ended by {word}, which koderz doesn't know"


def told_reuse(calls: int, dollars: float) -> str:
    """The number of calls that replies of other runs answered, and what these had cost; empty if there are none."""
    if not calls:
        return ""
    return f"{calls:,} call{'s' * (calls > 1)} answered by replies of other runs, which saved ${dollars:.4f}"
