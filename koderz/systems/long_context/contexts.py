"""A long text and a question about it: named by a digest in plans and records, made only while it is used."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from koderz.suites.suite import ExperimentContext, JudgeContext, RunContext, Suite
from koderz.suites.tokens import Characters
from koderz.types import Measure, Message, Reply, Task, Verdict

if TYPE_CHECKING:
    from koderz.systems.long_context.simulated import Player
    from koderz.systems.long_context.wasm.opening import Sessions

REFERENCE = "reference"
"""The type of a part of a message that stands for a text."""

NEEDS = frozenset({"long_context", "session"})

MODES: Mapping[str, tuple[str, ...]] = {
    "": ("rlm",),
    "zero-shot": ("direct",),
    "comparative": ("direct", "rlm"),
}
"""The solvers of modes in suites of long texts."""


@dataclass(frozen=True)
class Reading:
    """A text with its question. It is dropped when nobody uses it any more."""

    context: str
    question: str
    tokens: int  # of what the benchmark sends
    tokenizer: str  # that counted them
    between: str = "\n"  # context and question, where both are sent at once
    more: Mapping[str, Any] = field(default_factory=dict)  # for the record
    shared: object = None  # what others may find the text by for as long as it is held

    @property
    def input(self) -> str:
        """The benchmark's own prompt."""
        return f"{self.context}{self.between}{self.question}"


def in_characters(context: str, question: str, **more: Any) -> Reading:
    """A text and a question, measured in tokens of chars/4. `more` goes into the record."""
    counter = Characters()
    return Reading(
        context, question, counter.count(f"{context}\n{question}"), counter.name, more=more
    )


class Recipe(Protocol):
    """The payload of a task: how its text is made, or where it is stored."""

    @property
    def digest(self) -> str:
        """A digest of everything that the recipe makes, 32 hex digits."""

    def make(self) -> tuple[Reading, Any]:
        """Makes the text, and the expected answer."""


@dataclass(frozen=True)
class Library:
    """The texts in use, each in memory once however many experiments share it."""

    _held: WeakValueDictionary[str, Reading] = field(default_factory=WeakValueDictionary)
    _about: dict[str, tuple[str, Any]] = field(default_factory=dict)
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def read(self, recipe: Recipe) -> Reading:
        """The text, made in a thread if nobody holds it."""
        lock = self._locks.setdefault(recipe.digest, asyncio.Lock())
        async with lock:
            if held := self._held.get(recipe.digest):
                return held
            made, answers = await asyncio.to_thread(recipe.make)
            self._about[recipe.digest] = made.question, answers
            self._held[recipe.digest] = made
            return made

    async def about(self, recipe: Recipe) -> tuple[str, Any]:
        """The question, and the expected answer."""
        if recipe.digest not in self._about:
            await self.read(recipe)
        return self._about[recipe.digest]


class OpenContext:
    """The text of one task during an experiment: the handle `long_context`."""

    def __init__(self, task: Task[Recipe], library: Library) -> None:
        self._task, self._library = task, library
        self._reading: Reading | None = None

    async def read(self) -> Reading:
        """The text, made on first use, and held until the experiment ends."""
        if self._reading is None:
            self._reading = await self._library.read(self._task.payload)
        return self._reading

    def close(self) -> None:
        """Drops the text."""
        self._reading = None

    async def facts(self) -> dict[str, Any]:
        """Facts on the text for the record: its SHA-256, its length, and how it was made."""
        reading = await self.read()
        sent = reading.input
        return {
            "digest": await asyncio.to_thread(_sha256, sent),
            "characters": len(sent),
            "tokens": reading.tokens,
            "tokenizer": reading.tokenizer,
            **reading.more,
        }

    def part(self, of: str = "context", start: int = 0, end: int | None = None) -> dict[str, Any]:
        """A message part that stands for characters of the `context`, the `question` or the whole `input`."""
        return reference(self._task, of, start, end)


def reference(
    task: Task[Recipe], of: str = "input", start: int = 0, end: int | None = None
) -> dict[str, Any]:
    """A message part that stands for characters of a task's text."""
    part = {"type": REFERENCE, "name": task.id, "digest": task.payload.digest, "of": of}
    return part | ({} if (start, end) == (0, None) else {"start": start, "end": end})


