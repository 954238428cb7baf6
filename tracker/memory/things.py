"""Things that memories are about, which recall finds: a task of a suite, a run, or a note by itself.

However often a task was tried, it is one thing. Each has two texts to be found by: what it is about, and what happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from koderz_tracker.memory.database import INDEXED_CHARACTERS
from koderz_tracker.memory.detail import digest_of
from koderz_tracker.memory.memories import PROTECTED_TAGS, Memory

_STATEMENT = 2000  # characters at most of what a task asks
GIST = 1000  # characters of a thing and of a question, for a vector: models take no more than some hundred tokens
_FENCED = re.compile(r"^```[\w+-]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(
    r"^[ \t]*(?:>>>|assert\b|(?:for )?(?:e\.g\.|examples?\b)|\w+\([^\n]*\) *(?:==|=>|->|➞|=)).*",
    re.MULTILINE | re.IGNORECASE,
)
_IMPORT = re.compile(r"^(?:from \S+ )?import .*\n", re.MULTILINE)
_AFTER_ASKED = re.compile(r"\n\n(?=Lesson: |Cost \$|\d+\. )")
_WORD = re.compile(r"[^\W\d]\w*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def name_of(memory: Memory) -> str:
    """The name of the thing that a memory is about."""
    told = memory.metadata
    if "result" in memory.tags and (task := told.get("problem_id")):
        return f"task {told.get('suite') or ''} {task}"
    if "benchmark_run" in memory.tags and (run := told.get("benchmark_run_id")):
        return f"run {run}"
    return f"note {memory.id}"


def about_of(memory: Memory) -> str:
    """The subject of a thing as one of its memories tells it: a task's statement, below its id, or else a title."""
    told = memory.metadata
    match name_of(memory).partition(" ")[0]:
        case "task":
            return apart(
                f"{told['problem_id']}\n{statement_of(_parts(memory.content)[0][:INDEXED_CHARACTERS])}".strip()
            )
        case "run":
            return f"{memory.title}: success rates, costs and causes of failure on {told.get('suite') or 'its tasks'}"
        case _:
            return apart(memory.title)


def gist_of(name: str, about: str, content: str) -> str:
    """The part of a thing's texts that its vector is made of: its subject, and what a note says."""
    return (f"{about}\n{content}" if name.startswith("note ") else about)[:GIST]


def happened_in(memory: Memory) -> list[str]:
    """The events that a memory tells: of a task their words, else lines.

    Words, since a task that was tried often would have ever more to say, and its words ever less weight.
    """
    kind = name_of(memory).partition(" ")[0]
    if kind == "task":
        concepts = memory.metadata.get("concepts")
        return [*_words(_parts(memory.content)[1]), *map(str, concepts if isinstance(concepts, list) else ())]
    tags = " ".join(tag for tag in memory.tags if tag not in PROTECTED_TAGS)
    said = memory.content[:INDEXED_CHARACTERS]
    return [tags, *(digest_of(memory.as_dict()) if kind == "run" else apart(said).splitlines())]


def merged(newer: Iterable[str], older: Iterable[str]) -> str:
    """The events of a thing, each line or word once and the newest first, as far as they are indexed."""
    return "\n".join(dict.fromkeys([*newer, *older]))[:INDEXED_CHARACTERS]


def apart(text: str) -> str:
    """The text, followed by the words that identifiers such as isPalindrome are made of."""
    humps = {word for word in re.findall(r"\w+", text) if _HUMP.search(word)}
    return f"{text}\n{_HUMP.sub(' ', ' '.join(sorted(humps)))}" if humps else text


def statement_of(asked: str) -> str:
    """The text of a task up to its first example: of a prompt with programs in it, that of these."""
    text = _IMPORT.sub("", "\n".join(_FENCED.findall(asked)) or asked)
    return (_EXAMPLE.split(text, 1)[0].strip() or text)[:_STATEMENT]


def _parts(content: str) -> tuple[str, str]:
    """The question in an experiment's memory, and the events, without its cost and its run."""
    head, _, rest = content.partition("\n\nAsked:\n")
    end = rest.find("\n\nAttempts:\n")
    if end < 0:
        end = found.start() if (found := _AFTER_ASKED.search(rest)) else len(rest)
    return rest[:end], f"{head}\n{rest[end:]}".partition("\n\nCost $")[0]


@lru_cache(4096)  # experiments often end alike
def _words(told: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_WORD.findall(told)))
