"""Separates a model's reasoning from its reply if the server sends both as one text."""

from __future__ import annotations

import re
from typing import NamedTuple

_OPENING = re.compile(r"\s*<(think|thinking)>")
# The chat templates of some reasoning models write the opening tag themselves, so that the reply has only
# the closing one, on its own line.
_CLOSING_ALONE = re.compile(r"^[ \t]*</think>[ \t]*$", re.MULTILINE)


class SplitText(NamedTuple):
    """A reply's `text` and `reasoning`; `cut` if the two came as one text."""

    text: str
    reasoning: str = ""
    cut: bool = False


def part(sent: str, *, complete: bool) -> SplitText:
    """Separates a leading `<think>` block from the rest of a reply.

    A block that isn't closed is all there is where the reply was not `complete`; in a complete reply it is
    no block, and stays.
    """
    opening = _OPENING.match(sent)
    if opening is None:
        alone = _CLOSING_ALONE.search(sent) if "</think>" in sent else None
        if (
            alone is None
            or sent.count("```", 0, alone.start()) % 2
            or "<think>" in sent[: alone.start()]
        ):
            return SplitText(sent)
        return _parted(sent, 0, alone.start(), alone.end())
    closing = f"</{opening[1]}>"
    end = sent.find(closing, opening.end())
    if end >= 0:
        return _parted(sent, opening.end(), end, end + len(closing))
    return SplitText(sent) if complete else SplitText("", sent[opening.end() :].strip(), cut=True)


def _parted(sent: str, start: int, end: int, after: int) -> SplitText:
    # Only line ends go: the indentation of a first line may be a program's.
    return SplitText(sent[after:].lstrip("\r\n"), sent[start:end].strip(), cut=True)
