"""Opens the handles that an experiment's task needs, for as long as the experiment is worked on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from koderz.errors import Fault, KoderzError, StorageError, UserCodeFault
from koderz.sandbox.workspace.folders import scratch
from koderz.solvers.handles import NEEDED, OPENED
from koderz.suites.suite import Concluding, ExperimentContext, WorkspaceContext
from koderz.types import EXCLUSIVE

if TYPE_CHECKING:
    from koderz.experiments.replay import Handles
    from koderz.experiments.runner import Resources
    from koderz.sandbox.exclusive import Exclusive
    from koderz.settings.schema import Settings
    from koderz.suites.suite import Suite
    from koderz.types import Task


@asynccontextmanager
async def opened(resources: Resources, handles: Handles) -> AsyncIterator[dict[str, Any]]:
    """The opened handles that the task needs and the solver asks for, by name. Raises Fault if one can't be opened."""
    identity, suite = handles.identity, resources.plan.suite
    names = NEEDED & identity.task.needs & identity.arm.solver.wants
    given = (identity.task, handles, resources.plan.settings, resources.shared)
    async with AsyncExitStack() as stack:
        found: dict[str, Any] = {}
        if EXCLUSIVE in names:
            assert resources.exclusive, "the engine says that it can"
            found[EXCLUSIVE] = partial(_turn, handles, resources.exclusive)
        for name in sorted(names & OPENED):
            try:
                found[name] = await stack.enter_async_context(_opening(name, suite, given, stack))
            except (Fault, StorageError):
                raise
            except Exception as error:  # a suite may be anybody's code
                what = f"the {name} of {identity.task.id} can't be opened: {type(error).__name__}: {error}"
                if isinstance(error, KoderzError):
                    raise Fault(what, cause="unprepared") from error
                raise UserCodeFault(what) from error
        yield found


async def concluded(solving: Awaitable[Any], opened_handles: Mapping[str, Any]) -> tuple[Any, bool]:
    """The result of the solver, and whether an opened handle produced it instead of the solver itself."""
    for handle in opened_handles.values():
        if isinstance(handle, Concluding):
            return await handle.conclude(solving), True
    return await solving, False


@asynccontextmanager
async def _turn(handles: Handles, exclusive: Exclusive) -> AsyncIterator[int | None]:
    """Enters the engine's `exclusive`; the time spent waiting doesn't count in a replay."""
    async with AsyncExitStack() as stack:
        with handles.waiting():
            core = await stack.enter_async_context(exclusive())
        yield core


def _opening(
    name: str, suite: Suite, given: tuple[Task, Handles, Settings, Any], stack: AsyncExitStack
) -> AbstractAsyncContextManager[Any]:
    if name == "workspace":
        return suite.open_workspace(WorkspaceContext(*given, stack.enter_context(scratch())))
    openers = {
        "session": suite.open_session,
        "evaluator": suite.open_evaluator,
        "long_context": suite.open_long_context,
    }
    return openers[name](ExperimentContext(*given))
