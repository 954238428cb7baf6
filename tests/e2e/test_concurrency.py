"""`--concurrency` is the number of tasks at work in every system, by the order of calls in its journal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.conftest import Shell

SMALL = ("--train-items", 10, "--validation-items", 10, "--test-items", 10, "--budget-calls", 40, "--seeds", 3)
SLOWLY = ("--simulated-latency", 0.02)
CODE = ("benchmark", 0, 8, "--model", "simulated", "--mode", "iterative", *SLOWLY)
RULER = ("rlm", "run", "--simulated", "--benchmark", "ruler", "--max-tasks", 6, "--context-lengths", "1K", "--no-save")
OPTIMIZE = ("optimize", "run", "--demo-datasets", "labels", "--models", "simulated", "--optimizers", "few_shot", *SMALL)
ROLLOUTS = ("rollouts", "run")


def most_at_work(koderz: Shell) -> int:
    """How many tasks were between their first call and their end at once."""
    lines = [line for line in koderz.journal() if line["kind"] in ("call", "experiment")]
    at_work, most = set[str](), 0
    for line in lines:
        (at_work.add if line["kind"] == "call" else at_work.discard)(line["experiment_id"])
        most = max(most, len(at_work))
    assert len({line["experiment_id"] for line in lines}) > 2
    return most


@pytest.mark.parametrize(
    ("command", "most"),
    [
        pytest.param((*CODE, "--concurrency", 2), 2, id="benchmark"),
        pytest.param((*RULER, "--async", "--concurrency", 2), 2, id="rlm"),
        pytest.param(RULER, 1, id="rlm, one after another"),
        pytest.param((*OPTIMIZE, "--max-concurrent", 2), 2, id="optimize"),
        pytest.param((*ROLLOUTS, "--parallel", 2), 2, id="rollouts", marks=pytest.mark.slow),
    ],
)
def test_concurrency_is_the_number_of_tasks_at_work(koderz: Shell, command: Sequence[object], most: int) -> None:
    koderz(*command, "--quiet")

    assert most_at_work(koderz) <= most
