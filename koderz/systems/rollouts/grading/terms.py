"""The terms on which a task is graded: the strictest ones on which its own solution passes, or gets some reward.

Before a task is first used its solution is tried under all guards. A guard under which it can't pass is lifted for that
task alone. Where it passes only as published, the task is graded so. What was found is kept by the task's digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import CHANNEL_GUARDS
from koderz.settings.paths import cache_folder
from koderz.settings.schema import Settings
from koderz.systems.rollouts.grading import (
    Published,
    grade_published,
    is_published_alone,
    run_believed,
)
from koderz.systems.rollouts.grading.verifiers import VerifierRun
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.runnable import Omission
from koderz.systems.rollouts.workspaces.afresh import Solution, Terms, Work
from koderz.systems.rollouts.workspaces.machines import is_separate
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once, open_backend
from koderz.systems.workspaces import git
from koderz.systems.workspaces.guarding import GUARDS
from koderz.systems.workspaces.images import ImageStore
from koderz_tracker.files import write_whole

LIFTABLE = (*GUARDS, *CHANNEL_GUARDS, "reports", "assertions")
"""The guards that can be lifted for a task. The last two: pytest's own reports count, and tests turned round fail."""

PUBLISHED_ONLY = "its own solution passes only as published, so that no verdict on it is guarded"
_FORMAT = 2  # of what is kept, and of the guards that it speaks of

_Trial = Callable[[Terms], Awaitable[VerifierRun]]


async def terms_of(task: Rollout, stores: Stores, whole: Rollout | None = None) -> Terms:
    """The terms of a task, or of a step of the task `whole`. The strictest ones where it has no rewarded solution.

    Raises Fault if the sandbox can't run it.
    """
    if task.verifier is None or task.solution is None or not task.solution.is_file():
        return Terms()
    made = f"-{task.made.name.rpartition(':')[2]}" if task.made else ""
    name = f"{task.digest}{made}-{stores.backend_of(task).name}"
    return await stores.terms(name.encode(), lambda: _found(task, whole or task, stores, name))


async def _found(task: Rollout, whole: Rollout, stores: Stores, name: str) -> Terms:
    kept = cache_folder() / "terms" / f"{name}-{_FORMAT}.json"
    try:
        return msgspec.json.decode(kept.read_bytes(), type=Terms)
    except (OSError, msgspec.MsgspecError):
        found = await _tried(task, whole, stores)
    if found.solution != "passed":  # which may do better another time
        return found
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, [msgspec.json.encode(found)], durable=False)
    return found


async def _tried(task: Rollout, whole: Rollout, stores: Stores) -> Terms:
    """The terms on which the solution passes, or else gets some reward; the strictest ones if it gets none."""
    store, backend = await stores.of(task), stores.backend_of(task)
    async with _solved(task, whole, stores) as work:
        if work is None:
            return Terms(solution="failed")

        async def trial(terms: Terms) -> VerifierRun:
            return (await run_believed(task, work, store, backend, terms))[0]

        found = await _strictest(trial)
        if found.solution != "passed" and work.place and not is_separate(task):
            published = await grade_published(task, work.place, backend)
            if published.success:
                return Terms("published", solution="passed")
            if found.solution == "failed" and _is_rewarded(published):
                return Terms("published", solution="in part")
    return found


@asynccontextmanager
async def _solved(task: Rollout, whole: Rollout, stores: Stores) -> AsyncIterator[Work | None]:
    """The work of a task's own solution, up to the step that is the task; None if it can't be begun."""
    with scratch() as place:
        workspace = Workspace(whole, stores, place, at_once, RolloutsOptions())
        for stage in whole.stages:
            if (await workspace.begin(stage))["wrong"]:
                yield None
                return
            if stage.task.digest == task.digest:
                break
            await workspace.solve()
        await workspace.solve()
        diff = str((await workspace.diff())["diff"])
        yield Work(diff, place, workspace.collected)


async def _strictest(trial: _Trial) -> Terms:
    """The strictest terms on which a trial passes, or else gets some reward; the usual ones if it gets none."""
    ways = [
        Terms(),
        Terms(carried="root"),
        Terms(lifted=LIFTABLE),
        Terms(carried="root", lifted=LIFTABLE),
    ]
    rewarded: list[tuple[Terms, VerifierRun]] = []
    for terms in ways:
        run = await _believed(trial, terms)
        if run and run.success:
            return await _lifting_least(trial, terms, run)
        if run and _is_rewarded(run):
            rewarded.append((terms, run))
    return await _lifting_least(trial, *rewarded[0]) if rewarded else Terms(solution="failed")


async def _lifting_least(trial: _Trial, terms: Terms, run: VerifierRun) -> Terms:
    """The terms with no more guards lifted than the trial needs to pass, or else to get some reward."""
    has_passed = run.success
    for guard in LIFTABLE if terms.lifted else ():
        fewer = replace(terms, lifted=tuple(each for each in terms.lifted if each != guard))
        found = await _believed(trial, fewer)
        if found and (found.success or (_is_rewarded(found) and not has_passed)):
            terms, run = fewer, found
    tests = () if "reports" in terms.lifted else tuple(test for test, ok in run.tests.items() if ok)
    solution: Solution = "passed" if run.success else "in part"
    return replace(terms, rewards=tuple(run.rewards), tests=tests, solution=solution)


def _is_rewarded(run: VerifierRun | Published) -> bool:
    return any(reward > 0 for reward in run.rewards.values())


async def _believed(trial: _Trial, terms: Terms) -> VerifierRun | None:
    """The run of a trial; None if it can't be made, or its reward isn't believed."""
    try:
        found = await trial(terms)
    except (Fault, git.GitError) as error:
        # a fault of the sandbox says nothing of the solution
        if isinstance(error, Fault) and error.cause == "sandbox":
            raise
        return None
    return None if found.doubt else found


def fresh_only(
    tasks: Sequence[Rollout], sandbox: str, options: RolloutsOptions
) -> tuple[Sequence[Rollout], Sequence[Omission]]:
    """The tasks that can be graded afresh, and those that can't. Raises Fault where that can't be tried."""
    tasks = options.placed(tasks, sandbox)
    with ThreadPoolExecutor(1) as pool:  # since a loop may be running here
        alone = pool.submit(
            asyncio.run, _published_alone(tasks, sandbox, ImageStore(options.images))
        ).result()
    left_out = [Omission(task.id, PUBLISHED_ONLY) for task in tasks if task.id in alone]
    return [task for task in tasks if task.id not in alone], left_out


async def _published_alone(tasks: Sequence[Rollout], sandbox: str, images: ImageStore) -> set[str]:
    found = set[str]()
    async with open_backend(sandbox, Settings(sandbox=sandbox), images) as backend:
        stores = Stores({"": backend})
        for task in tasks:
            if task.instance:
                is_alone = await is_published_alone(task, task.instance, stores)
            else:
                parts = [stage.task for stage in task.stages] or [task]
                is_alone = "published" in [
                    (await terms_of(part, stores, task)).graded for part in parts
                ]
            if is_alone:
                found.add(task.id)
    return found
