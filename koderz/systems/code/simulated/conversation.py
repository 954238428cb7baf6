"""Facts about a conversation: its task, the kind of answer asked for, and the number of failures so far."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal

from koderz.systems.code.tasks import CodeTask
from koderz.types import Message
from koderz_tracker.messages import text_of

Wanted = Literal["code", "specification", "review"]

_INSTRUCTIONS: tuple[tuple[re.Pattern[str], Wanted], ...] = (
    (re.compile(r"\W*(?:write|draft)\b.{0,80}?\bspecification\b", re.IGNORECASE | re.DOTALL), "specification"),
    (re.compile(r"\W*review\b.{0,80}?\battempts?\b", re.IGNORECASE | re.DOTALL), "review"),
)
_DEFINED = re.compile(r"\bdef\s+(\w+)\s*\(")
_CALLED = re.compile(r"\b(\w+)\s*\(")
_COUNTED = re.compile(r"\battempts?\W{1,3}(\d{1,3})\b|\b(\d{1,3})\s+(?:failed\s+)?attempts?\b", re.IGNORECASE)
_FAILED = ("AssertionError", "Traceback", "failed", "not right")
_GUIDANCE = (
    ("pecification", re.compile(r"^[^\w\n]{0,8}(?:this )?specification\b", re.IGNORECASE | re.MULTILINE)),
    ("uidance", re.compile(r"^[^\w\n]{0,8}guidance\b", re.IGNORECASE | re.MULTILINE)),
)


class TaskIndex:
    """Finds the task of a conversation, however its prompt is wrapped."""

    def __init__(self, tasks: Iterable[CodeTask]) -> None:
        self._by_message: dict[str, CodeTask] = {}
        self._by_name: defaultdict[str, list[CodeTask]] = defaultdict(list)
        for task in tasks:
            self._by_name[task.payload.entry_point].append(task)
            if task.messages:
                self._by_message.setdefault(text_of(task.messages[-1]), task)

    def find(self, messages: Sequence[Message]) -> CodeTask | None:
        """The task of the first message that contains one; None if no message does."""
        texts = [*_contents(messages, "user"), *_contents(messages, "system")]
        found = chain(map(self._by_message.get, texts), map(self._named, texts))
        return next((task for task in found if task is not None), None)

    def _named(self, text: str) -> CodeTask | None:
        """The task whose prompt is in the text; else the one whose function is defined or called last."""
        for names in (_DEFINED, _CALLED):
            named = dict.fromkeys(reversed(names.findall(text)))
            tasks = [task for name in named for task in self._by_name.get(name, ())]
            if tasks:
                quoted = [task for task in tasks if task.prompt.strip() in text]
                return max(quoted, key=lambda task: len(task.prompt), default=tasks[0])
        return None


def wanted(messages: Sequence[Message]) -> Wanted:
    """The kind of answer asked for, by the first words of a system prompt or the last message."""
    for text in [*_contents(messages, "system"), *_contents(messages, "user")[-1:]]:
        for instruction, word in _INSTRUCTIONS:
            if instruction.match(text):
                return word
    return "code"


def failures_shown(messages: Sequence[Message]) -> int:
    """The number of failed attempts in a conversation, by its turns or by the text of its last message.

    "Attempt 4" and "4 failed attempts" count for conversations that were cut short to fit.
    """
    turns = len(_contents(messages, "assistant"))
    last = "".join(_contents(messages, "user")[-1:])
    counts = _COUNTED.findall(last) if "ttempt" in last else []
    said = [int(one or other) for one, other in counts]
    return max(turns, *said, int(any(words in last for words in _FAILED)))


def guidance_given(messages: Sequence[Message]) -> int:
    """The number of kinds of guidance (a specification, a review's advice) in the messages: 0, 1 or 2."""
    told = [text_of(message) for message in messages if message["role"] != "assistant"]
    return sum(any(word in text and heading.search(text) is not None for text in told) for word, heading in _GUIDANCE)


def _contents(messages: Sequence[Message], role: str) -> list[str]:
    return [text_of(message) for message in messages if message["role"] == role]
