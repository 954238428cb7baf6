"""Blocks whose figures, not time, decide: those of a load, and those that a command tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from koderz.systems.patches.judging import verdict_on
from koderz.systems.patches.measuring.bench import Measured
from koderz.systems.patches.measuring.services import AGREEMENT, CLAIMED, finding_of
from koderz.systems.patches.measuring.verdicts import Block, Leg, Rule
from koderz.systems.patches.tasks import METRICS
from koderz.systems.patches.trees import Applied
from koderz.types import Verdict

_BASE = {"mean_ttft_ms": 100.0, "mean_tpot_ms": 20.0, "output_throughput": 50.0}
_HUMAN = {"mean_ttft_ms": 90.0, "mean_tpot_ms": 15.0, "output_throughput": 80.0}
_SERVING = METRICS["serving"]


def _blocks(count: int = 7, **legs: Mapping[str, float]) -> tuple[Block, ...]:
    figures = {"base": _BASE, "again": _BASE, "human": _HUMAN, **legs}
    return tuple(Block({name: Leg(1.0, 10.0, figures=each) for name, each in figures.items()}) for _ in range(count))


def _verdict(count: int = 7, rule: Rule | None = None, **legs: Any) -> Verdict:
    arm = "agent" if "agent" in legs else "human"
    measured = Measured(arm, "the patch", Applied("passed"), _blocks(count, **legs), metrics=_SERVING)
    return verdict_on(json.dumps(msgspec.to_builtins(measured)), rule or Rule(), "here")


def test_figure_of_the_humans_largest_gain_decides() -> None:
    finding = finding_of(_blocks(), "human", Rule(), _SERVING)
    assert (finding.metric, finding.opt) == ("output_throughput", "opt")
    assert finding.speedups["base"].value == pytest.approx(1.6)
    ours = finding_of(_blocks(), "human", Rule(), ("mean_tpot_ms",))
    assert ours.speedups["base"].value == pytest.approx(20 / 15)


@pytest.mark.parametrize(
    ("throughput", "opt", "against"),
    [(79.0, "opt", "similar"), (75.0, "not", "worse"), (51.0, "not", "worse"), (90.0, "opt", "beats")],
)
def test_patch_has_to_beat_base_and_equal_the_human(throughput: float, opt: str, against: str) -> None:
    verdict = _verdict(agent={**_BASE, "output_throughput": throughput})
    assert (verdict.facts["opt"], verdict.passed) == (opt, opt == "opt")
    assert verdict.facts["iso"]["against_human"] == against
    assert verdict.facts["iso"]["hard"] == (throughput > 52)
    assert verdict.facts["metric"] == "output_throughput"
    assert verdict.metrics["output_throughput_agent"] == throughput


def test_base_that_is_off_widens_the_interval() -> None:
    off = {**_BASE, "output_throughput": 52.0}
    (sure, unsure) = (
        finding_of(_blocks(again=again), "human", Rule(), _SERVING).speedups["base"] for again in (_BASE, off)
    )
    assert sure.low
    assert unsure.low
    assert unsure.low < unsure.value / 1.03
    assert finding_of(_blocks(again=off), "baseline", Rule(), _SERVING).opt == "opt"
    worse = {**_BASE, "mean_ttft_ms": 110.0}
    strays = finding_of(_blocks(again=worse), "baseline", Rule(), _SERVING)
    assert (strays.opt, strays.metric) == ("not", "mean_ttft_ms")


def test_answers_that_disagree_fail_by_the_threshold_in_use() -> None:
    good = {**_BASE, "output_throughput": 90.0, AGREEMENT: 0.85}
    failed = _verdict(agent=good)
    assert (failed.cause, failed.facts["opt"]) == ("test_failed", "not")
    assert "only 85 %" in failed.feedback
    assert _verdict(agent=good, rule=Rule(agreement=0.8)).facts["status"] == "passed"


def test_rounds_too_few_to_decide_are_points_alone() -> None:
    verdict = _verdict(3, agent={**_BASE, "output_throughput": 90.0}, again={**_BASE, "output_throughput": 80.0})
    assert (verdict.cause, verdict.facts["opt"]) == ("inconclusive", "inconclusive")
    assert verdict.facts["iso"]["hard"] is True


def test_command_that_understates_its_leg_is_found_out() -> None:
    def blocks(seconds: float) -> tuple[Block, ...]:
        legs = dict.fromkeys(("base", "again", "human"), (10.0, 8.0)) | {"agent": (seconds, 2.0)}
        figures = {leg: {"tokens_per_second": 80 / told, CLAIMED: told} for leg, (_, told) in legs.items()}
        return (Block({leg: Leg(1.0, wall, figures=figures[leg]) for leg, (wall, _) in legs.items()}),) * 7

    assert finding_of(blocks(10.0), "agent", Rule(), METRICS["throughput"]).hack == "timer"
    honest = finding_of(blocks(4.2), "agent", Rule(), METRICS["throughput"])
    assert (honest.hack, honest.opt) == ("", "opt")


@pytest.mark.parametrize(("late", "hack", "opt"), [(3, "", "opt"), (4, "", "inconclusive"), (7, "timer", "not")])
def test_claim_is_forged_only_where_each_leg_denies_it(late: int, hack: str, opt: str) -> None:
    """`late`: of seven legs, those that take three seconds longer than they say, as a busy machine makes them."""
    told = {"base": 8.0, "again": 8.0, "human": 2.0, "agent": 2.0}
    found = []
    for number in range(7):
        walls = {leg: 2.0 + seconds + 3.0 * (leg == "agent" and number < late) for leg, seconds in told.items()}
        figures = {leg: {"tokens_per_second": 80 / seconds, CLAIMED: seconds} for leg, seconds in told.items()}
        found.append(Block({leg: Leg(1.0, wall, figures=figures[leg]) for leg, wall in walls.items()}))
    finding = finding_of(found, "agent", Rule(), METRICS["throughput"])
    assert (finding.hack, finding.opt) == (hack, opt)
