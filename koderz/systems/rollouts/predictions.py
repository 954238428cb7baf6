"""Patches as SWE-bench's harness takes them: JSON lines of {instance_id, model_name_or_path, model_patch}."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

import orjson

from koderz.analysis.story import Story
from koderz.analysis.workers import worker_of
from tracker.records import Experiment, Plan


def predictions(stories: Iterable[tuple[Plan, Story]], file: IO[bytes]) -> None:
    """A line an experiment that came to a verdict, with the last patch that was judged; empty where none was."""
    for plan, story in stories:
        if isinstance(story.outcome, Experiment):
            row = {
                "instance_id": story.problem_id,
                "model_name_or_path": worker_of(plan, story.arm),
                "model_patch": story.program or "",
            }
            file.write(orjson.dumps(row) + b"\n")
