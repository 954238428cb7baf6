"""Replies of the simulated model to a long prompt, less often right for a longer one, or in a session."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from koderz.suites.tokens import CHARS_A_TOKEN
from koderz.types import Message
from koderz_tracker.messages import text_of

HALF = 8192  # tokens of a prompt with which every second thing is missed

_ANSWERED = re.compile(r"^Answer: (.+)$", re.MULTILINE)
_QUESTION = re.compile(r"^The question:\n\n(.*?)\n\nTurn 1/", re.MULTILINE | re.DOTALL)

_LOOK = """I look at the text first.

```repl
import re
from collections import Counter
question = {question!r}
print(len(context), context[:200], context[-200:])
```"""

_READ = """I have the text read piece by piece.

```repl
parts = [context[at : at + 20_000] for at in range(0, len(context), 20_000)]
replies = llm_query_batched([part + '\\n' + question for part in parts])
print(Counter(replies))
```"""

_FOUND = """```repl
found = [reply for reply in replies if reply.startswith('Answer: ')] or replies
answer['content'] = '; '.join(found)
answer['ready'] = True
```"""

_CHILD = """```repl
found = llm_query(context)
```
FINAL_VAR(found)"""


def _listed(found: Sequence[str], chance: float) -> str:  # noqa: ARG001 others say how sure they are
    return f"Answer: {', '.join(found)}"


@dataclass(frozen=True, slots=True)
class Player:
    """The simulated model's way to play a suite.

    `search` is its second turn in a session, in which `context` and `question` are at hand: it leaves `replies`.
    """

    # what belongs into the answer to a whole prompt, as far as it can be told
    answers: Callable[[str], list[str]]
    search: str = _READ
    # what was found, and with which chance, as a reply
    phrase: Callable[[Sequence[str], float], str] = _listed

    def play(self, messages: Sequence[Message]) -> str:
        """The reply in a session: looks, searches by code, and asks about the findings."""
        question = _QUESTION.search(text_of(messages[1]))
        if question is None:
            return _CHILD if len(messages) == 2 else "FINAL_VAR(found)"
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 0:
            return _LOOK.format(question=question[1])
        return self.search if turn == 1 else _FOUND

    def reply(self, messages: Sequence[Message], sampling: Any) -> str:
        """A reply that holds each expected answer with a chance that falls with the prompt's length."""
        asked = text_of(messages[-1])
        chance = 1 / (1 + len(asked) / CHARS_A_TOKEN / HALF)
        seed = hashlib.sha256(
            f"{getattr(sampling, 'seed', 0)} {asked}".encode("utf-8", "replace")
        ).hexdigest()
        draw = random.Random(seed)  # noqa: S311 repeatable on purpose
        # of its own notes
        known = [each for line in _ANSWERED.findall(asked) for each in line.split(", ")]
        new = [
            answer
            for answer in self.answers(asked)
            if answer not in known and draw.random() < chance
        ]
        found = [*dict.fromkeys([*known, *new])]
        return self.phrase(found, chance) if found else "I could not find it in the text."
