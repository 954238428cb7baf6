"""Rewards for verl: `reward.custom_reward_function.path=pkg://koderz.rewards.verl`. verl isn't imported here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from koderz.errors import Fault
from koderz.systems.rewards.client import Client


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    graded: bool = False,
    suite: str = "",
    timeout: float = 300.0,
    on_fault: float | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """The score of a solution, and figures about it, always under the same keys.

    The task is `extra_info["task_id"]`, else `ground_truth`. A fault raises Fault, since verl knows no missing reward;
    with `on_fault` it is that number, and `fault` is 1. Other parameters are set by `reward_kwargs`.
    """
    del data_source, kwargs
    task = (extra_info or {}).get("task_id") or ground_truth
    score = _client(timeout).score(str(task), solution_str, graded=graded, suite=suite)
    if score.reward is None and on_fault is None:
        assert score.fault
        raise Fault(f"no reward for {task}: {score.fault.cause}: {score.fault.reason}")
    return {
        "score": on_fault if score.reward is None else score.reward,
        "passed": float(score.verdict == "passed"),
        "tampered": float(bool(score.tampering)),
        "fault": float(score.reward is None),
        "verdict": score.cause or score.verdict,
    }


@cache
def _client(timeout: float) -> Client:
    return Client(timeout=timeout)
