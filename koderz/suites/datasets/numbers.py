"""The number that a reply ends in, as for GSM8K."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(
    r"(?P<minus>(?<![^\W_])-)?[$€£¥]?(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?<![^\W_])(?=\.[0-9]))(?P<rest>\.[0-9]+)?"
)
_BOXED = r"\boxed{"


def number_in(reply: str) -> str | None:
    """The number that a reply gives as its answer, without commas; None where it has none.

    It is the first one after the last `####`, else the first one in the last `\\boxed{…}`, else the reply's last. A
    minus counts where it stands directly before the number and not after a digit or a letter: `5-10` ends in 10.
    """
    text = reply.replace("\N{MINUS SIGN}", "-").replace("{,}", ",")
    _, mark, after = text.rpartition("####")
    if mark and (found := _NUMBER.search(after)):
        return _plain(found)
    if (boxed := _last_boxed(text)) and (found := _NUMBER.search(boxed)):
        return _plain(found)
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 the last one
        pass
    return _plain(found) if found else None


def gold_number(gold: str) -> str:
    """The number of a gold in GSM8K's form, which is what follows `####`, or of one that is a number alone."""
    return gold.rpartition("####")[2].strip().replace(",", "")


def decimal_in(number: str) -> Decimal:
    """The value, so that 18.00 is 18. Raises ValueError for what is no number."""
    try:
        return Decimal(number)
    except ArithmeticError:
        raise ValueError(f"{number!r:.80} is no number") from None


def _plain(found: re.Match[str]) -> str:
    digits = found["digits"].replace(",", "") or "0"
    return f"{found['minus'] or ''}{digits}{found['rest'] or ''}"


def _last_boxed(text: str) -> str:
    """What stands in the last box, up to the brace that closes it."""
    start = text.rfind(_BOXED)
    if start < 0:
        return ""
    start += len(_BOXED)
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    return text[start:]
