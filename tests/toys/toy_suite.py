"""Words to be said backwards: tasks that aren't code, with scores, measures and a session."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from koderz.extend import (
    ExperimentContext,
    JudgeContext,
    Measure,
    Message,
    Reply,
    RunContext,
    Sampling,
    Suite,
    SuiteSource,
    Task,
    Verdict,
    option,
)

WORDS = ("stressed", "drawer", "level", "koderz", "benchmark", "noon")


@dataclass(frozen=True, slots=True)
class Word:
    """What a task knows besides its prompt."""

    word: str


class Backwards(Suite):
    """Judged by comparing letters, so no task needs a sandbox."""

    source = "six words"
    measures = (Measure("score", "higher", "share"), Measure("wrong", "lower", "letters"))

    def __init__(self, *needs: str, words: int = len(WORDS)) -> None:
        self.tasks = _tasks(*needs)[:words]

    async def judge(self, task: Task[Word], answer: Reply | str, context: JudgeContext) -> Verdict:
        said = answer.text if isinstance(answer, Reply) else answer
        expected = task.payload.word[::-1]
        wrong = sum(a != b for a, b in zip(expected, said.ljust(len(expected)), strict=False))
        score = 1 - wrong / len(expected)
        metrics = {"wrong": float(wrong)}
        if said == expected:
            return Verdict("passed", score=score, metrics=metrics)
        return Verdict("failed", "letters", f"{wrong} letters are wrong", score=score, metrics=metrics)

    def simulate(self, messages: Sequence[Message], sampling: Sampling) -> str:
        """Forgets to turn a word around where it has an even number of letters."""
        word = str(messages[0]["content"]).rpartition(" ")[2]
        return word[::-1] if len(word) % 2 else word

    @asynccontextmanager
    async def open_run(self, context: RunContext) -> AsyncIterator[Counter[str]]:
        """How often each task was opened, shared by all sessions of a run."""
        if context.environ.get("TOY_CLOSED"):
            raise OSError("the toys are put away")
        opened: Counter[str] = Counter()
        yield opened
        sys.stderr.write(f"opened once, {opened.total()} sessions of {len(opened)} tasks\n")

    @asynccontextmanager
    async def open_session(self, context: ExperimentContext) -> AsyncIterator[dict[str, Any]]:
        """Names and values that last as long as the experiment; the first was drawn once."""
        context.shared[context.task.id] += 1
        yield {"drawn": await context.handles.once("drawn", context.handles.rng.random)}


def _tasks(*needs: str) -> tuple[Task[Word], ...]:
    return tuple(
        Task(f"Toy/{n}", f"Say backwards: {word}", Word(word), needs=frozenset(needs), digest=word)
        for n, word in enumerate(WORDS)
    )


class Timed(Backwards):
    """Words whose judge measures another process, on the core that is kept free for it."""

    name = "toy-timed"

    def __init__(self) -> None:
        super().__init__("exclusive")

    async def judge(self, task: Task[Word], answer: Reply | str, context: JudgeContext) -> Verdict:
        begun = time.monotonic()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
        if context.core is not None:
            os.sched_setaffinity(process.pid, {context.core})
        cores = os.sched_getaffinity(process.pid)
        await process.communicate(b"\n")
        shared = len(cores & os.sched_getaffinity(0))  # cores on which both may run
        metrics = {"begun": begun, "ended": time.monotonic(), "cores": float(len(cores)), "shared": float(shared)}
        return Verdict("passed", metrics=metrics)


@dataclass(frozen=True, slots=True)
class ToyOptions:
    """The options of the suite `toy`."""

    toy_words: int = option(len(WORDS), "How many words there are.", "N", bounds=(1, len(WORDS)))


class Toy(Backwards):
    """Words, as many as its option says."""

    name = "toy"
    options = ToyOptions
    parts = ("letters",)
    sinks = ("letter-file",)

    @classmethod
    def load(cls, source: SuiteSource) -> Toy:
        return cls(words=source.options.toy_words)


class ToySession(Backwards):
    """Words whose solvers have a session."""

    name = "toy-session"

    def __init__(self) -> None:
        super().__init__("session")
