"""How a solver reaches the world: what each handle that it may name in its signature does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from koderz.types import EXCLUSIVE, Message, Reply, Task, Verdict

if TYPE_CHECKING:
    from koderz.sandbox.workspace import Launch

SHARING = frozenset({"session", "workspace"})
"""The handles that a suite opens with what it has opened for the whole run."""

OPENED = SHARING | {"long_context", "evaluator"}
"""The handles that a suite opens for tasks that need them."""

NEEDED = OPENED | {EXCLUSIVE}
"""The handles that are handed only where a task needs them."""

HANDLES = NEEDED | {"task", "ask", "judge", "grade", "once", "rng", "prompts", "recall", "models"}
"""Every name by which a solver's signature may ask for a handle."""

Rerun = bool | Callable[[Any], Any]
"""Whether `once` runs its function in a replay too; or what it runs in its place, given the recorded value."""


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
        known_by: str = "",
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


class OnceHandle(Protocol):
    """How a solver makes something that can't be made again, see `Handles.once`."""

    async def __call__(self, name: str, fn: Callable[[], Any], *, rerun: Rerun = False) -> Any: ...


class LongText(Protocol):
    """A text and a question about it."""

    @property
    def context(self) -> str: ...

    @property
    def question(self) -> str: ...


class LongContextHandle(Protocol):
    """The text that a task is about, made when it is first asked for, and dropped when the experiment ends."""

    async def read(self) -> LongText:
        """The text itself."""
        ...

    async def facts(self) -> dict[str, Any]:
        """For the record: `digest`, `characters`, `tokens` of what the benchmark itself sends, `tokenizer`, …"""
        ...

    def part(self, of: str = "context", start: int = 0, end: int | None = None) -> dict[str, Any]:
        """Part of a message that stands for characters of the `context`, the `question` or the whole `input`.

        It is recorded as it is; the text takes its place when the message is sent.
        """
        ...


class WorkspaceHandle(Protocol):
    """A repository to work in. What is done there is recorded; a replay is handed the same without doing it.

    The results hold `output` and `status`, 0 where it went well, and `cause`, the limit that a command was ended for.
    """

    @property
    def workdir(self) -> str:
        """Where commands see the repository."""
        ...

    @property
    def seconds_left(self) -> float:
        """Of the time that the agent has."""
        ...

    async def shell(self, line: str, seconds: float = 600.0) -> dict[str, Any]:
        """Runs a line by bash."""
        ...

    async def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replaces the one place of a file that reads `old`; with no `old`, writes the file."""
        ...

    async def agent(self, launch: Callable[[], Launch]) -> dict[str, Any]:
        """Runs an agent for as long as it has time. Raises the fault that left it without answers.

        Its result also has `reused`, the replies that were on record, and what its bridge tells.
        """
        ...

    async def solve(self) -> dict[str, Any]:
        """Does what the task's own solution does. Raises Fault where it has none."""
        ...

    async def diff(self) -> dict[str, Any]:
        """What was changed: `{diff, too_large}`, and the `error` for which no diff can be taken, if there is one."""
        ...


class RecallHandle(Protocol):
    """How a solver asks for lessons: short texts, none where memory is off or has nothing to say."""

    async def __call__(self, verdict: Verdict) -> Sequence[str]: ...


async def no_recall(verdict: Verdict) -> Sequence[str]:  # noqa: ARG001 it is a RecallHandle
    """What a solver gets where memory is off: nothing, and nothing is put on record."""
    return ()
