"""The solver `none`: the initial prompt on the test split alone, the baseline of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koderz.solvers.definition import solver

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.evaluator import Evaluator


@solver(roles=())
async def none(evaluator: Evaluator) -> None:
    """Searches for nothing."""
