"""One question about a text that a program holds, for `rlm.completion`, in an experiment of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.systems.long_context.contexts import NEEDS, LongContextSuite, Reading, Recipe, in_characters
from koderz.systems.long_context.simulated import Player
from koderz.types import Reply, Task, Verdict


@dataclass(frozen=True)
class Given:
    """A recipe for a text that is already in memory."""

    reading: Reading = field(repr=False)
    digest: str

    def make(self) -> tuple[Reading, Any]:
        return self.reading, None


class CompletionSuite(LongContextSuite):
    """A question about a text that a program holds, by rlm.completion: none that can be loaded.

    Its only task is the question. Nobody judges the answer.
    """

    listed = False
    answer = ""

    @classmethod
    def load(cls, source: SuiteSource) -> CompletionSuite:  # noqa: ARG003
        """Raises KoderzError."""
        raise KoderzError("the text of a completion is held by the program that asked for it, by rlm.completion(…)")

    async def judge(self, task: Task[Recipe], answer: Reply | str, context: JudgeContext) -> Verdict:  # noqa: ARG002
        """A verdict that passes any answer."""
        self.answer = answer.text if isinstance(answer, Reply) else answer
        return Verdict("passed", detail="an answer that nobody judges", artifacts={"answer": self.answer})


def completion_suite(context: str, question: str) -> CompletionSuite:
    """The suite of one question about a text."""
    reading = in_characters(context, question)
    digest = hashlib.sha256(f"{question}\0{context}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    task: Task[Recipe] = Task(
        f"completion/{digest[:8]}", payload=Given(reading, digest), needs=NEEDS, digest=digest, tokens=reading.tokens
    )
    return CompletionSuite("completion", "a text of the program that asks", (task,), _unscored, Player(_nothing))


def _unscored(_task: Task[Recipe], _answers: Any, _reply: str) -> tuple[float, Mapping[str, float]]:
    return 0.0, {}


def _nothing(_asked: str) -> list[str]:
    return []
