"""The similarity of a reply to the gold: SQuAD's exact match and F1, ROUGE-L, and the ratio of edits."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WORD = re.compile(r"[^\W_]+")
_WHOLE = ("yes", "no", "noanswer")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MOST_CHARACTERS = 20_000  # of a text that is compared; what follows isn't looked at


def squad_normalised(text: str) -> str:
    """The text in lower case, without punctuation and articles. Source: SQuAD's evaluate-v1.1.py."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def squad_exact(gold: str, reply: str) -> float:
    """1 if both texts are equal when normalised, else 0."""
    return float(squad_normalised(gold) == squad_normalised(reply))


def squad_f1(gold: str, reply: str) -> float:
    """F1 over normalised words as multisets; yes, no and noanswer match whole. Source: HotpotQA's evaluation."""
    wanted, said = squad_normalised(gold), squad_normalised(reply)
    if wanted != said and (wanted in _WHOLE or said in _WHOLE):
        return 0.0
    ours, theirs = wanted.split(), said.split()
    same = (Counter(ours) & Counter(theirs)).total()
    return 2 * same / (len(ours) + len(theirs)) if same else float(ours == theirs)


def rouge_l(gold: str, reply: str) -> float:
    """F1 (beta 1) of the longest common subsequence of lower-case words, not stemmed. Source: Lin, "ROUGE" (2004)."""
    ours, theirs = (_WORD.findall(text[:_MOST_CHARACTERS].lower()) for text in (gold, reply))
    return _shared(ours, theirs)


def levenshtein_ratio(gold: str, reply: str) -> float:
    """(|a| + |b| - distance) / (|a| + |b|) over characters, an exchange counting as two edits; 1 of two empty texts."""
    a, b = gold[:_MOST_CHARACTERS], reply[:_MOST_CHARACTERS]
    return _shared(a, b) if a or b else 1.0


def _shared(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Twice the longest common subsequence over the sum of lengths; 0 for empty sequences."""
    return 2 * _common(a, b) / (len(a) + len(b)) if a and b else 0.0


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence, a row of the table at once.

    Source: Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    """
    places: dict[Hashable, int] = {}
    for place, each in enumerate(a):
        places[each] = places.get(each, 0) | 1 << place
    full = (1 << len(a)) - 1
    row = full
    for each in b:
        met = row & places.get(each, 0)
        row = (row + met | row - met) & full
    return len(a) - row.bit_count()
