"""No verdict on a task before the task's own reference has passed here.

A dataset may be broken, or ask for what this Python, this machine or these limits don't allow. Then no
answer can pass, and that is nobody's failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, cast

from koderz.errors import Fault
from koderz.paths import cache_folder
from koderz.sandbox import Sandbox
from koderz.sandbox.calibration import MachineCache
from koderz.sandbox.once import Once
from koderz.suites import ProgramSuite, Suite, suite_digest
from koderz.types import Judging, Task, Verdict

HEAD_START = 5.0  # seconds that a run waits for the references of its tasks; the rest are tried while it runs
_DETAIL = 300  # characters


class ReferenceFault(Fault):
    """The reference of a task doesn't pass the task's own tests here."""

    cause = "reference"


class CheckedSuite:
    """A suite, of which each task is judged only if its reference passes. Tasks without one aren't checked."""

    def __init__(self, suite: ProgramSuite, sandbox: Sandbox, how: Judging) -> None:
        self.name, self.source, self.tasks = suite.name, suite.source, suite.tasks
        self._suite, self._sandbox, self._how = suite, sandbox, how
        limits = (how.timeout, how.call_timeout, how.memory_mb, sandbox.isolation)
        self._cache = MachineCache(cache_folder(), "references", suite_digest(suite), *limits)
        known = self._cache.read()
        self._sound: set[str] = set(known) if isinstance(known, list) else set()  # digests of tasks
        self._written = len(self._sound)
        self._broken: dict[str, str] = {}
        self._once: Once[None] = Once()
        self.messages, self.reference = suite.messages, suite.reference

        @wraps(suite.judge)  # whose signature says whether it asks a model
        async def judge(task: Task, *given: Any, **asking: Any) -> Verdict:
            """ReferenceFault where the task can't be judged here."""
            await self.require(task)
            return await suite.judge(task, *given, **asking)

        self.judge = judge

    def __getattr__(self, name: str) -> Any:
        """What else the suite has: its limits, measures and the like."""
        return getattr(self._suite, name)

    async def judge_program(
        self, task: Task, program: str, sandbox: Sandbox, how: Judging, *, line_offset: int = 0
    ) -> Verdict:
        """ReferenceFault likewise."""
        await self.require(task)
        return await self._suite.judge_program(task, program, sandbox, how, line_offset=line_offset)

    async def require(self, task: Task) -> None:
        """Returns if the reference passes, which is tried once. Raises ReferenceFault otherwise."""
        if task.digest not in self._sound and task.id not in self._broken:
            await self._once(task.id.encode(), lambda: self._try(task))
        if reason := self.broken(task):
            raise ReferenceFault(reason)

    def broken(self, task: Task) -> str:
        """Why the task can't be judged, as far as is known by now; empty where nothing is wrong with it."""
        return self._broken.get(task.id, "")

    @asynccontextmanager
    async def trying(self, tasks: Iterable[Task], notice: Callable[[str], None]) -> AsyncIterator[None]:
        """Tries the references of `tasks`, for a while before what is inside begins, then beside it.

        `notice` is told of each that doesn't pass.
        """
        trial = asyncio.create_task(self._try_all(tasks, notice))
        try:
            await asyncio.wait({trial}, timeout=HEAD_START)
            yield
        finally:
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
            await self._once.cancel()
            self.remember()

    def remember(self) -> None:
        """Keeps what has passed, so that it isn't tried again. What is broken may be repaired by the next time."""
        if len(self._sound) > self._written:
            self._cache.write(sorted(self._sound))
            self._written = len(self._sound)

    async def _try_all(self, tasks: Iterable[Task], notice: Callable[[str], None]) -> None:
        async def one(task: Task) -> None:
            try:
                await self.require(task)
            except ReferenceFault as fault:
                notice(f"{task.id} can't be judged, and its experiments end as faults: {fault}")

        await asyncio.gather(*map(one, tasks))

    async def _try(self, task: Task) -> None:
        program = self._suite.reference(task)
        if not program:
            return
        try:
            verdict = await self._suite.judge_program(task, program, self._sandbox, self._how)
        except Fault as fault:
            reason = str(fault)[:_DETAIL]
        else:
            if verdict.passed:
                self._sound.add(task.digest)
                return
            reason = f"{verdict.verdict} ({verdict.cause}) {' '.join(verdict.detail.split())[:_DETAIL]}".strip()
        self._broken[task.id] = f"reference fails here: {reason}"


def checked(suite: Suite, sandbox: Sandbox, how: Judging) -> CheckedSuite | None:
    """The suite with its references tried first; None where it has none, or they are known to pass."""
    if getattr(suite, "is_sound", False) or not hasattr(suite, "reference"):
        return None
    return CheckedSuite(cast("ProgramSuite", suite), sandbox, how)
