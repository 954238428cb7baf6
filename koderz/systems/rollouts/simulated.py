"""The simulated model as an agent on the embedded tasks: it looks, edits, tries, and is not always right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from koderz.types import Message
from koderz_tracker.messages import text_of

_MEDIAN = """The function takes the upper of the two. I mend that.

```edit numbers_summary.py
<<<<<<<
    return ordered[len(ordered) // 2]
=======
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
>>>>>>>
```

```shell
python3 -m pytest -q test_visible.py
```"""

_SLUGS = """There is no module yet, so I write it.

```edit pages.py
<<<<<<<
=======
import re


def slug(title):
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))
>>>>>>>
```

```shell
python3 -c 'from pages import slug; print(slug("Hello, World"))'
```"""

_GREETING = """```shell
sed 's/.*/Hello, &!/' names.txt > greeting.txt
cat greeting.txt
```"""

_SKILL = re.compile(r"[^\s`'\"()<>]+/SKILL\.md")
_COMMAND = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)

_PLAYED: Mapping[str, str] = {"median()": _MEDIAN, "slug(title)": _SLUGS, "greeting.txt": _GREETING}


def simulate(messages: Sequence[Message]) -> str:
    """The reply to a conversation, by the number of its earlier replies."""
    told = " ".join(text_of(message) for message in messages if message["role"] == "user")
    turn = sum(message["role"] == "assistant" for message in messages)
    if "codes.txt" in told:
        return _of_parcels(" ".join(map(text_of, messages)), turn)
    edit = next((reply for mark, reply in _PLAYED.items() if mark in told), "")
    if turn == 0:
        return "I look at what is there.\n\n```shell\nls; head -50 *.py *.txt *.md 2>/dev/null\n```"
    return edit if turn == 1 and edit else "That is all."


def _of_parcels(told: str, turn: int) -> str:
    """The reply on a task of `koderz helps`: it reads the skills that it is offered, and does what it read last."""
    if turn == 0:
        skills = [f"cat {path}" for path in dict.fromkeys(_SKILL.findall(told))]
        return "\n".join(["I read what there is on it.", "", "```shell", "cat README.md", *skills, "```"])
    if turn == 1:
        command = (_COMMAND.findall(told) or ["cp parcels.txt codes.txt\n"])[-1]
        return f"I make the codes so.\n\n```shell\n{command}```"
    return "That is all."
