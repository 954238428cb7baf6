"""Scorers of replies, by the names that a suite's `scorer` takes: from 0 to 1, of an expected text and a reply's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from koderz.errors import KoderzError
from koderz.suites.numbers import decimal_in, gold_number, number_in
from koderz.suites.texts import levenshtein_ratio, rouge_l, squad_exact, squad_f1

Scorer = Callable[[str, str], float]


def same_text(expected: str, reply: str) -> float:
    """1 if both texts are the same but for white space around them, else 0."""
    return float(expected.strip() == reply.strip())


def same_number(expected: str, reply: str) -> float:
    """1 if the number that the reply ends in is the expected one, else 0."""
    found = number_in(reply)
    return float(found is not None and decimal_in(found) == decimal_in(gold_number(expected)))


SCORERS: Mapping[str, Scorer] = {
    "exact_match": squad_exact,
    "f1": squad_f1,
    "rougeL": rouge_l,
    "levenshtein_ratio": levenshtein_ratio,
    "equals": same_text,
    "number": same_number,
}


def scorer_of(name: str) -> Scorer:
    """The scorer of a name. Raises KoderzError, with the names that there are, for an unknown one."""
    if name not in SCORERS:
        raise KoderzError(f"there is no scorer {name!r}; choose from {', '.join(SCORERS)}")
    return SCORERS[name]
