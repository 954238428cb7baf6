"""Runs of patches in the form of ISO-Bench's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import orjson

from koderz.analysis.story import Story
from koderz.systems.patches.machines import TasksRecord
from koderz_tracker.records import Experiment, Plan

_ARMS = {"baseline": "base", "human": "human", "agent": "agent"}  # of ISO's record, and what its legs are called
_METRICS = {
    "cpu_seconds": "cpu_seconds",
    "wall_seconds": "wall_seconds",
    **{f"{how}_{name}_ms": f"{name}_{how}" for name in ("ttft", "tpot", "itl") for how in ("mean", "median", "p99")},
    "request_throughput": "throughput_req_s",
    "output_throughput": "throughput_tok_s",
    "requests_per_second": "throughput_req_s",
    "tokens_per_second": "throughput_tok_s",
    "avg_latency": "latency_avg",
}
"""ISO-Bench's names of figures, by koderz' own."""


def iso(stories: Iterable[tuple[Plan, Story]], file: IO[bytes]) -> None:
    """Writes a line for each patch, as ISO-Bench's runners do; without a load, metrics are seconds of a call."""
    for plan, story in _patched(stories):
        file.write(orjson.dumps(_record(plan, story)) + b"\n")


def _patched(stories: Iterable[tuple[Plan, Story]]) -> Iterator[tuple[Plan, Story]]:
    """The judged patches, without base and the human's answer."""
    return (
        (plan, story) for plan, story in stories if isinstance(story.outcome, Experiment) and story.program is not None
    )


def _record(plan: Plan, story: Story) -> Mapping[str, Any]:
    outcome = story.outcome
    assert isinstance(outcome, Experiment)
    base, human = plan.suite_details(TasksRecord).commits.get(story.problem_id, ("", ""))
    metrics = outcome.metrics or {}
    return {
        "commit": (human or story.problem_id)[:8],
        "full_commit": human,
        "parent_commit": base,
        "model": plan.model_of(story.arm),
        "gpu_config": "",
        "subject": story.problem_id,
        "has_agent_patch": bool(story.program),
        "status": outcome.facts.get("status"),
        "needs_review": outcome.facts.get("needs_review"),
        **{
            f"{arm}_metrics": {
                theirs: metrics[f"{ours}_{leg}"] for ours, theirs in _METRICS.items() if f"{ours}_{leg}" in metrics
            }
            for arm, leg in _ARMS.items()
        },
        "duration_s": outcome.duration_seconds,
    }
