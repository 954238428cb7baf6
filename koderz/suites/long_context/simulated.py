"""What the simulated model replies to a long prompt: the less often right, the longer the prompt is."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from koderz.suites.long_context.tokens import CHARS_A_TOKEN
from koderz.types import Message
from tracker.messages import text_of

HALF = 8192  # tokens of a prompt with which every second thing is missed


def reply(messages: Sequence[Message], sampling: Any, answers: Callable[[str], list[str]]) -> str:
    """Each thing that belongs into the answer is found with a chance that falls with the prompt's length."""
    asked = text_of(messages[-1])
    chance = 1 / (1 + len(asked) / CHARS_A_TOKEN / HALF)
    seed = hashlib.sha256(f"{getattr(sampling, 'seed', 0)} {asked}".encode("utf-8", "replace")).hexdigest()
    draw = random.Random(seed)  # noqa: S311 repeatable on purpose
    found = [answer for answer in answers(asked) if draw.random() < chance]
    return f"Answer: {', '.join(found)}" if found else "I could not find it in the text."
