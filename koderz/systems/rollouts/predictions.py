"""Patches for SWE-bench's harness: JSON lines of {instance_id, model_name_or_path, model_patch}."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

import orjson

from koderz.analysis.story import Story, worker_of
from koderz_tracker.records import Experiment, Plan


def predictions(stories: Iterable[tuple[Plan, Story]], file: IO[bytes]) -> None:
    """Writes a line for each judged experiment, with its last judged patch; empty if there was none."""
    for plan, story in stories:
        if isinstance(story.outcome, Experiment) and story.problem_id not in plan.apart:
            row = {
                "instance_id": story.problem_id,
                "model_name_or_path": worker_of(plan, story.arm),
                "model_patch": story.program or "",
            }
            file.write(orjson.dumps(row) + b"\n")
