"""Rewards for TRL's `GRPOTrainer`, which isn't imported here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from koderz.systems.rewards.client import AsyncClient


def trl(
    column: str = "task_id", *, client: AsyncClient | None = None, **fields: Any
) -> Callable[..., Coroutine[Any, Any, list[float | None]]]:
    """A reward function for `reward_funcs`: the rewards of completions, None for a fault.

    `column`: the dataset's column with the task's id; `fields`: of `Item`, such as `graded=True`. It logs
    `tamper_rate`, `fault_rate`, and each completion's verdict. The judge is that of KODERZ_JUDGE_URL.
    """

    async def koderz_reward(completions: Sequence[Any], **given: Any) -> list[float | None]:
        items = [(task, reply_of(each)) for task, each in zip(given[column], completions, strict=True)]
        state = given.get("trainer_state")
        scores = await (client or AsyncClient()).score_many(items, step=state and state.global_step, **fields)
        if log := given.get("log_metric"):
            counts = Counter(bool(score.fault) for score in scores)
            log("tamper_rate", sum(bool(score.tampering) for score in scores) / (counts[False] or 1))
            log("fault_rate", counts[True] / (len(scores) or 1))
        if log := given.get("log_extra"):
            log("verdict", [score.cause or score.verdict for score in scores])
        return [score.reward for score in scores]

    return koderz_reward


def reply_of(completion: Any) -> str:
    """The model's last answer in a completion: a text, or a list of messages with tools' between them."""
    if isinstance(completion, str):
        return completion
    answers = [message for message in completion if message.get("role") == "assistant"]
    content = answers[-1].get("content") if answers else ""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""
