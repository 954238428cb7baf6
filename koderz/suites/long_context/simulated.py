"""What the simulated model replies to a long prompt, the less often right the longer it is, or in a session."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from koderz.suites.long_context.tokens import CHARS_A_TOKEN
from koderz.types import Message
from tracker.messages import text_of

_ANSWERED = re.compile(r"^Answer: (.+)$", re.MULTILINE)

HALF = 8192  # tokens of a prompt with which every second thing is missed


_QUESTION = re.compile(r"^The question:\n\n(.*?)\n\nTurn 1/", re.MULTILINE | re.DOTALL)

_LOOK = """I look at the text first.

```repl
import re
from collections import Counter
question = {question!r}
print(len(context), context[:200], context[-200:])
```"""

_SEARCH = """I search for what the question names, and count what is left.

```repl
number = re.search(r'value (\\d+) in the text', question)
keys = re.search(r' for (.+?) mentioned in', question)
counted = Counter(re.findall(r'\\d+\\. (\\S+)', context)) if 'common words' in question else Counter()
if number:
    assigned = re.findall(r'VAR \\w+ = \\w+(?: \\w+)?', context.rpartition('Memorize and track')[2])
    parts = ['Memorize and track ' + '\\n'.join(assigned)]
elif keys:
    wanted = '|'.join(map(re.escape, re.split(r', (?:and )?', keys[1])))
    parts = ['\\n'.join(re.findall(r'[^.\\n]*\\bfor (?:' + wanted + r') is: [^\\n]*?\\.(?=\\s|$)', context))]
elif counted:
    words = [word for rank, (word, _) in enumerate(counted.most_common(10)) for _ in range(10 - rank)]
    listed = ' '.join(f'{{n}}. {{word}}' for n, word in enumerate(words, 1))
    parts = ['Below is a numbered list of words. ' + listed]
elif 'frequently appeared words' in question:
    coded = Counter(word for word in context.partition('appeared coded words. ')[2].split() if set(word) != {{'.'}})
    words = [word for rank, (word, _) in enumerate(coded.most_common(3)) for _ in range(3 - rank)]
    parts = ['appeared coded words. ' + ' '.join(words)]
else:
    parts = [context[at : at + 20_000] for at in range(0, len(context), 20_000)]
print(len(parts), sum(map(len, parts)))
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


def play(messages: Sequence[Message]) -> str:
    """What it replies in a session: it looks, searches and counts by code, and asks about what it has found."""
    question = _QUESTION.search(text_of(messages[1]))
    if question is None:
        return _CHILD if len(messages) == 2 else "FINAL_VAR(found)"
    turn = sum(message["role"] == "assistant" for message in messages)
    return (_LOOK, _SEARCH, _FOUND)[min(turn, 2)].format(question=question[1])


def reply(messages: Sequence[Message], sampling: Any, answers: Callable[[str], list[str]]) -> str:
    """Each thing that belongs into the answer is found with a chance that falls with the prompt's length."""
    asked = text_of(messages[-1])
    chance = 1 / (1 + len(asked) / CHARS_A_TOKEN / HALF)
    seed = hashlib.sha256(f"{getattr(sampling, 'seed', 0)} {asked}".encode("utf-8", "replace")).hexdigest()
    draw = random.Random(seed)  # noqa: S311 repeatable on purpose
    known = [each for line in _ANSWERED.findall(asked) for each in line.split(", ")]  # of its own notes
    new = [answer for answer in answers(asked) if answer not in known and draw.random() < chance]
    found = dict.fromkeys([*known, *new])
    return f"Answer: {', '.join(found)}" if found else "I could not find it in the text."
