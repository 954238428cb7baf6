"""Which experiment of a plan it is."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.plans.arms import Arm
from koderz.types import Task


@dataclass(frozen=True, slots=True)
class Identity:
    """Which experiment it is."""

    experiment_id: str
    task: Task
    arm: Arm
    sample: int
