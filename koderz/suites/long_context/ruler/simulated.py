"""What the simulated model finds in a prompt of RULER's, by looking for it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_QUERY = re.compile(r"special magic \w+ for (.+?) mentioned in the provided text\?")
_VALUE = re.compile(r"are assigned the value (\d+) in the text above\.")
_ASSIGNMENT = re.compile(r"VAR (\w+) = (?:VAR )?(\w+)")
_NUMBERED = re.compile(r"\d+\. (\S+)")


def answers(asked: str) -> list[str]:
    """What belongs into the answer to a whole prompt; none where it isn't one of RULER's."""
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
    """The variables that have a value, directly or by another one."""
    found: dict[str, Any] = {value: None}
    for name, origin in _ASSIGNMENT.findall(text):
        if origin in found:
            found[name] = None
    return [*found][1:]
