"""Runs of patches as ISO-Bench's runners record them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import orjson

from koderz.analysis.story import Story
from tracker.records import Experiment, Plan

_ARMS = {"baseline": "base", "human": "human", "agent": "agent"}  # of ISO's record, and what its legs are called


def iso(stories: Iterable[tuple[Plan, Story]], file: IO[bytes]) -> None:
    """A line a patch, as ISO-Bench's runners record a commit; the metrics are seconds of a call."""
    for plan, story in _patched(stories):
        file.write(orjson.dumps(_record(plan, story)) + b"\n")


def _patched(stories: Iterable[tuple[Plan, Story]]) -> Iterator[tuple[Plan, Story]]:
    """Those of patches that were judged, not of base and the human's answer."""
    return (
        (plan, story) for plan, story in stories if isinstance(story.outcome, Experiment) and story.program is not None
    )


def _record(plan: Plan, story: Story) -> Mapping[str, Any]:
    outcome = story.outcome
    assert isinstance(outcome, Experiment)
    base, human = plan.details.get("suite", {}).get("commits", {}).get(story.problem_id, ("", ""))
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
        **{
            f"{arm}_metrics": {
                f"{clock}_seconds": metrics[f"{clock}_seconds_{leg}"]
                for clock in ("cpu", "wall")
                if f"{clock}_seconds_{leg}" in metrics
            }
            for arm, leg in _ARMS.items()
        },
        "duration_s": outcome.duration_seconds,
    }
