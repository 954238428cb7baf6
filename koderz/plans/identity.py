"""Which experiment of a plan it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from koderz.plans.arms import Arm
from koderz.types import Task


class Identity(NamedTuple):
    """Which experiment it is."""

    experiment_id: str
    task: Task
    arm: Arm
    sample: int

    @property
    def of_line(self) -> dict[str, Any]:
        """What a line of the journal says of it."""
        return {
            "experiment_id": self.experiment_id,
            "problem_id": self.task.id,
            "solver": self.arm.solver.name,
            "arm": self.arm.name,
            "sample": self.sample,
        }
