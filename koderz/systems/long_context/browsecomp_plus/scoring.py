"""Scoring of a reply to a question about documents: its answer, its citations, and its stated confidence."""

from __future__ import annotations

import re
import string
import unicodedata

from koderz.systems.long_context.browsecomp_plus.documents import Sought

_CITED = re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】")
_EXACT = re.compile(r"Exact Answer:[ \t]*(.*)", re.IGNORECASE)
_CONFIDENCE = re.compile(r"Confidence:\D{0,10}?(\d+(?:\.\d+)?)", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def metrics_of(sought: Sought, reply: str) -> dict[str, float]:
    """`exact_match`, precision and recall of citations, and the `confidence` in per cent if the reply states one."""
    cited = {number for form in _CITED for inside in form.findall(reply) for number in re.findall(r"\d+", inside)}
    right = len(cited & sought.evidence)
    found = {
        "exact_match": float(is_exact(sought.answer, reply)),
        "citation_precision": right / len(cited) if cited else 0.0,
        "citation_recall": right / len(sought.evidence) if cited and sought.evidence else 0.0,
    }
    if claimed := _CONFIDENCE.findall(reply):
        found["confidence"] = min(100.0, float(claimed[-1]))
    return found


def is_exact(answer: str, reply: str) -> bool:
    """Whether the text after `Exact Answer:`, else the whole reply, equals the answer apart from spelling."""
    said = _EXACT.findall(reply)
    return _normal(said[-1] if said else reply) == _normal(answer)


def _normal(text: str) -> str:
    """The text without case, punctuation, articles and extra blanks."""
    lower = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lower).split())
