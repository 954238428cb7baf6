"""What a task needs is opened for its experiment, handed by name, and closed at its end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from koderz.solvers import load_solver
from koderz.suites.suite import ExperimentContext, JudgeContext, WorkspaceContext
from koderz.testing import a_model
from koderz.types import Reply, Task, Verdict
from koderz_tracker.journal import NAME
from tests.koderz.world import Run, Words, begun, planned, resumed


@dataclass
class Workshop(Words):
    """Words whose tasks have a session and a workspace."""

    events: list[str] = field(default_factory=list)
    breaks: BaseException | None = None

    @asynccontextmanager
    async def open_session(self, context: ExperimentContext) -> AsyncIterator[list[str]]:
        if self.breaks:
            raise self.breaks
        drawn = await context.handles.once("session", lambda: secrets.token_hex(4))
        self.events.append(f"open {context.task.id} {drawn}")
        yield self.events
        self.events.append(f"close {context.task.id}")

    @asynccontextmanager
    async def open_workspace(self, context: WorkspaceContext) -> AsyncIterator[Path]:
        (context.folder / "file").write_text("x")
        yield context.folder

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        self.events.append(f"judge {context.workspace}")
        return await super().judge(task, answer, context)


SOURCE = """
async def solve(task, ask, judge, session, workspace, recall=None):
    assert (workspace / "file").read_text() == "x"
    session.append(str(workspace))
    return await judge(task, await ask(task.messages))

async def plain(task, ask, judge, session=None):
    assert session is None
    return await judge(task, await ask(task.messages))
"""


def workshop(
    folder: Path, solver: str, *needs: str, breaks: BaseException | None = None, before: Run | None = None
) -> tuple[Run, Workshop]:
    (folder / "own.py").write_text(SOURCE)

    async def go() -> tuple[Run, Workshop]:
        # The plan is made of tasks that need no more than a judge, and has others put in their place.
        plan = await planned(folder, 1, solver=f"{folder}/own.py:plain")
        tasks = tuple(replace(task, needs=task.needs | set(needs)) for task in plan.tasks)
        suite = Workshop(tasks, breaks=breaks)
        own = load_solver(f"{folder}/own.py:{solver}", {}, {})
        arms = tuple(replace(arm, solver=own) for arm in plan.arms)
        plan = replace(plan, tasks=tasks, suite=suite, arms=arms)
        if before:
            return await resumed(before.folder, replace(plan, record=before.lines[0]), a_model("GOOD")), suite  # type: ignore[arg-type]
        return await begun(plan, a_model("GOOD")), suite

    return asyncio.run(go())


def test_session_and_workspace_last_as_long_as_the_experiment(tmp_path: Path) -> None:
    run, suite = workshop(tmp_path, "solve", "session", "workspace")

    assert run.ended.status == "complete"
    opened, workspace, judged, closed = suite.events
    assert (opened[:9], judged, closed) == ("open T/0 ", f"judge {workspace}", "close T/0")
    assert not Path(workspace).exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no room"), "the session of T/0 can't be opened: OSError: no room"),
        (SystemExit(3), "the solver raised SystemExit: 3"),  # which would end the run
    ],
    ids=["error", "exit"],
)
def test_opener_that_fails_is_a_fault_that_says_so(tmp_path: Path, error: BaseException, reason: str) -> None:
    run, _ = workshop(tmp_path, "solve", "session", "workspace", breaks=error)

    (fault,) = run.of("fault")
    assert fault.reason == reason


def test_opener_goes_through_once_so_that_a_replay_is_handed_the_same(tmp_path: Path) -> None:
    run, suite = workshop(tmp_path, "solve", "session", "workspace")
    journal = run.folder / NAME
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))

    again, suite_again = workshop(tmp_path, "solve", "session", "workspace", before=run)

    assert [line.kind for line in again.lines] == [
        "plan",
        "once",
        "resumed",
        "call",
        "attempt",
        "experiment",
        "finished",
    ]
    assert suite_again.events[0] == suite.events[0]


@pytest.mark.parametrize("needs", [(), ("session",)])
def test_handle_with_a_default_is_handed_only_where_the_task_needs_it(tmp_path: Path, needs: tuple[str, ...]) -> None:
    run, suite = workshop(tmp_path, "plain", *needs)

    assert len(run.of("fault")) == (1 if needs else 0)  # `plain` asserts that it is handed none
    assert any(each.startswith("open ") for each in suite.events) == bool(needs)
