"""The simulated model's replies to questions, and its grades where it is the judge."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koderz.suites.scorers import squad_normalised
from koderz.systems.questions.question import Question
from koderz.types import Message
from koderz_tracker.messages import text_of

_RIGHT, _UNREAD = 0.6, 0.05  # chances of a right answer, and of one that can't be read
_MARK = re.compile(r"a line `BEGIN ([0-9a-f]{16})`")
_WRONG = "I am quite sure of it: 1."


class SimulatedAnswers:
    """Replies to questions by what they were asked with, right with a fixed chance."""

    def __init__(self, asked: Mapping[str, Question], demonstrated: Callable[[Question], str]) -> None:
        """`asked`: the questions by the last message that asks them."""
        self._asked, self._demonstrated = asked, demonstrated

    def reply(self, messages: Sequence[Message], sampling: Any) -> str:
        """The reply, a pure function of messages and sampling."""
        if mark := _MARK.search(text_of(messages[0])):
            return _judgement(text_of(messages[0]), text_of(messages[-1]), mark[1])
        asked = text_of(messages[-1])
        seed = hashlib.sha256(f"{getattr(sampling, 'seed', 0)} {asked}".encode("utf-8", "replace")).hexdigest()
        draw = random.Random(seed)  # noqa: S311 repeatable on purpose
        question, chance = self._asked.get(asked), draw.random()
        if question is None or chance > 1 - _UNREAD:
            return "I would rather not say."
        if chance < _RIGHT:
            return self._demonstrated(question) or _WRONG
        others = [label for label in question.options if label not in question.targets]
        return f"Answer: {draw.choice(others)}" if others else _WRONG


def _judgement(system: str, shown: str, mark: str) -> str:
    """A grade by whether one of the right answers stands in the reply."""
    parts = re.findall(rf"# ([^\n]+)\nBEGIN {mark}\n(.*?)\nEND {mark}", shown, re.DOTALL)
    texts: dict[str, str] = dict(parts)
    right = texts.get("Right answer") or texts.get("Right answers", "")
    reply = squad_normalised(texts.get("Reply", ""))
    is_right = any(squad_normalised(each) in reply for each in right.splitlines() if squad_normalised(each))
    if "the letter A, B or C" in system:
        return "A" if is_right else "C" if "rather not" in reply else "B"
    return json.dumps({"mark": mark, "reason": "simulated", "score": float(is_right)})
