"""The handles that a solver may name in its signature, by which it reaches models, judge and task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Whether `once` runs its function in a replay too; or a function to run instead, given the recorded value."""


class AskHandle(Protocol):
    """Asks a model, see `Handles.ask`."""

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
    """Judges an answer, see `Handles.judge`."""

    async def __call__(self, task: Task, answer: Reply | str) -> Verdict: ...


class GradeHandle(Protocol):
    """Records the score of one of many items, see `Handles.grade`."""

    async def __call__(self, item: str, score: float, **metrics: float | str) -> float: ...


class ExclusiveHandle(Protocol):
    """Reserves the machine: within `async with exclusive() as core`, nothing else is measured on it.

    `core` is the one that koderz keeps off, to be given to what is measured; None where the machine has but one.
    """

    def __call__(self) -> AbstractAsyncContextManager[int | None]: ...


class OnceHandle(Protocol):
    """Makes a result that can't be made again, and records it, see `Handles.once`."""

    async def __call__(self, name: str, fn: Callable[[], Any], *, rerun: Rerun = False) -> Any: ...


class LongText(Protocol):
    """A text and a question about it."""

    @property
    def context(self) -> str: ...

    @property
    def question(self) -> str: ...


class LongContextHandle(Protocol):
    """The text that a task is about, made on first use and dropped when the experiment ends."""

    async def read(self) -> LongText:
        """The text itself."""
        ...

    async def facts(self) -> dict[str, Any]:
        """Facts for the record: `digest`, `characters`, `tokens` that the benchmark itself sends, `tokenizer`, …"""
        ...

    def part(self, of: str = "context", start: int = 0, end: int | None = None) -> dict[str, Any]:
        """A message part that stands for characters of the `context`, the `question` or the whole `input`.

        It is recorded as it is; the text takes its place when the message is sent.
        """
        ...


class WorkspaceHandle(Protocol):
    """A repository to work in. All work is recorded; a replay returns the records without doing it again.

    The results hold `output` and `status`, 0 where it went well, and `cause`, the limit that a command was ended for.
    """

    message: str
    """The agent's last message, which its solver says here for a judge of expectations."""

    @property
    def workdir(self) -> str:
        """The path of the repository as commands see it."""
        ...

    @property
    def seconds_left(self) -> float:
        """The seconds that the agent has left."""
        ...

    @property
    def additions(self) -> Sequence[Any]:
        """Skills, servers and texts that the agent is given beyond its task; `mounted` has their paths for commands."""
        ...

    async def shell(self, line: str, seconds: float = 600.0) -> dict[str, Any]:
        """Runs a line in bash."""
        ...

    def tools(self) -> AbstractAsyncContextManager[Mapping[str, Mapping[str, Any]]]:
        """The tools of MCP servers among the additions, as functions that a model is offered, by name."""
        ...

    async def call(
        self, tool: str, arguments: Mapping[str, Any], seconds: float = 600.0
    ) -> dict[str, Any]:
        """Calls one of these tools while their context is open."""
        ...

    async def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replaces the only occurrence of `old` in a file; with no `old`, writes the file."""
        ...

    async def agent(self, launch: Callable[[], Launch]) -> dict[str, Any]:
        """Runs an agent until its time is up. Raises the fault that left it without answers.

        Its result also has `reused`, the replies that were on record, and what its bridge tells.
        """
        ...

    async def solve(self) -> dict[str, Any]:
        """Applies the task's own solution. Raises Fault if there is none."""
        ...

    async def begin(self, stage: Any) -> dict[str, Any]:
        """Prepares a step of the task, on which the agent works from then on; `wrong` says why it can't be begun."""
        ...

    async def diff(self) -> dict[str, Any]:
        """The changes so far: `{diff, too_large}`, and the `error` if no diff can be taken."""
        ...


class RecallHandle(Protocol):
    """Looks up lessons: short texts, none if memory is off or has none."""

    async def __call__(self, verdict: Verdict) -> Sequence[str]: ...


async def no_recall(verdict: Verdict) -> Sequence[str]:  # noqa: ARG001 it is a RecallHandle
    """Returns no lessons and records nothing; used if memory is off."""
    return ()
