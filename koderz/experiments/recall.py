"""The handle `recall`: lessons of earlier experiments for a solver that asks for them.

A solver knows of no store. It hands in the verdict on an attempt, and gets what experiments learnt that
failed alike; the answer is on record by `once`, so a replay is handed the very same. The store is asked as
it was when the run began, so neither the order in which experiments end nor a resume changes a prompt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from koderz.errors import Fault, KoderzError
from koderz.settings.schema import Settings
from koderz.solvers.definition import RecallHandle, no_recall
from koderz.types import Task, Verdict

if TYPE_CHECKING:
    from koderz.experiments.replay import Handles
    from koderz.plans.plan import Plan

Lessons = Callable[[Task, str, str], Awaitable[Sequence[str]]]
"""Looks up the lessons for a task and the cause of a failure, in a named arm."""


def recall_for(handles: Handles, lessons: Lessons | None) -> RecallHandle:
    """Makes the `recall` of one experiment."""
    if lessons is None:
        return no_recall

    async def recall(verdict: Verdict) -> Sequence[str]:
        task, arm = handles.identity.task, handles.identity.arm.name
        cause = verdict.cause or verdict.verdict
        found: list[str] = await handles.once("lessons", lambda: lessons(task, cause, arm))
        return found

    return recall


async def memory_details(
    settings: Settings, recalls: bool, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The details of a plan about memory: the store's present moment. Empty if memory is off.

    Raises KoderzError where no solver of the run recalls anything (`recalls`), or the store can't be read.
    """
    if settings.use_memory == "off":
        return {}
    if not recalls:
        raise KoderzError(
            "--use-memory: nothing in this run recalls anything; use --mode iterative or comparative, "
            "or a solver that names `recall`"
        )
    if settings.memory_live:
        return {}
    from koderz_tracker.memory import open_cortex, store_path

    path = store_path(settings.results, environ)
    if not path.exists():
        return {"memory": {"last_id": 0, "time": ""}}
    async with open_cortex(path, create=False, environ=environ) as cortex:
        return {"memory": asdict(await cortex.snapshot())}


@asynccontextmanager
async def open_lessons(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[Lessons | None]:
    """Opens the lessons of a plan's store; None if memory is off."""
    settings = plan.settings
    snapshot = plan.record.basis.memory
    if settings.use_memory == "off" or (snapshot and not snapshot.last_id):
        yield None
        return
    from koderz_tracker.memory.cortex import Snapshot, open_cortex, store_path
    from koderz_tracker.memory.database import StoreDown

    until = Snapshot(snapshot.last_id, snapshot.time) if snapshot else None
    same_task = settings.use_memory == "same-task"
    path = store_path(settings.results, environ)
    async with open_cortex(path, create=settings.memory_live, environ=environ) as cortex:

        async def lessons(task: Task, cause: str, arm: str) -> Sequence[str]:
            how: dict[str, Any] = {
                "simulated": plan.record.is_simulated(arm),
                "statement": task.prompt,
            }
            try:
                return await cortex.recall_lessons(
                    task.id, cause, same_task=same_task, until=until, **how
                )
            except StoreDown as error:
                raise Fault(str(error), cause="unreachable") from error

        yield lessons
