"""How a solver reaches the world: what each handle that it may name in its signature does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from koderz.types import Message, Reply, Task, Verdict


class AskHandle(Protocol):
    """How a solver asks a model, see `Handles.ask`."""

    async def __call__(
        self,
        messages: Sequence[Message],
        model: str | None = None,
        purpose: str = "attempt",
        *,
        depth: int = 0,
        parent: int | None = None,
        **sampling: Any,
    ) -> Reply: ...


class JudgeHandle(Protocol):
    """How a solver has an answer judged, see `Handles.judge`."""

    async def __call__(self, task: Task, answer: Reply | str) -> Verdict: ...


class GradeHandle(Protocol):
    """How a solver scores one of many items, see `Handles.grade`."""

    async def __call__(self, item: str, score: float, **metrics: float | str) -> float: ...


class ExclusiveHandle(Protocol):
    """How a solver measures: within `async with exclusive() as core`, nothing else is measured on the machine.

    `core` is the one that koderz keeps off, to be given to what is measured; None where the machine has but one.
    """

    def __call__(self) -> AbstractAsyncContextManager[int | None]: ...


class RecallHandle(Protocol):
    """How a solver asks for lessons: short texts, none where memory is off or has nothing to say."""

    async def __call__(self, verdict: Verdict) -> Sequence[str]: ...


async def no_recall(verdict: Verdict) -> Sequence[str]:  # noqa: ARG001 it is a RecallHandle
    """What a solver gets where memory is off: nothing, and nothing is put on record."""
    return ()
