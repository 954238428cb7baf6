"""What memories are about, which is what recall finds: a task of a suite, a run, or a note by itself.

However often a task was tried, it is one thing. Each has two texts to be found by: what it is about, and what happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from koderz_tracker.memory.database import INDEXED_CHARACTERS
from koderz_tracker.memory.detail import digest_of
from koderz_tracker.memory.memories import PROTECTED_TAGS, Memory

_STATEMENT = 2000  # characters at most of what a task asks
_FENCED = re.compile(r"^```[\w+-]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(
    r"^[ \t]*(?:>>>|assert\b|(?:for )?(?:e\.g\.|examples?\b)|\w+\([^\n]*\) *(?:==|=>|->|➞|=)).*",
    re.MULTILINE | re.IGNORECASE,
)
_IMPORT = re.compile(r"^(?:from \S+ )?import .*\n", re.MULTILINE)
_AFTER_ASKED = re.compile(r"\n\n(?=Attempts:\n|Lesson: |Cost \$|\d+\. )")
_FIGURES = re.compile(r"(?:Cost \$|Attempts:$|(?:\S+ [-+\d.e]+(?:; |$))+$)")
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
    """What a thing is about, as one of its memories tells: a task's statement, below its id, or else a title."""
    told = memory.metadata
    match name_of(memory).partition(" ")[0]:
        case "task":
            return apart(f"{told['problem_id']}\n{statement_of(_parts(memory.content)[0])}".strip())
        case "run":
            return f"{memory.title}: success rates, costs and causes of failure on {told.get('suite') or 'its tasks'}"
        case _:
            return apart(memory.title)


def happened_in(memory: Memory) -> list[str]:
    """What a memory says that happened: of a task the words, else lines.

    Words, since a task that was tried often would have ever more to say, and its words ever less weight.
    """
    kind = name_of(memory).partition(" ")[0]
    if kind == "task":
        concepts = memory.metadata.get("concepts")
        words = (word for word in re.findall(r"\w+", _parts(memory.content)[1]) if not word.isdecimal())
        return [*words, *map(str, concepts if isinstance(concepts, list) else ())]
    tags = " ".join(tag for tag in memory.tags if tag not in PROTECTED_TAGS)
    said = memory.content[:INDEXED_CHARACTERS]
    return [tags, *(digest_of(memory.as_dict()) if kind == "run" else apart(said).splitlines())]


def merged(newer: Iterable[str], older: Iterable[str]) -> str:
    """What happened, each line or word once and the newest first, as far as it is indexed."""
    return "\n".join(dict.fromkeys([*newer, *older]))[:INDEXED_CHARACTERS]


def apart(text: str) -> str:
    """The text, followed by the words that identifiers such as isPalindrome are made of."""
    humps = {word for word in re.findall(r"\w+", text) if _HUMP.search(word)}
    return f"{text}\n{_HUMP.sub(' ', ' '.join(sorted(humps)))}" if humps else text


def statement_of(asked: str) -> str:
    """What a task asks, up to its first example: of a prompt with programs in it, what these say."""
    text = _IMPORT.sub("", "\n".join(_FENCED.findall(asked)) or asked)
    return (_EXAMPLE.split(text, 1)[0].strip() or text)[:_STATEMENT]


def _parts(content: str) -> tuple[str, str]:
    """What an experiment's memory says was asked, and what happened, without figures."""
    head, _, rest = content.partition("\n\nAsked:\n")
    end = _AFTER_ASKED.search(rest)
    asked, after = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    lines = (line.strip() for line in f"{head}\n{after}".splitlines())
    return asked, "\n".join(line for line in lines if not _FIGURES.match(line))
