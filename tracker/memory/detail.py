"""How much of a memory an answer shows, and the things that memories are about.

A thing is a task of a suite, a run, or a note by itself. However often a task was tried, it is one thing. Each has two
texts to be found by: what it is about, and what happened.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import msgspec

from koderz_tracker.memory.database import INDEXED_CHARACTERS
from koderz_tracker.memory.memories import PROTECTED_TAGS, Memory

Detail = Literal["line", "lesson", "full"]

LINE, LESSON = 200, 700
"""Characters at most of the text of a memory."""

_ARMS, _HARDEST = 16, 20  # lines, and tasks that no arm passed, in a digest
_NAMED, _LEAST = 3, 12  # arms in a run's line; characters that are left of a name


class _ArmSummary(msgspec.Struct, frozen=True):
    total_problems: int = 0
    successes: int = 0
    success_rate_interval: tuple[float, float] | None = None
    causes: dict[str, int] = {}
    cost_per_success: float | None = None


class _Result(msgspec.Struct, frozen=True):
    problem_id: str
    success: bool = False


class _Arm(msgspec.Struct, frozen=True):
    summary: _ArmSummary = _ArmSummary()
    results: list[_Result] = []


class _Comparison(msgspec.Struct, frozen=True):
    problems: int
    both_passed: int
    neither: int
    arms: tuple[str, str]
    only_zero_shot: int = 0
    only_iterative: int = 0


class _Summary(msgspec.Struct, frozen=True):
    """The fields of a run's summary that are told; the others are skipped."""

    arms: dict[str, _Arm] = {}
    comparison: _Comparison | None = None
    decision: dict[str, Any] | None = None


def shown(memory: Mapping[str, Any], detail: Detail) -> dict[str, Any]:
    """A memory, or a hit, whole; or its id, its text, and what it has as a hit, such as its score."""
    if detail == "full":
        return dict(memory)
    text = line_of(memory) if detail == "line" else lesson_of(memory)
    return {
        "id": memory["id"],
        "text": text,
        **{name: memory[name] for name in memory if name not in Memory.__struct_fields__},
    }


def line_of(memory: Mapping[str, Any]) -> str:
    """A memory in 200 characters: its id, task, arm, model, outcome, score and time; other memories by their title."""
    tags, told = memory["tags"], memory["metadata"]
    if "result" in tags and told.get("problem_id"):
        names = [told["problem_id"], told.get("arm") or told.get("solver"), told.get("model")]
        facts = [outcome_of(told)]
        if isinstance(score := told.get("score"), int | float):
            facts.append(f"score {score:.4g}")
        if told.get("sample"):
            facts.append(f"sample {told['sample']}")
    elif "benchmark_run" in tags and told.get("benchmark_run_id"):
        names = [told["benchmark_run_id"], told.get("mode"), told.get("model")]
        rates = [*_rates(_summary(memory))]
        more = [f"{len(rates) - _NAMED} more arms"] if len(rates) > _NAMED else []
        facts = [told.get("status"), *rates[:_NAMED], *more]
    else:
        names, facts = [memory["title"]], [memory["category"]]
    # Where the line is too long, its longest parts lose their middle.
    first = f"#{memory['id']}"
    last = memory["created_at"][:16].replace("T", " ")
    words = [" ".join(str(part).split()) for part in [*names, *facts] if part]
    while (over := len(" · ".join([first, *words, last])) - LINE) > 0:
        word = max(words, key=len)
        kept = max(_LEAST, len(word) - over - 1)
        words[words.index(word)] = f"{word[: kept - kept // 2]}…{word[len(word) - kept // 2 :]}"
    return " · ".join([first, *words, last])


def lesson_of(memory: Mapping[str, Any]) -> str:
    """A memory in 700 characters: its line; then what was tried, why it failed and what made it pass.

    Of a run the figures of its arms are told, of any other memory its content.
    """
    tags, told = memory["tags"], memory["metadata"]
    line = line_of(memory)
    if "result" in tags and told.get("problem_id"):
        body = [*_experience(memory)]
    elif "benchmark_run" in tags and told.get("benchmark_run_id"):
        body = [*_findings(_summary(memory), told)]
    else:
        body = [" ".join(memory["content"].split())]
    return cut("\n".join([line, *filter(None, body)]), LESSON)


