"""Replies of which an arm's figures tell: those whose answer can't be read, and those that were cut off."""

from __future__ import annotations

from dataclasses import dataclass


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


_MOST_TRUNCATED = 2.0  # per cent
