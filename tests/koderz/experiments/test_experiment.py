"""What experiments have come to."""

from __future__ import annotations

import pytest

from koderz.experiments.experiment import SANDBOX, UNPRICED, Totals
from koderz_tracker.records import Compute


@pytest.mark.parametrize(
    ("engine", "cost", "known"), [(SANDBOX, 2.0, True), (UNPRICED, 2.0, False), ("modal", 0.0, True)]
)
def test_sandbox_costs_count_and_engine_machines_do_not(engine: str, cost: float, known: bool) -> None:
    totals = Totals()
    totals.rent(
        Compute(experiment_id="exp_00000000000000ab", engine=engine, seconds=4.0, cost_per_second=0.5, cost=2.0)
    )
    assert (totals.cost, totals.cost_known) == (cost, known)
    assert totals.by_tier() == ({"compute": 2.0} if cost else None)
