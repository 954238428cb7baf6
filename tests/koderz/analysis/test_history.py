"""Likely figures of a plan, by what runs before it took."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.analysis.forecast import _figure, history_of
from koderz.models import Price
from koderz.plans.estimate import Cells, Estimate, estimate
from koderz.plans.plan import Plan
from koderz.testing import FakeModel, a_model
from koderz.types import Message, Sampling
from koderz_tracker.sinks.json import write_summary
from tests.koderz.world import Run, begun, planned

PRICES = {"scripted": Price(1.0, 2.0), "frontier": Price(10.0, 20.0), "other": Price(1.0, 2.0)}
ASKING: dict[str, Any] = {
    "mode": "comparative",
    "max_iterations": 6,
    "frontier_spec_model": "frontier",
    "frontier_checkpoint_model": "frontier",
    "checkpoint_interval": 2,
}


def by_chance(seed: int) -> FakeModel:
    """A model that is right every third time."""
    rng = random.Random(seed)

    def reply(messages: Sequence[Message], sampling: Sampling) -> str:
        return "GOOD" if rng.random() < 1 / 3 else "BAD"

    return a_model(reply)


async def ran(folder: Path, n: int, model: FakeModel, **settings: Any) -> Run:
    name = settings.get("local_model", "scripted")
    run = await begun(await planned(folder, n, **settings), {name: model, "frontier": a_model("BAD")})
    write_summary(run.folder)
    return run


def guess(folder: Path, n: int, **settings: Any) -> Estimate:
    plan = asyncio.run(planned(folder, n, **settings))
    return estimate(plan, PRICES, history_of(plan))


def made(run: Run, model: str | None = None) -> tuple[int, int, int]:
    calls = [call for call in run.of("call") if model in (None, call.model)]
    return len(calls), sum(call.tokens_in for call in calls), sum(call.tokens_out for call in calls)


def test_estimate_by_an_equal_run_takes_its_figures_by_model(tmp_path: Path) -> None:
    run = asyncio.run(ran(tmp_path, 20, by_chance(1), **ASKING))

    found = guess(tmp_path, 20, **ASKING)

    assert found.likely
    assert (found.likely.calls, found.likely.tokens_in, found.likely.tokens_out) == made(run)
    assert found.likely.cost == pytest.approx(run.summary.paid["total"], rel=0.001) or not run.summary.paid["total"]
    assert {share.model: share.roles for share in found.models} == {
        "scripted": ("main",),
        "frontier": ("spec", "checkpoint"),
    }
    for share in found.models:
        assert share.likely
        assert (share.likely.calls, share.likely.tokens_in, share.likely.tokens_out) == made(run, share.model)
    assert found.basis["iterative"].startswith("by 20 experiments of 1 run with the same model and settings")


@pytest.mark.parametrize("seed", range(2, 6))
def test_estimate_by_history_is_near_the_next_run(tmp_path: Path, seed: int) -> None:
    for first in range(2):
        asyncio.run(ran(tmp_path, 30, by_chance(10 * seed + first), **ASKING))
    likely = guess(tmp_path, 30, **ASKING).likely

    calls, tokens_in, tokens_out = made(asyncio.run(ran(tmp_path, 30, by_chance(10 * seed + 5), **ASKING)))

    assert likely
    assert calls == pytest.approx(likely.calls, rel=0.4)
    assert tokens_in == pytest.approx(likely.tokens_in, rel=0.4)
    assert tokens_out == pytest.approx(likely.tokens_out, rel=0.4)
    assert likely.calls_range[0] < likely.calls < likely.calls_range[1]


def test_estimate_for_other_tasks_takes_earlier_averages(tmp_path: Path) -> None:
    calls = made(asyncio.run(ran(tmp_path, 10, by_chance(1), mode="iterative", max_iterations=4)))[0]

    found = guess(tmp_path, 40, mode="iterative", max_iterations=4)

    assert found.likely
    assert found.likely.calls == round(4 * calls)


def test_estimate_uses_the_nearest_runs_and_says_so(tmp_path: Path) -> None:
    asking: dict[str, Any] = {"mode": "iterative", "max_iterations": 4}
    asyncio.run(ran(tmp_path, 4, a_model("BAD"), **asking))

    other_model = guess(tmp_path, 4, **{**asking, "local_model": "other"})
    other_settings = guess(tmp_path, 4, **{**asking, "max_iterations": 5})

    assert "with other models" in other_model.basis["iterative"]
    assert "with the same model and other settings" in other_settings.basis["iterative"]
    assert other_model.likely
    assert (same := guess(tmp_path, 4, **asking).likely)
    assert other_model.likely.calls == same.calls
    assert "no run like this" in guess(tmp_path, 4, mode="zero-shot").basis["zero-shot"]


def test_estimate_for_a_new_model_takes_the_usual(tmp_path: Path) -> None:
    asking: dict[str, Any] = {"mode": "iterative", "max_iterations": 4}
    run = asyncio.run(ran(tmp_path, 4, by_chance(1), **asking))

    mine, spec = guess(tmp_path, 4, **asking, frontier_spec_model="frontier").models

    assert mine.likely
    assert spec.likely
    assert (mine.likely.calls, spec.likely.calls) == (made(run)[0], 4)


def test_runs_of_the_simulated_model_tell_nothing_of_another(tmp_path: Path) -> None:
    asking: dict[str, Any] = {"mode": "iterative", "max_iterations": 4}
    simulated = {**asking, "local_model": "simulated"}
    asyncio.run(ran(tmp_path, 4, a_model("BAD"), **simulated))

    assert "no run like this" in guess(tmp_path, 4, **asking).basis["iterative"]
    assert guess(tmp_path, 4, **simulated).basis["iterative"].startswith("by 4 experiments")


def test_estimate_range_holds_four_in_five_sums(tmp_path: Path) -> None:
    plan = asyncio.run(planned(tmp_path, 1))
    inside = {size: _share_inside(plan, size) for size in (5, 20, 100)}

    assert all(0.72 <= share <= 0.95 for share in inside.values()), inside


def _share_inside(plan: Plan, size: int) -> float:
    """How often the sum over new tasks is within the range by `size` experiments."""
    rng = random.Random(size)
    cells = Cells(plan.arms[0], {f"new/{number}": 1 for number in range(30)}, {}, {})
    hits = 0
    for _ in range(400):
        figure = _figure({f"old/{number}": [rng.gammavariate(4, 1)] for number in range(size)}, cells)
        hits += figure.low <= sum(rng.gammavariate(4, 1) for _ in range(30)) <= figure.high
    return hits / 400
