"""Worked examples before a question: which ones, and the messages that they make."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.scorers import squad_normalised
from koderz.systems.questions.question import Question
from koderz.types import Message
from koderz_tracker.messages import text_of

Writing = Callable[[Question], str]
"""What is written of an example."""


class Examples:
    """Worked examples, the same for all questions of a group except for a question's own equals."""

    def __init__(
        self, count: int, pool: Sequence[Question], source: str, *, user: Writing, reply: Writing, seed: int | None
    ) -> None:
        """`source`: where the pool is from; `seed`: None if the first of each group are taken."""
        self.count, self._source, self._is_drawn = count, source, seed is not None
        self._user, self._reply = user, reply
        self._pool = [*pool] if count else []
        if seed is not None:
            self._pool.sort(key=lambda each: hashlib.sha256(each.content.encode("utf-8", "replace")).digest())
            random.Random(f"{seed} examples").shuffle(self._pool)  # noqa: S311 repeatable on purpose
        self._groups: dict[str, list[Question]] = {}
        for each in self._pool:
            self._groups.setdefault(each.group, []).append(each)

    def before(self, question: Question) -> list[Question]:
        """The examples of a question: of its group first, never the question itself nor an equal one.

        Raises KoderzError if there are too few.
        """
        own = question.content
        others = (each for each in self._in_order(question.group) if each.content != own)
        found = [*islice(others, self.count)]
        if len(found) < self.count:
            raise KoderzError(
                f"--few-shot {self.count}: {self._source} has {len(found)} examples other than {question.id}; "
                "lower the number, or name a file with --few-shot-from"
            )
        return found

    def messages(self, question: Question) -> tuple[Message, ...]:
        """The examples of a question as messages of user and assistant."""
        pairs = ((("user", self._user(each)), ("assistant", self._reply(each))) for each in self.before(question))
        return tuple({"role": role, "content": text} for role, text in chain.from_iterable(pairs))

    @property
    def record(self) -> Mapping[str, Any]:
        """The plan's record: how many, from where, and by group which; without their texts."""
        if not self.count:
            return {"count": 0}
        texts = "\0".join(f"{self._user(each)}\0{self._reply(each)}" for each in self._pool)
        return {
            "count": self.count,
            "source": self._source,
            "chosen": "drawn by --seed" if self._is_drawn else "the first",
            "examples": {
                group: [each.id for each in islice(self._in_order(group), self.count)] for group in self._groups
            },
            "digest": hashlib.sha256(texts.encode("utf-8", "replace")).hexdigest()[:16],
        }

    def _in_order(self, group: str) -> Iterator[Question]:
        """The pool, those of the group first."""
        yield from self._groups.get(group, ())
        yield from (each for each in self._pool if each.group != group)


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
    if "the letter A, B or C" not in system:
        return json.dumps({"mark": mark, "reason": "simulated", "score": float(is_right)})
    if is_right:
        return "A"
    return "C" if "rather not" in reply else "B"
