"""The simulated model on RULER: searches for the wanted words, and has the text around them read."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from koderz.systems.long_context.simulated import Player

_QUERY = re.compile(r"special magic \w+ for (.+?) mentioned in the provided text\?")
_VALUE = re.compile(r"are assigned the value (\d+) in the text above\.")
_ASSIGNMENT = re.compile(r"VAR (\w+) = (?:VAR )?(\w+)")
_NUMBERED = re.compile(r"\d+\. (\S+)")


def answers(asked: str) -> list[str]:
    """The expected answers to a whole prompt; empty if it isn't one of RULER's."""
    question = asked.rpartition("\n")[2]
    if query := _QUERY.search(question):
        keys = re.split(r", (?:and )?", query[1])
        return [value for key in keys for value in re.findall(rf"for {re.escape(key)} is: (.+?)\.(?=\s|$)", asked)]
    if value := _VALUE.search(question):
        return _assigned(asked.rpartition("Memorize and track")[2], value[1])
    if "most common words" in question:
        listed = _NUMBERED.findall(asked.rpartition("Below is a numbered list")[2].rpartition("\n")[0])
        return [word for word, _ in Counter(listed).most_common(10)]
    if "most frequently appeared words" in question:
        coded = asked.rpartition("\n")[0].partition("appeared coded words. ")[2].split(" ")
        return [word for word, _ in Counter(word for word in coded if set(word) != {"."}).most_common(3)]
    return []


def _assigned(text: str, value: str) -> list[str]:
    """The variables that have a value, directly or through another one."""
    found: dict[str, Any] = {value: None}
    for name, origin in _ASSIGNMENT.findall(text):
        if origin in found:
            found[name] = None
    return [*found][1:]


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
    listed = ' '.join(f'{n}. {word}' for n, word in enumerate(words, 1))
    parts = ['Below is a numbered list of words. ' + listed]
elif 'frequently appeared words' in question:
    coded = Counter(word for word in context.partition('appeared coded words. ')[2].split() if set(word) != {'.'})
    words = [word for rank, (word, _) in enumerate(coded.most_common(3)) for _ in range(3 - rank)]
    parts = ['appeared coded words. ' + ' '.join(words)]
else:
    parts = [context[at : at + 20_000] for at in range(0, len(context), 20_000)]
print(len(parts), sum(map(len, parts)))
replies = llm_query_batched([part + '\\n' + question for part in parts])
print(Counter(replies))
```"""

PLAYER = Player(answers, _SEARCH)
