"""Agents: solvers that work in a repository, and whose answer is the diff that they leave there."""

from __future__ import annotations

from dataclasses import replace

from koderz.solvers.handles import JudgeHandle, WorkspaceHandle
from koderz.types import Task, Verdict


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
