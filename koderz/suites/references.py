"""No verdict on a task before the task's own reference has passed here.

A dataset may be broken, or ask for what this Python, this machine or these limits don't allow. Then no
answer can pass, and that is nobody's failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from koderz.errors import Fault
from koderz.sandbox import Sandbox
from koderz.sandbox.calibration import MachineCache
from koderz.sandbox.once import Once
from koderz.settings.paths import cache_folder
from koderz.suites import suite_digest
from koderz.suites.suite import JudgeContext, ProgramSuite, Suite
from koderz.types import Task

# seconds that a run waits for the references of its tasks; the rest are tried while it runs
HEAD_START = 5.0
_DETAIL = 300  # characters
# of a reference that the machine fails, or whose judges die, before that is held against it
_TRIALS = 3


class ReferenceFault(Fault):
    """The reference of a task doesn't pass the task's own tests here."""

    cause = "reference"


class References:
    """The references of a suite's tasks: a task may be judged only if its own passes. Tasks without one always may."""

    def __init__(self, suite: ProgramSuite, sandbox: Sandbox) -> None:
        self._suite, self._context = suite, JudgeContext(sandbox, suite.limits)
        limits = suite.limits
        made_with = (limits.timeout, limits.call_timeout, limits.memory_mb, sandbox.isolation)
        self._cache = MachineCache(cache_folder(), "references", suite_digest(suite), *made_with)
        known = self._cache.read()
        self._sound: set[str] = set(known) if isinstance(known, list) else set()  # digests of tasks
        self._written = len(self._sound)
        self._broken: dict[str, str] = {}
        self._once: Once[None] = Once()

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
    async def trying(
        self, tasks: Iterable[Task], notice: Callable[[str], None]
    ) -> AsyncIterator[None]:
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
        for _ in range(_TRIALS):
            try:
                verdict = await self._suite.judge_program(task, program, self._context)
            except Fault as fault:
                reason = str(fault)[:_DETAIL]
                continue
            if verdict.passed:
                self._sound.add(task.digest)
                return
            reason = f"{verdict.verdict} ({verdict.cause}) {' '.join(verdict.detail.split())[:_DETAIL]}".strip()
            # Where memory runs out, judges are killed over a sound program, too. Its task would be lost to the process.
            if verdict.cause != "killed":
                break
        self._broken[task.id] = f"reference fails here: {reason}"


def references_of(suite: Suite, sandbox: Sandbox) -> References | None:
    """The references of a suite, to be tried in the sandbox; None where it has none, or they are known to pass."""
    return (
        References(suite, sandbox)
        if isinstance(suite, ProgramSuite) and not suite.is_sound
        else None
    )
