"""What a reply to a question about documents is worth: its answer, its citations, and how sure it says it is."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from koderz.suites.long_context.browsecomp_plus.documents import Sought

_CITED = re.compile(r"\[([^\[\]]*)\]|【([^【】]*)】")
_EXACT = re.compile(r"Exact Answer:[ \t]*(.*)", re.IGNORECASE)
_CONFIDENCE = re.compile(r"Confidence:\D{0,10}?(\d+(?:\.\d+)?)", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_BIN = 100


class Judgement(NamedTuple):
    """What a judge's reply says."""

    correct: bool
    confidence: float | None = None  # per cent, that the answer claims
    extracted: str = ""


def judgement_of(reply: str) -> Judgement | None:
    """None for a reply that doesn't say whether the answer is correct."""
    correct = _named("correct", r"(yes|no)", reply)
    if correct is None:
        return None
    confidence = _named("confidence", r"(\d+(?:\.\d+)?)\s*%?", reply)
    return Judgement(
        correct.lower() == "yes",
        None if confidence is None else min(100.0, float(confidence)),
        _named("extracted_final_answer", r"([^\n]*)", reply) or "",
    )


def _named(name: str, value: str, reply: str) -> str | None:
    """What follows a name: `**name:**` before `**name**:` before `name:`, the first of each."""
    for form in (rf"\*\*{name}:\*\*", rf"\*\*{name}\*\*:", f"{name}:"):
        if found := re.search(rf"{form}\s*{value}", reply, re.IGNORECASE):
            return found[1].strip()
    return None


def metrics_of(sought: Sought, reply: str) -> dict[str, float]:
    """`exact_match`, precision and recall of what is cited, and the `confidence` in per cent if the reply has one."""
    said = _EXACT.findall(reply)
    cited = {number for pair in _CITED.findall(reply) for number in re.findall(r"\d+", "".join(pair))}
    right = len(cited & sought.evidence)
    found = {
        "exact_match": float(_normal(said[-1] if said else reply) == _normal(sought.answer)),
        "citation_precision": right / len(cited) if cited else 0.0,
        "citation_recall": right / len(sought.evidence) if cited and sought.evidence else 0.0,
    }
    if claimed := _CONFIDENCE.findall(reply):
        found["confidence"] = min(100.0, float(claimed[-1]))
    return found


def _normal(text: str) -> str:
    """Without case, punctuation, articles and needless blanks."""
    lower = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lower).split())


def calibration_error(answers: Sequence[tuple[float, bool]]) -> float:
    """How far what answers claim, in per cent, is from how often they are right, in points: the root mean square.

    By bins of 100, after confidence, the last one stretched to the end. All bins count, unlike in the official loop,
    which leaves out the last one, so that it has 0 for fewer than 200.
    """
    ranked = sorted(answers)
    starts = range(0, max(_BIN, len(ranked) - len(ranked) % _BIN), _BIN)
    total = 0.0
    for start in starts:
        members = ranked[start:] if start == starts[-1] else ranked[start : start + _BIN]
        claimed = sum(confidence for confidence, _ in members) / len(members)
        right = 100 * sum(correct for _, correct in members) / len(members)
        total += len(members) / len(ranked) * (claimed - right) ** 2
    return float(total**0.5)
