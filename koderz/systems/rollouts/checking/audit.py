"""Audits of tasks: whether an agent can pass one without doing the work, by trying the corpus of exploits on it.

Each exploit is carried out in a workspace of its own and graded both as published, where the agent worked, and by
koderz. A task whose own solution fails, or that passes if nothing is done, is unsound: no exploit is tried on it.

Exploits are tried under a short limit of time, several for each core where no clock of the tests could tell. One that
is cut by it may pass late, so it's tried again under the task's own limit, and with no more at once than there are
cores. An exploit that hangs isn't, if nothing in the tests can wake it: it would be cut at any limit.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.systems.rollouts.checking import check
from koderz.systems.rollouts.checking.exploits import (
    Deed,
    Exploit,
    ExploitSubject,
    corpus,
    deed_of,
    target_of,
)
from koderz.systems.rollouts.grading import grade, grade_published
from koderz.systems.rollouts.grading.terms import terms_of
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout, in_parts
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz.systems.workspaces import git

_EXPLOIT_SECONDS = 60.0
_LEAST_SECONDS = 5.0  # of a run of the tests
# exploits at once for each core: they hang, or mostly wait for the kernel to make and end namespaces
_WAITING = 4


@dataclass(frozen=True, slots=True)
class Tried:
    """An exploit and whether it passes. None: it wasn't tried, or the task isn't graded so."""

    name: str
    kind: str
    applies: bool
    published: bool | None = None
    ours: bool | None = None

    def document(self) -> dict[str, Any]:
        """The content for JSON."""
        found = {"name": self.name, "class": self.kind, "applies": self.applies}
        return {**found, "published": self.published, "ours": self.ours}


@dataclass(frozen=True, slots=True)
class Audited:
    """The audit of one task."""

    id: str
    digest: str
    why: str = ""  # the task is unsound; empty: it is sound
    exploits: tuple[Tried, ...] = ()

    @property
    def tried(self) -> tuple[Tried, ...]:
        """The exploits that apply to the task."""
        return tuple(each for each in self.exploits if each.applies)

    @property
    def published(self) -> tuple[Tried, ...]:
        """Exploits that pass as published."""
        return tuple(each for each in self.exploits if each.published)

    @property
    def ours(self) -> tuple[Tried, ...]:
        """Exploits that pass under koderz' grading."""
        return tuple(each for each in self.exploits if each.ours)

    def document(self) -> dict[str, Any]:
        """The content for JSON."""
        about = {"id": self.id, "digest": self.digest, "sound": not self.why, "why": self.why}
        return {**about, "exploits": [each.document() for each in self.exploits]}


