"""OOLONG's scores, reproduced with their oddities."""

from __future__ import annotations

import ast
import datetime
import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

_COMPARISONS = ("more common", "less common", "same frequency")
_SHORT = 20  # characters of a reply that is taken as it is
_PARTLY = 0.75  # for each by which a number is off
_PAIR = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)")


def gold_of(answer: str) -> Any:
    """The right answer: the first of a list in Python's notation, or a day. Raises ValueError for anything else."""
    if "datetime" in answer:
        return datetime.datetime.strptime(answer, "[datetime.date(%Y, %m, %d)]")
    try:
        return ast.literal_eval(answer)[0]
    except (SyntaxError, TypeError, IndexError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None


def parsed(reply: str) -> str:
    """The answer in a reply: the text after the last colon, else a short reply, else the last word."""
    if ":" not in reply:
        if len(reply) < _SHORT:
            return reply
        return next(reversed(reply.split()), "")
    said = re.sub(r"[*\[\]]", "", reply.rpartition(":")[2].strip())
    if len(said) >= _SHORT:
        return next((phrase for phrase in _COMPARISONS if phrase in said), said)
    return said


def score(answer: str, answer_type: str, reply: str) -> tuple[float, Mapping[str, float]]:
    """The score of a reply to a synthetic question, and by the RLM repository's laxer rule as `score_rlm`."""
    gold, reading = gold_of(answer), parsed(reply)
    strict = _score(gold, reading, answer_type)
    if ":" not in reply and not reply.strip():
        return strict, {"score_rlm": strict}
    return strict, {"score_rlm": max(strict, _lax(str(gold), reading, reply))}


def _score(gold: Any, said: str, answer_type: str) -> float:
    if said == str(gold):
        return 1.0
    if said in _COMPARISONS:
        return float(said in str(gold))
    if answer_type == "ANSWER_TYPE.NUMERIC":
        return _near(gold, said)
    if answer_type == "ANSWER_TYPE.DATE":
        return float(_as_date(said) == gold)
    return 0.0


def _near(gold: Any, said: Any) -> float:
    try:
        return float(_PARTLY ** abs(int(gold) - int(said)))
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _as_date(said: str) -> datetime.datetime | None:
    from dateutil.parser import parse

    try:
        found: datetime.datetime = parse(said)
    except Exception:  # noqa: BLE001 it raises whatever comes up in it
        return None
    return found


def _lax(gold: str, said: str, reply: str) -> float:
    """The score by containment, ignoring case; the last comparison anywhere counts."""
    lower = reply.lower()
    last = max(_COMPARISONS, key=lower.rfind)
    return float(gold.lower() in (last if last in lower and _compares(gold) else said.lower()))


def _compares(gold: str) -> bool:
    return any(phrase in gold for phrase in _COMPARISONS)


def score_real(answer: str, reply: str) -> float:
    """The score of a reply to a question about a real transcript."""
    boxed = _boxed(reply)
    gold, reading = _as_answer(answer), reply if boxed is None else _as_answer(boxed)
    if isinstance(gold, int) and isinstance(reading, int):
        return _near(gold, reading)
    if isinstance(gold, str) and isinstance(reading, str):
        return float(gold.strip().lower() == reading.strip().lower())
    if isinstance(gold, list) and isinstance(reading, list):
        return len({*gold} & {*reading}) / len(gold) if gold else 0.0
    return 0.0


def _boxed(reply: str) -> str | None:
    r"""The content of the first `\boxed{\text{…}}`, else of the first `\boxed{…}`, up to a brace; None without any.

    As the official patterns `\\boxed\{\\text\{([^}]*)\}\}` and `\\boxed[\{]+([^}]*)[\}]+` have it, which take minutes
    for a reply of many boxes that are never closed.
    """
    parts = reply.split("}")
    for part, after in pairwise(parts[:-1]):
        mark, content = part.partition(r"\boxed{\text{")[1:]
        if mark and not after:
            return content
    for part in parts[:-1]:
        mark, content = part.partition(r"\boxed{")[1:]
        if mark:
            return content.lstrip("{")
    return None


def _as_answer(text: str) -> int | str | list[str]:
    try:
        return int(text)
    except ValueError:
        return [item.strip() for item in text.split(",") if item.strip()] if "," in text else text


def score_pairs(answer: Any, reply: str) -> tuple[float, Mapping[str, float]]:
    """F1 over unordered pairs of numbers, with precision and recall."""
    gold = {frozenset(map(int, pair)) for pair in answer}
    pairs = {frozenset({int(a), int(b)}) for a, b in _PAIR.findall(reply)}
    right = len(gold & pairs)
    precision, recall = right / len(pairs) if pairs else 0.0, right / len(gold) if gold else 0.0
    both = precision + recall
    f1 = 2 * precision * recall / both if both else float(not gold and not pairs)
    assert math.isfinite(f1)
    return f1, {"precision": precision, "recall": recall}