class LongContextSuite(Suite):
    """A suite whose tasks are questions about long texts, judged against the expected answer."""

    modes = MODES
    tasks: tuple[Task[Recipe], ...]

    def __init__(
        self,
        name: str,
        source: str,
        tasks: Sequence[Task[Recipe]],
        score: Callable[[Task[Recipe], Any, str], tuple[float, Mapping[str, float]]],
        player: Player,
        measures: Sequence[Measure] = (Measure("score", "higher", "share"),),
        export: Callable[[Path], Iterable[tuple[Path, int]]] | None = None,
    ) -> None:
        """`score`: of a task's reply, 0 to 1, by the answers, with metrics; `export` writes rows that are made up."""
        self.name, self.source, self.tasks, self.measures = (
            name,
            source,
            tuple(tasks),
            tuple(measures),
        )
        self.library = Library()
        self._score, self._player, self._export = score, player, export

    def messages(self, task: Task[Recipe], prompts: Any) -> tuple[Message, ...]:  # noqa: ARG002
        """The benchmark's own messages, by reference."""
        return ({"role": "user", "content": [reference(task)]},)

    def pairing_text(self, task: Task[Recipe]) -> str:
        """The digest of a text that is made up, which another seed changes; of a row in a file nothing is told."""
        return task.digest if task.generated else ""

    @asynccontextmanager
    async def open_long_context(self, context: ExperimentContext) -> AsyncIterator[OpenContext]:
        """The text of one task, for as long as its experiment is worked on."""
        opened = OpenContext(context.task, self.library)
        try:
            yield opened
        finally:
            opened.close()

    @asynccontextmanager
    async def open_run(self, context: RunContext) -> AsyncIterator[Sessions]:
        """Opens the sessions in which code about texts runs."""
        from koderz.systems.long_context.wasm.opening import open_sessions

        async with open_sessions(
            context.settings, context.environ, logging.getLogger("koderz").warning
        ) as sessions:
            yield sessions

    @asynccontextmanager
    async def open_session(self, context: ExperimentContext) -> AsyncIterator[Sessions]:
        """The sessions for a task's solver, as many as it needs."""
        yield context.shared

    def export(self, folder: Path) -> Iterable[tuple[Path, int]]:
        """Write the rows that were made up. Raises KoderzError if the tasks are those of a dataset."""
        return self._export(folder) if self._export else super().export(folder)

    async def sent(self, task: Task[Recipe], messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with references replaced by their texts."""
        return tuple([await self._resolved(task, message) for message in messages])

    async def judge(
        self,
        task: Task[Recipe],
        answer: Reply | str,
        context: JudgeContext,  # noqa: ARG002
    ) -> Verdict:
        """The benchmark's own score; a score of 1 passes."""
        reply = answer.text if isinstance(answer, Reply) else answer
        _, answers = await self.library.about(task.payload)
        score, metrics = self._score(task, answers, reply)
        artifact, measured = await self.artifact(task, reply), dict(metrics)
        if score == 1:
            return Verdict("passed", score=score, metrics=measured, artifacts=artifact)
        return Verdict(
            "failed",
            "answer",
            f"score {score:.4g}",
            score=score,
            metrics=measured,
            artifacts=artifact,
        )

    async def artifact(self, task: Task[Recipe], reply: str) -> dict[str, Any]:
        """The record beside a verdict: the question, the answer, and the expected answer as JSON."""
        question, answers = await self.library.about(task.payload)
        expected = (
            answers.get("answer")
            if isinstance(answers, Mapping)
            else getattr(answers, "answer", answers)
        )
        return {"question": question, "answer": reply, "expected": json.dumps(expected)}

    async def _resolved(self, task: Task[Recipe], message: Message) -> Message:
        content = message["content"]
        if not (
            isinstance(content, list) and any(part.get("type") == REFERENCE for part in content)
        ):
            return message
        texts = []
        for part in content:
            if part.get("type") == REFERENCE:
                reading = await self.library.read(task.payload)
                texts.append(getattr(reading, part["of"])[part.get("start", 0) : part.get("end")])
            else:
                texts.append(part.get("text", ""))
        return {**message, "content": "".join(texts)}

    def simulate(self, messages: Sequence[Message], sampling: Any) -> str:
        """A reply of the simulated model, less often right for longer texts."""
        if messages[0]["role"] == "system":  # it has a session, and sees no text
            return self._player.play(messages)
        return self._player.reply(messages, sampling)


def recipe_digest(*parts: object) -> str:
    """A digest of the parts, 32 hex digits."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()[
        :32
    ]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
