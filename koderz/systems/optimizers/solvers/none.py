"""The initial prompt, on the test split alone: the baseline of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.evaluator import Evaluator


async def none(evaluator: Evaluator) -> None:
    """Searches for nothing."""


none.roles = ()  # type: ignore[attr-defined]
