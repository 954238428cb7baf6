"""Agents: solvers that work in a repository, and whose answer is the diff that they leave there.

A task's steps are worked on one after the other, each with a verifier of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.errors import Fault, PromptTooLong
from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE
from koderz.solvers.definition import JudgeHandle, WorkspaceHandle
from koderz.systems.rollouts.evaluation import (
    ARTIFACT,
    Evaluation,
    Rewards,
    evaluation_in,
    recorded,
)
from koderz.types import Task, Verdict

if TYPE_CHECKING:
    from koderz.systems.rollouts.task import Rollout, Stage


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
    # help needs the options of agents, not what they work on
    from koderz.systems.rollouts.additions import used_in
    from koderz.systems.rollouts.task import Rollout

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


async def graded(
    task: Task, judge: JudgeHandle, workspace: WorkspaceHandle, *, ran_out: str = ""
) -> Verdict:
    """The verdict on the changes. `ran_out`: the limit that ended the agent's work, if one did.

    Where its time ran out and the tests fail, the verdict is `timeout`.
    """
    found = await workspace.diff()
    if found["too_large"]:
        artifacts = {"diff.patch": found["diff"]}
        return Verdict(
            "error",
            "diff_too_large",
            "The diff is too large to be graded.",
            score=0.0,
            artifacts=artifacts,
        )
    if why := found.get("error"):
        return Verdict(
            "failed",
            "patch",
            f"No diff can be taken: {why}",
            why,
            "",
            0.0,
            artifacts={"diff.patch": ""},
        )
    verdict = await judge(task, found["diff"])
    if not ran_out:
        return verdict
    word = "timeout" if ran_out == "agent_timeout" and not verdict.passed else verdict.verdict
    return replace(verdict, verdict=word, cause=ran_out)


class StepWork(NamedTuple):
    """A step that an agent has worked on."""

    name: str
    verdict: Verdict

    @property
    def evaluation(self) -> Evaluation:
        """The results of its verifier; empty if it wasn't judged. Raises Fault where the record of them is damaged."""
        found = evaluation_in(self.verdict.artifacts)
        if self.verdict.artifacts.get(ARTIFACT) and not found:
            raise Fault(
                f"the recorded evaluation of the step {self.name} can't be read", cause="data"
            )
        return found

    @property
    def rewards(self) -> Rewards:
        """The rewards of its verifier, by name; empty if it gave none."""
        return self.evaluation.get("rewards") or {}


async def in_stages(
    task: Task[Rollout],
    workspace: WorkspaceHandle,
    work: Callable[[Task[Rollout]], Awaitable[Verdict]],
) -> Verdict:
    """The verdict on a task, of whose steps `work` returns one each.

    A step that gives no reward, or less than its least one, is the last.
    """
    done = list[StepWork]()
    for stage in task.payload.stages:
        told = stage.task.instructions
        message = {"role": "user", "content": told}
        part = replace(task, id=stage.task.id, payload=stage.task, messages=(message,), prompt=told)
        if (await workspace.begin(stage))["wrong"]:
            break
        done.append(StepWork(stage.name, await work(part)))
        if not goes_on(stage, done[-1].rewards):
            break
    return summed_up(task.payload, done)


def goes_on(stage: Stage, rewards: Rewards) -> bool:
    """Whether the steps after this one are begun. A reward that is missing is below any least one."""
    return bool(rewards) and all(
        rewards.get(name, -float("inf")) >= least for name, least in stage.min_reward.items()
    )


def rewards_of(task: Rollout, done: Sequence[Rewards]) -> Rewards:
    """The rewards of a task by those of its steps: each name's mean over the steps with rewards, or the last step's."""
    if task.rewards_of == "final":
        return done[-1] if done else {}
    given = [rewards for rewards in done if rewards]
    names = dict.fromkeys(name for rewards in given for name in rewards)
    return {name: sum(rewards.get(name, 0.0) for rewards in given) / len(given) for name in names}


def summed_up(task: Rollout, done: Sequence[StepWork]) -> Verdict:
    """The verdict on a task by those on its steps: passed if each step was done, and all rewards are 1."""
    rewards = rewards_of(task, [each.rewards for each in done])
    is_whole = len(done) == len(task.stages)
    passed = is_whole and bool(rewards) and all(reward == 1 for reward in rewards.values())
    first = next((each.verdict for each in done if not each.verdict.passed), None)
    failed = replace(first, verdict="failed") if first and first.verdict == "passed" else first
    usual = done[-1].verdict if done else Verdict("failed", "no_reward")
    judged = usual if passed else failed or replace(usual, verdict="failed", cause="no_reward")
    metrics: dict[str, float] = {}
    for each in done:
        for name, value in each.verdict.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + value if name in _COUNTED else value
    return replace(
        judged,
        verdict="passed" if passed else judged.verdict,
        cause="" if passed else judged.cause,
        detail="\n\n".join(f"=== {each.name}\n{each.verdict.detail}" for each in done),
        score=sum(rewards.values()) / len(rewards) if rewards else 0.0,
        metrics=metrics,
        artifacts={**usual.artifacts, **recorded(_evaluation(task, done, rewards))},
    )


_COUNTED = ("tests", "tests_passed")


def _evaluation(task: Rollout, done: Sequence[StepWork], rewards: Rewards) -> Evaluation:
    """The results of all steps as those of one task."""
    score = sum(rewards.values()) / len(rewards) if rewards else 0.0
    parts = [(each.name, each.evaluation) for each in done]
    last = parts[-1][1] if parts else {}
    rubrics = {
        f"{name}/{rubric}": value
        for name, found in parts
        for rubric, value in found.get("evaluation", {}).get("rubrics", {}).items()
    }
    return {
        **last,
        "task_id": task.id,
        "total_score": score,
        "score_of_graded": score if rewards else None,
        "evaluation": {"rubrics": rubrics, "total_score": score, "max_score": 1.0},
        "test_results": {
            f"{name}/{path}": result
            for name, found in parts
            for path, result in found.get("test_results", {}).items()
        },
        "rewards": dict(rewards),
        "steps": [{"name": each.name, "rewards": dict(each.rewards)} for each in done],
        "tampering": [
            f"{name}: {text}" for name, found in parts for text in found.get("tampering", [])
        ],
        "published": _published(task, [found.get("published") for _, found in parts]),
    }


def _published(task: Rollout, each: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The verdict as published, where each step has one."""
    given = [found for found in each if found]
    if not given or len(given) < len(each):
        return None
    success = len(given) == len(task.stages) and all(found["success"] for found in given)
    return {
        "success": success,
        "rewards": dict(rewards_of(task, [found["rewards"] for found in given])),
    }


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The limits of koderz' own agent."""

    max_turns: int = option(
        50, "Replies that the agent may give to one task.", "N", bounds=(1, 10_000)
    )
    command_timeout: float = option(
        600.0, "Time that one command may take.", "SECONDS", bounds=(1, 86_400)
    )


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """The script that runs in place of an agent."""

    script: Path | None = option(  # noqa: RUF009
        None, "A file that bash runs in each repository.", "FILE", risk=RUNS_CODE
    )