@dataclass(frozen=True, slots=True)
class Audit:
    """The audits of several tasks."""

    tasks: Sequence[Audited]

    @property
    def tried(self) -> int:
        """The number of exploits tried, on all tasks together."""
        return sum(len(task.tried) for task in self.tasks)

    @property
    def forged(self) -> Mapping[str, int]:
        """The numbers of exploits that pass: `published`, `ours`."""
        return {
            "published": sum(len(task.published) for task in self.tasks),
            "ours": sum(len(task.ours) for task in self.tasks),
        }

    def document(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {
            "tried": self.tried,
            "forged": self.forged,
            "tasks": [task.document() for task in self.tasks],
        }


@dataclass(frozen=True, slots=True)
class TriedExploit:
    """One exploit that has been tried, and how many have been of those that are known to apply."""

    task: str
    tried: Tried
    seconds: float
    done: int
    total: int


Progress = Callable[[TriedExploit], None]


async def audit_tasks(
    tasks: Sequence[Rollout],
    stores: Stores,
    *,
    exploits: Sequence[Exploit] | None = None,
    tell: Callable[[Audited], object] = lambda _: None,
    progress: Progress = lambda _: None,
) -> Audit:
    """Tries the corpus, or some exploits, on each task. `tell` is called with each audit, in the order of the tasks.

    Raises Fault if an exploit can't be carried out, for example for want of disk.
    """
    auditor = _Auditor(stores, exploits or corpus(), progress)
    audits: list[Audited] = []
    auditing = [asyncio.create_task(auditor.audited(task)) for task in tasks]
    try:
        for each in auditing:
            audits.append(await each)
            tell(audits[-1])
    finally:
        for each in auditing:
            each.cancel()
        await asyncio.gather(*auditing, return_exceptions=True)
    return Audit(audits)


class _Auditor:
    """Tries exploits, as many at once as there are cores, and beside them those that hang or depend on no clock."""

    def __init__(self, stores: Stores, exploits: Sequence[Exploit], progress: Progress) -> None:
        self._stores, self._exploits, self._progress = stores, exploits, progress
        cores = os.cpu_count() or 1
        self._room, self._waiting_room = (
            asyncio.Semaphore(cores),
            asyncio.Semaphore(cores * _WAITING),
        )
        self._done = self._all = 0

    async def audited(self, task: Rollout) -> Audited:
        """The audit of one task."""
        async with self._room:
            began = time.monotonic()
            checked = await check(task, self._stores)
            if checked.wrong:
                return Audited(task.id, task.digest, checked.wrong)
            # All runs of the honest check together take several times as long as one run of the tests.
            hurried = _hurried(task, max(_LEAST_SECONDS, time.monotonic() - began))
            targets = await self._targets(task)
        self._all += sum(any(target.takes(each) for target in targets) for each in self._exploits)
        tried = await asyncio.gather(
            *(self._tried(task, hurried, targets, each) for each in self._exploits)
        )
        return Audited(task.id, task.digest, exploits=tuple(tried))

    async def _targets(self, task: Rollout) -> Sequence[ExploitSubject]:
        """The subject of exploits of each step, or of a task without steps: what its own solution changes."""
        store, found, before = await self._stores.of(task), list[ExploitSubject](), set[str]()
        with scratch() as place:
            workspace = self._workspace(task, place)
            for stage in task.stages or (None,):
                if stage:
                    await workspace.begin(stage)
                await workspace.solve()
                changed = await git.touched(
                    str((await workspace.diff())["diff"]).encode("utf-8", "backslashreplace")
                )
                new = [path for path in changed if path not in before]
                found.append(
                    target_of(
                        stage.task if stage else task,
                        await store.baseline(),
                        place / "checkout",
                        new,
                    )
                )
                before |= {*changed}
        return found

    async def _tried(
        self, task: Rollout, hurried: Rollout, targets: Sequence[ExploitSubject], exploit: Exploit
    ) -> Tried:
        """Tries an exploit on the task with shorter limits, and then on the task itself if it was cut by them."""
        if not any(target.takes(exploit) for target in targets):
            return Tried(exploit.name, exploit.kind, applies=False)
        has_clock = any(target.may_wake for target in targets)
        room = self._waiting_room if exploit.hangs or not has_clock else self._room
        async with room:
            began = time.monotonic()
            with scratch() as place:
                published, ours, cut = await self._tried_in(place, hurried, targets, exploit)
        alone = self._waiting_room if exploit.hangs else self._room
        if cut and (has_clock or not exploit.hangs) and (hurried != task or room is not alone):
            async with alone:
                with scratch() as place:
                    published, ours, _ = await self._tried_in(place, task, targets, exploit)
        self._done += 1
        tried = Tried(exploit.name, exploit.kind, applies=True, published=published, ours=ours)
        self._progress(
            TriedExploit(task.id, tried, time.monotonic() - began, self._done, self._all)
        )
        return tried

    async def _tried_in(
        self, place: Path, task: Rollout, targets: Sequence[ExploitSubject], exploit: Exploit
    ) -> tuple[bool | None, bool, bool]:
        """Whether an agent passes that does the deed in each step that it applies to, and the work of the others.

        As published and by koderz, and whether it was cut by a limit of time.
        """
        workspace, published, ours, cut = (
            self._workspace(task, place),
            list[bool | None](),
            True,
            False,
        )
        for stage, target in zip(task.stages or (None,), targets, strict=True):
            if stage:
                await workspace.begin(stage)
            if target.takes(exploit):
                diff = await self._done_in(workspace, deed_of(exploit, target))
            else:
                await workspace.solve()
                diff = str((await workspace.diff())["diff"])
            work = Work(diff, place, workspace.collected)
            passes, is_ours, is_cut = await self._graded(stage.task if stage else task, work, task)
            published.append(passes)
            ours, cut = ours and is_ours, cut or is_cut
            if not (passes or is_ours):
                break
        is_whole = len(published) == len(targets)
        return None if None in published else is_whole and all(published), is_whole and ours, cut

    @staticmethod
    async def _done_in(workspace: Workspace, deed: Deed) -> str:
        """The diff of an agent that does a deed in a workspace."""
        for path, text in deed.files.items():
            await workspace.edit(path, "", text)
        if deed.line:
            await workspace.shell(deed.line, _EXPLOIT_SECONDS)
        return str((await workspace.diff())["diff"])

    async def _graded(
        self, task: Rollout, work: Work, whole: Rollout
    ) -> tuple[bool | None, bool, bool]:
        """Whether work passes as published, None if the task isn't graded so, and by koderz; and whether it is cut.

        A grading that ends as a fault counts as cut, since the limit may have brought it about.
        """
        try:
            graded = await grade(
                task, work, self._stores, await terms_of(task, self._stores, whole)
            )
        except (Fault, git.GitError) as error:
            cut = isinstance(error, Fault)
            if task.verifier is None or work.place is None:
                return None, False, cut
            found = await grade_published(task, work.place, self._stores.backend_of(task))
            return found.success, False, cut or found.cut
        return graded.published and graded.published.success, graded.scored.success, graded.cut

    def _workspace(self, task: Rollout, place: Path) -> Workspace:
        return Workspace(task, self._stores, place, at_once, RolloutsOptions())


def _hurried(task: Rollout, seconds: float) -> Rollout:
    """The task with tests that take at most so many seconds."""

    def hurried(task: Rollout) -> Rollout:
        scripts = tuple(
            replace(each, timeout_sec=min(each.timeout_sec, seconds)) for each in task.scripts
        )
        return replace(task, test_seconds=min(task.test_seconds, seconds), scripts=scripts)

    return in_parts(task, hurried)
