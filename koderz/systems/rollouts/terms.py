"""The terms on which a task is graded: the strictest ones on which its own solution passes.

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
from koderz.sandbox.images import ImageStore
from koderz.sandbox.workspace import CHANNEL_GUARDS, git
from koderz.sandbox.workspace.folders import scratch
from koderz.sandbox.workspace.guarding import GUARDS
from koderz.settings.paths import cache_folder
from koderz.settings.schema import Settings
from koderz.systems.rollouts.afresh import Terms, Work
from koderz.systems.rollouts.grading import grade_published, is_published_alone, run_believed
from koderz.systems.rollouts.machines import is_separate
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.runnable import Omission
from koderz.systems.rollouts.tasks import Rollout
from koderz.systems.rollouts.verifiers import Run
from koderz.systems.rollouts.workspaces import Stores, Workspace, at_once, open_backend
from koderz_tracker.files import write_whole

LIFTABLE = (*GUARDS, *CHANNEL_GUARDS, "reports", "assertions")
"""The guards that can be lifted for a task. The last two: pytest's own reports count, and tests turned round fail."""

PUBLISHED_ONLY = "its own solution passes only as published, so that no verdict on it is guarded"
_FORMAT = 2  # of what is kept, and of the guards that it speaks of

_Trial = Callable[[Terms], Awaitable[Run]]


async def terms_of(task: Rollout, stores: Stores, whole: Rollout | None = None) -> Terms:
    """The terms of a task, or of a step of the task `whole`. The strictest ones where it has no solution that passes.

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
    if found is None:
        return Terms(solution_fails=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, [msgspec.json.encode(found)], durable=False)
    return found


async def _tried(task: Rollout, whole: Rollout, stores: Stores) -> Terms | None:
    """The terms on which the solution passes; None if it doesn't."""
    store, backend = await stores.of(task), stores.backend_of(task)
    async with _solved(task, whole, stores) as work:
        if work is None:
            return None

        async def trial(terms: Terms) -> Run:
            return (await run_believed(task, work, store, backend, terms))[0]

        if found := await _strictest(trial):
            return found
        if work.place and not is_separate(task) and (await grade_published(task, work.place, backend)).success:
            return Terms("published")
    return None


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
        stores.left(task, diff)
        yield Work(diff, place, stores.artifacts_of(place))


async def _strictest(trial: _Trial) -> Terms | None:
    """The strictest terms that a trial passes on; None if there are none."""
    ways = [Terms(), Terms(carried="root"), Terms(lifted=LIFTABLE), Terms(carried="root", lifted=LIFTABLE)]
    for terms in ways:
        if passed := await _passes(trial, terms):
            break
    else:
        return None
    for guard in LIFTABLE if terms.lifted else ():
        fewer = replace(terms, lifted=tuple(each for each in terms.lifted if each != guard))
        if found := await _passes(trial, fewer):
            terms, passed = fewer, found
    tests = () if "reports" in terms.lifted else tuple(test for test, ok in passed.tests.items() if ok)
    return replace(terms, rewards=tuple(passed.rewards), tests=tests)


async def _passes(trial: _Trial, terms: Terms) -> Run | None:
    try:
        found = await trial(terms)
    except (Fault, git.GitError) as error:
        if isinstance(error, Fault) and error.cause == "sandbox":  # which says nothing of the solution
            raise
        return None
    return found if found.success and not found.doubt else None


def fresh_only(
    tasks: Sequence[Rollout], sandbox: str, images: ImageStore
) -> tuple[Sequence[Rollout], Sequence[Omission]]:
    """The tasks that can be graded afresh, and those that can't. Raises Fault where that can't be tried."""
    with ThreadPoolExecutor(1) as pool:  # since a loop may be running here
        alone = pool.submit(asyncio.run, _published_alone(tasks, sandbox, images)).result()
    left_out = [Omission(task.id, PUBLISHED_ONLY) for task in tasks if task.id in alone]
    return [task for task in tasks if task.id not in alone], left_out


async def _published_alone(tasks: Sequence[Rollout], sandbox: str, images: ImageStore) -> set[str]:
    async with open_backend(sandbox, Settings(sandbox=sandbox), images) as backend:
        stores = Stores({"": backend})
        return {task.id for task in tasks if await _is_published_alone(task, stores)}


async def _is_published_alone(task: Rollout, stores: Stores) -> bool:
    if task.instance:
        return await is_published_alone(task.instance, await stores.of(task), stores.backend_of(task))
    parts = [stage.task for stage in task.stages] or [task]
    return any([(await terms_of(part, stores, task)).graded == "published" for part in parts])
