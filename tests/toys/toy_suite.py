"""Words to be said backwards: tasks that aren't code, with scores, measures and a session."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koderz.prompts import Prompts
from koderz.sandbox import Sandbox
from koderz.settings.options import option
from koderz.settings.schema import Settings
from koderz.types import Judging, Measure, Message, Reply, Sampling, Task, Verdict

WORDS = ("stressed", "drawer", "level", "koderz", "benchmark", "noon")


@dataclass(frozen=True, slots=True)
class Word:
    """What a task knows besides its prompt."""

    word: str


@dataclass(frozen=True)
class Backwards:
    """Judged by comparing letters, so no task needs a sandbox."""

    name: str
    tasks: tuple[Task[Word], ...]
    source: str = "six words"
    measures: tuple[Measure, ...] = (Measure("score", "higher", "share"), Measure("wrong", "lower", "letters"))
    parts: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()

    def messages(self, task: Task[Word], prompts: Prompts) -> tuple[Message, ...]:
        return ({"role": "user", "content": task.prompt},)

    async def judge(self, task: Task[Word], answer: Reply | str, sandbox: Sandbox, how: Judging) -> Verdict:
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
    async def open_run(self, settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Counter[str]]:
        """How often each task was opened, shared by all sessions of a run."""
        if environ.get("TOY_CLOSED"):
            raise OSError("the toys are put away")
        opened: Counter[str] = Counter()
        yield opened
        sys.stderr.write(f"opened once, {opened.total()} sessions of {len(opened)} tasks\n")

    @asynccontextmanager
    async def open_session(
        self, task: Task[Word], handles: Any, *, shared: Counter[str]
    ) -> AsyncIterator[dict[str, Any]]:
        """Names and values that last as long as the experiment; the first was drawn once."""
        shared[task.id] += 1
        yield {"drawn": await handles.once("drawn", handles.rng.random)}


def _tasks(*needs: str) -> tuple[Task[Word], ...]:
    return tuple(
        Task(f"Toy/{n}", f"Say backwards: {word}", Word(word), needs=frozenset(needs), digest=word)
        for n, word in enumerate(WORDS)
    )


@dataclass(frozen=True)
class Timed(Backwards):
    """Whose judge measures another process, on the core that is kept free for it."""

    async def judge(self, task: Task[Word], answer: Reply | str, sandbox: Sandbox, how: Judging) -> Verdict:
        begun = time.monotonic()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
        if how.core is not None:
            os.sched_setaffinity(process.pid, {how.core})
        cores = os.sched_getaffinity(process.pid)
        await process.communicate(b"\n")
        shared = len(cores & os.sched_getaffinity(0))  # cores on which both may run
        metrics = {"begun": begun, "ended": time.monotonic(), "cores": float(len(cores)), "shared": float(shared)}
        return Verdict("passed", metrics=metrics)


@dataclass(frozen=True, slots=True)
class ToyOptions:
    """The options of the suite `toy`."""

    toy_words: int = option(len(WORDS), "How many words there are.", "N", bounds=(1, len(WORDS)))


def toy(dataset: Path | None, options: ToyOptions) -> Backwards:
    return Backwards("toy", _tasks()[: options.toy_words], parts=("letters",), sinks=("letter-file",))


toy.options = ToyOptions  # type: ignore[attr-defined]


def toy_session(dataset: Path | None) -> Backwards:
    return Backwards("toy-session", _tasks("session"))


def toy_timed(dataset: Path | None) -> Timed:
    return Timed("toy-timed", _tasks("exclusive"))