def digest_of(memory: Mapping[str, Any]) -> list[str]:
    """A run in some twenty lines: arms, rates, costs, causes, what was compared and decided, the hardest tasks."""
    summary = _summary(memory)
    tried = Counter(result.problem_id for arm in summary.arms.values() for result in arm.results)
    passed = {
        result.problem_id
        for arm in summary.arms.values()
        for result in arm.results
        if result.success
    }
    hardest = [task for task, _ in tried.most_common() if task not in passed]
    decided = summary.decision and {
        name: value for name, value in summary.decision.items() if name != "arms"
    }
    return [
        line_of(memory),
        *islice(_findings(summary, memory["metadata"]), _ARMS),
        *(
            [f"Decided: {', '.join(f'{name} {value}' for name, value in decided.items())}"]
            if decided
            else []
        ),
        *(
            [f"Passed by no arm: {len(hardest)}, {', '.join(hardest[:_HARDEST])}"]
            if hardest
            else []
        ),
    ]


def _experience(memory: Mapping[str, Any]) -> Iterator[str]:
    """The lesson of an experiment, which says what failed and what fixed it; then its attempts in short."""
    told = memory["metadata"]
    if lesson := told.get("lesson"):
        yield cut(f"Lesson: {lesson}", LESSON // 2)
    if reason := told.get("reason"):
        yield f"Not judged: {reason}"
    _, _, attempts = memory["content"].partition("\n\nAttempts:\n")
    if attempts := attempts.partition("\n\n")[0]:
        yield f"Tried: {'; '.join(attempts.splitlines())}"


def _findings(summary: _Summary, told: Mapping[str, Any]) -> Iterator[str]:
    """A run's arms with their rates, intervals, costs and causes, and how the two that were paired compare."""
    for rate, arm in zip(_rates(summary), summary.arms.values(), strict=True):
        causes = sorted(arm.summary.causes.items(), key=lambda each: (-each[1], each[0]))[:3]
        failed = ", ".join(f"{cause} {n}" for cause, n in causes)
        price = arm.summary.cost_per_success
        yield "; ".join(
            filter(
                None,
                [rate, f"${price:.4f} a success" if price else "", failed and f"failed: {failed}"],
            )
        )
    if (paired := summary.comparison) is not None:
        a, b = paired.arms
        yield (
            f"Of {paired.problems} tasks of both, {paired.both_passed} passed in both, {paired.only_iterative} in "
            f"{b} alone, {paired.only_zero_shot} in {a} alone, {paired.neither} in neither"
        )
    if isinstance(cost := told.get("cost"), int | float):
        yield f"Cost ${cost:.4f}, {told.get('planned')} experiments planned"


def _summary(memory: Mapping[str, Any]) -> _Summary:
    try:
        return msgspec.json.decode(memory["content"], type=_Summary)
    except (msgspec.MsgspecError, UnicodeEncodeError):  # an import, or of an earlier version
        return _Summary()


def _rates(summary: _Summary) -> Iterator[str]:
    """Each arm's rate with its interval; a rate that has none is given as counts."""
    for name, arm in summary.arms.items():
        figures = arm.summary
        counts = f"{name} {figures.successes} of {figures.total_problems}"
        low, high = figures.success_rate_interval or (None, None)
        yield counts if low is None else f"{counts} ({low:.0f} to {high:.0f} %)"


def outcome_of(told: Mapping[str, Any]) -> str:
    """The end of an experiment in a few words, by the metadata of its memory."""
    words = {"True": "passed", "False": "failed"}
    cause = f" ({told['cause']})" if told.get("cause") else ""
    attempts = told.get("iterations")
    after = f" after {attempts} attempts" if attempts not in (None, 0, 1) else ""
    return f"{told.get('verdict') or words.get(str(told.get('success')), 'fault')}{cause}{after}"


def cut(text: str, most: int) -> str:
    """The text with at most so many characters, of which the last then is an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_STATEMENT = 2000  # characters at most of what a task asks
# characters of a thing and of a question, for a vector: models take no more than some hundred tokens
GIST = 1000
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
        return [
            *_words(_parts(memory.content)[1]),
            *map(str, concepts if isinstance(concepts, list) else ()),
        ]
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
