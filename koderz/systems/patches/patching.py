"""Solvers for patches: none, the human's, those of a file, and those that a model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from koderz.prompts import Prompts
from koderz.settings.options import option
from koderz.solvers.definition import AskHandle, ExclusiveHandle, JudgeHandle, asks_nothing, solver
from koderz.types import JUDGE, Expected, Message, Task, Verdict

_PATCH_TOKENS, _REVIEW_TOKENS = 800, 200  # of usual replies, for estimates


@dataclass(frozen=True, slots=True)
class PatchingOptions:
    """The options of the solver `patching`."""

    max_iterations: int = option(
        3, "Maximum patches that a model writes for one task.", "N", bounds=(1, 100), instead=True
    )


class BenchHandle(Protocol):
    """The handle `workspace`: a repository whose patches are timed. All measurements are recorded."""

    async def files(self) -> str:
        """The original files of the repository, for a model."""
        ...

    async def patch_of(self, reply: str) -> str:
        """The diff in a reply; empty if it has none."""
        ...

    async def user_patch(self, agent: str) -> str:
        """The user's patch by an agent for this sample. Raises Fault if it is gone."""
        ...

    async def measured(self, exclusive: ExclusiveHandle, arm: str, patch: str = "") -> str:
        """The measurement of `baseline`, `human` or `agent`, for `judge`."""
        ...


@solver(asks=False, roles=(), estimate=asks_nothing)
async def base(
    task: Task, judge: JudgeHandle, workspace: BenchHandle, exclusive: ExclusiveHandle
) -> Verdict:
    """Measures how far the repository's speed differs from itself."""
    return await judge(task, await workspace.measured(exclusive, "baseline"))


@solver(asks=False, roles=(), estimate=asks_nothing)
async def human(
    task: Task, judge: JudgeHandle, workspace: BenchHandle, exclusive: ExclusiveHandle
) -> Verdict:
    """Measures the human's answer."""
    return await judge(task, await workspace.measured(exclusive, "human"))


def _review(prompt_tokens: float, *_: object) -> Sequence[Expected]:
    """One call of the model that reviews a patch beside the human's."""
    shown = prompt_tokens + 2 * _PATCH_TOKENS
    return [Expected(JUDGE, (1, 1), (shown, shown), (_REVIEW_TOKENS, _REVIEW_TOKENS))]


@solver(asks=False, roles=(), estimate=_review)
async def user_patch(
    task: Task,
    judge: JudgeHandle,
    workspace: BenchHandle,
    exclusive: ExclusiveHandle,
    *,
    agent: str = "",
) -> Verdict:
    """Measures a patch of the user's, from --predictions or by an agent in --patches."""
    return await judge(
        task, await workspace.measured(exclusive, "agent", await workspace.user_patch(agent))
    )


def estimate(
    prompt_tokens: float, _task_id: str, parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """A call for each patch, with all earlier messages."""
    most = parameters["max_iterations"]
    sent = most * prompt_tokens + _PATCH_TOKENS * most * (most - 1) / 2
    usual = most, sent, most * _PATCH_TOKENS  # few patches are as fast as the human's
    return [
        Expected(
            "main",
            (1, most),
            (prompt_tokens, sent),
            (_PATCH_TOKENS, most * _PATCH_TOKENS),
            usual=usual,
        )
    ]


@solver(
    options=PatchingOptions,
    roles=(),
    estimate=estimate,
    prompts={"main": ["patching", "patching-feedback"]},
)
async def patching(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    prompts: Prompts,
    workspace: BenchHandle,
    exclusive: ExclusiveHandle,
    *,
    max_iterations: int = 3,
) -> Verdict:
    """Lets a model write up to `max_iterations` patches, each with feedback on the earlier ones, until one is opt."""
    told = prompts.render("patching", prompt=task.prompt, files=await workspace.files())
    messages: list[Message] = [{"role": "user", "content": told}]
    while True:
        reply = await ask(messages)
        patch = await workspace.patch_of(reply.text)
        verdict = await judge(task, await workspace.measured(exclusive, "agent", patch))
        if verdict.passed or len(messages) >= 2 * max_iterations - 1:
            return verdict
        feedback = prompts.render("patching-feedback", feedback=verdict.feedback)
        messages += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": feedback},
        ]
