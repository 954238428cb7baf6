"""What a plan may cost: from all passing at once to none ever passing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.models import Price
from koderz.models.tariffs import Tier
from koderz.plans.estimate import Estimate, estimate
from koderz.testing import a_model
from tests.koderz.world import begun, planned

PRICED = {"scripted": Price(1.0, 2.0), "frontier": Price(10.0, 20.0)}


def guess(folder: Path, n: int = 2, prices: Mapping[str, Price | None] | None = None, **settings: Any) -> Estimate:
    return estimate(asyncio.run(planned(folder, n, **settings)), prices or PRICED)


def test_zero_shot_is_one_call_each(tmp_path: Path) -> None:
    found = guess(tmp_path, 3)

    assert (found.experiments, found.calls, found.tokens_out) == (3, (3, 3), (1200, 1200))
    assert found.tokens_in[0] == found.tokens_in[1] > 100
    assert found.cost is not None
    assert found.cost[0] == pytest.approx((found.tokens_in[0] + 2 * 1200) / 1e6, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"mode": "iterative", "max_iterations": 5}, (2, 10)),
        ({"mode": "comparative", "max_iterations": 5}, (4, 12)),
        ({"mode": "iterative", "max_iterations": 5, "samples": 3}, (6, 30)),
        ({"mode": "iterative", "max_iterations": 1}, (2, 2)),
        ({"mode": "iterative", "max_iterations": 10, "history": 0}, (2, 20)),
        ({"mode": "iterative", "max_iterations": 4, "frontier_spec_model": "frontier"}, (4, 10)),
        ({"mode": "iterative", "max_iterations": 4, "frontier_spec_model": "frontier", "spec": False}, (2, 8)),
        ({"mode": "iterative", "max_iterations": 10, "frontier_checkpoint_model": "frontier"}, (2, 22)),
        ({"mode": "iterative", "max_iterations": 11, "frontier_checkpoint_model": "frontier"}, (2, 26)),
        ({"mode": "zero-shot", "frontier_spec_model": "frontier"}, (2, 2)),
    ],
)
def test_calls_are_counted_from_the_least_to_the_most(
    tmp_path: Path, settings: dict[str, Any], calls: tuple[int, int]
) -> None:
    assert guess(tmp_path, 2, **settings).calls == calls


def test_specifications_at_hand_cost_nothing(tmp_path: Path) -> None:
    plan = asyncio.run(planned(tmp_path, 3, mode="iterative", max_iterations=2, frontier_spec_model="frontier"))
    (arm,) = plan.arms
    parameters = {**arm.solver.parameters, "specs": {plan.tasks[0].id: "it sorts"}}
    shorter = replace(plan, arms=(replace(arm, solver=replace(arm.solver, parameters=parameters)),))

    assert estimate(plan, PRICED).calls == (6, 9)
    assert estimate(shorter, PRICED).calls == (5, 8)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "zero-shot"},
        {"mode": "iterative", "max_iterations": 6, "temperature": 0.5},
        {"mode": "comparative", "max_iterations": 3, "temperature": 0.5, "samples": 2},
        {
            "mode": "iterative",
            "max_iterations": 7,
            "temperature": 0.5,
            "frontier_spec_model": "frontier",
            "frontier_checkpoint_model": "frontier",
            "checkpoint_interval": 2,
        },
    ],
)
def test_estimate_of_calls_equals_the_calls_of_the_run(tmp_path: Path, settings: dict[str, Any]) -> None:
    async def go() -> list[int]:
        made = []
        for line in ("GOOD", "BAD"):
            models = {"scripted": a_model(line), "frontier": a_model("BAD")}
            await begun(await planned(tmp_path, 2, **settings), models)
            made.append(sum(len(model.asked) for model in models.values()))
        return made

    assert tuple(asyncio.run(go())) == guess(tmp_path, 2, **settings).calls


def test_estimate_of_a_frontier_model_uses_its_own_price(tmp_path: Path) -> None:
    free = {"scripted": Price(0, 0), "frontier": Price(0, 0)}
    dear = {"scripted": Price(0, 0), "frontier": Price(0, 1e6)}
    settings = {"mode": "iterative", "frontier_spec_model": "frontier"}

    assert guess(tmp_path, 2, free, **settings).cost == (0.0, 0.0)
    assert guess(tmp_path, 2, dear, **settings).cost == (800.0, 800.0)


def test_estimate_with_an_unknown_price_has_no_cost(tmp_path: Path) -> None:
    assert guess(tmp_path, 2, {"scripted": Price(1, 1), "frontier": None}).cost is None


def test_estimate_charges_long_prompts_by_each_calls_length(tmp_path: Path) -> None:
    plain = guess(tmp_path, 3, mode="iterative", max_iterations=4).cost
    tiered = {"scripted": Price(1.0, 2.0, (Tier(50, 10.0, 20.0),))}
    rarely = {"scripted": Price(1.0, 2.0, (Tier(10**6, 10.0, 20.0),))}

    assert plain
    assert guess(tmp_path, 3, tiered, mode="iterative", max_iterations=4).cost == pytest.approx([10 * c for c in plain])
    assert guess(tmp_path, 3, rarely, mode="iterative", max_iterations=4).cost == pytest.approx(plain)


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"mode": "zero-shot"}, (4, (4, 4))),
        ({"mode": "iterative", "max_iterations": 10}, (10, (5, 20))),
        ({"mode": "iterative", "max_iterations": 2}, (8, (4, 8))),
        ({"mode": "iterative", "max_iterations": 10, "frontier_spec_model": "frontier"}, (14, (9, 24))),
    ],
)
def test_estimate_without_an_earlier_run_is_the_solvers(
    tmp_path: Path, settings: dict[str, Any], calls: tuple[int, tuple[int, int]]
) -> None:
    found = guess(tmp_path, 4, **settings)

    assert found.likely
    assert (found.likely.calls, found.likely.calls_range) == calls
    assert found.cost
    assert found.likely.cost
    assert found.cost[0] <= found.likely.cost <= found.cost[1]


def test_estimate_of_an_undeclared_solver_has_no_likely_figure(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from koderz.types import Expected\n"
        "async def mine(task, ask, judge):\n    return await judge(task, await ask(task.messages))\n"
        "mine.estimate = lambda *_: [Expected('main', (1, 9), (10, 90), (10, 90))]\n"
    )

    found = guess(tmp_path, 4, solver=f"{tmp_path / 'mine.py'}:mine")

    assert found.likely is None
    assert found.basis == {"mine": "unknown, since no run like this has finished here"}


def test_estimate_is_split_by_model(tmp_path: Path) -> None:
    found = guess(tmp_path, 2, mode="iterative", max_iterations=5, frontier_spec_model="frontier")

    mine, spec = found.models
    assert (mine.model, mine.roles, mine.calls) == ("scripted", ("main",), (2, 10))
    assert (spec.model, spec.roles, spec.calls) == ("frontier", ("spec",), (2, 2))
    assert mine.cost
    assert spec.cost
    assert found.cost == pytest.approx((mine.cost[0] + spec.cost[0], mine.cost[1] + spec.cost[1]))


COMPARED: dict[str, Any] = {"until_decided": "first", "local_model": "scripted", "models": ("scripted", "frontier")}


def test_length_of_a_comparison_is_foreseen_with_its_cost(tmp_path: Path) -> None:
    found = guess(tmp_path, 200, **COMPARED)

    assert found.decision
    assert found.cost
    half, nine_tenths = found.decision.endings
    assert (half.chance, half.tasks, nine_tenths.chance, nine_tenths.tasks) == (0.5, 145, 0.9, 322)
    assert half.cost == pytest.approx([145 / 200 * cost for cost in found.cost])
    assert nine_tenths.cost is None  # there are fewer tasks
    assert guess(tmp_path, 2, prices={**PRICED, "frontier": None}, **COMPARED).decision
    assert guess(tmp_path, 2).decision is None


def test_length_of_a_comparison_depends_on_its_arms_and_fewest_tasks(tmp_path: Path) -> None:
    several = guess(tmp_path, 200, **{**COMPARED, "models": ("scripted", "frontier", "third", "fourth")}, prices={})
    late = guess(tmp_path, 200, **COMPARED, min_tasks=150)

    assert several.decision
    assert (several.decision.compared, several.decision.endings[0].tasks) == (3, 190)
    assert late.decision
    assert late.decision.endings[0].tasks == 150
