"""Agents: solvers that work in a repository, and whose answer is the diff that they leave there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace

from koderz.errors import PromptTooLong
from koderz.solvers.handles import JudgeHandle, WorkspaceHandle
from koderz.types import Task, Verdict

MESSAGE: ContextVar[str] = ContextVar("message", default="")
"""The last message of the running experiment's agent, which only a judge of expectations reads."""


async def judged(
    task: Task,
    judge: JudgeHandle,
    workspace: WorkspaceHandle,
    work: Callable[[Task], Awaitable[str]],
    actions: Sequence[str] = (),
) -> Verdict:
    """The verdict on an agent's work on a task, or on its steps. `work` returns the limit that ended it, if one did.

    `actions`: the tools that it called, once it has ended, which tell whether it used what its arm gives it.
    """
    from koderz.systems.rollouts.stages import in_stages  # help needs the options of agents, not what they work on
    from koderz.systems.rollouts.task import Rollout
    from koderz.systems.rollouts.use import used_in

    async def worked(part: Task) -> Verdict:
        try:
            ran_out = await work(part)
        except PromptTooLong:  # what has been done is graded
            ran_out = "length"
        return await graded(part, judge, workspace, ran_out=ran_out)

    if not isinstance(task.payload, Rollout):
        return await worked(task)
    verdict = await (in_stages(task, workspace, worked) if task.payload.stages else worked(task))
    return replace(verdict, facts={**verdict.facts, **used_in(task.payload.additions, actions)})


async def graded(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle, *, ran_out: str = "") -> Verdict:
    """The verdict on the changes. `ran_out`: the limit that ended the agent's work, if one did.

    Where its time ran out and the tests fail, the verdict is `timeout`.
    """
    found = await workspace.diff()
    if found["too_large"]:
        artifacts = {"diff.patch": found["diff"]}
        return Verdict("error", "diff_too_large", "The diff is too large to be graded.", score=0.0, artifacts=artifacts)
    if why := found.get("error"):
        return Verdict("failed", "patch", f"No diff can be taken: {why}", why, "", 0.0, artifacts={"diff.patch": ""})
    verdict = await judge(task, found["diff"])
    if not ran_out:
        return verdict
    word = "timeout" if ran_out == "agent_timeout" and not verdict.passed else verdict.verdict
    return replace(verdict, verdict=word, cause=ran_out)
