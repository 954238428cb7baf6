"""The verdict on what was measured is made of the record alone, and so are those of other thresholds."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koderz.errors import Fault
from koderz.systems.patches.judging import verdict_on
from koderz.systems.patches.measuring.bench import Measured
from koderz.systems.patches.measuring.verdicts import Block, Leg, Rule, Timing
from koderz.systems.patches.screen import told_of
from koderz.systems.patches.trees import Applied
from koderz.types import Verdict

_TIMES = {"base": 10.0, "again": 10.0, "human": 4.0, "agent": 4.1}


def _leg(seconds: float, wrong: str = "") -> Leg:
    return Leg(20 * seconds + 0.1, 20 * seconds, {"w": Timing(seconds, seconds, 20 * seconds)}, wrong)


def _verdict(count: int = 7, rule: Rule | None = None, arm: str = "agent", **more: Any) -> Verdict:
    times = {**_TIMES, **more.pop("times", {})}
    wrong = more.pop("wrong", "")
    blocks = [Block({leg: _leg(each / 1000) for leg, each in times.items()}) for _ in range(count)]
    if wrong:
        blocks.append(Block({**blocks[0].legs, "agent": _leg(0.001, wrong)}))
    measured = Measured(arm, "the patch", more.pop("applied", Applied("passed")), tuple(blocks), **more)
    return verdict_on(json.dumps(msgspec.to_builtins(measured)), rule or Rule(), "here")


def test_threshold_changes_the_verdict_on_the_same_record() -> None:
    assert _verdict().facts["opt"] == "opt"
    strict = _verdict(rule=Rule(threshold=0.99))
    assert (strict.passed, strict.cause, strict.facts["opt"]) == (False, "not", "not")


def test_blocks_too_few_are_inconclusive() -> None:
    verdict = _verdict(5, stopped=True)
    assert (verdict.verdict, verdict.cause, verdict.facts["status"]) == ("failed", "inconclusive", "passed")
    assert "speedup_base_low" not in verdict.metrics


def test_wrong_output_is_a_failed_test_whatever_was_measured() -> None:
    verdict = _verdict(wrong="the result of call 3 is wrong")
    assert (verdict.cause, verdict.facts["opt"]) == ("test_failed", "not")
    assert "call 3" in verdict.feedback


@pytest.mark.parametrize("status", ["patch_failed", "empty_patch", "test_failed"])
def test_patch_that_does_not_work_is_a_result(status: str) -> None:
    verdict = _verdict(0, applied=Applied(status, "why", tampering=("conftest.py: settings",)))
    assert (verdict.passed, verdict.cause, verdict.metrics) == (False, status, {})
    assert verdict.facts["tampering"] == ["conftest.py: settings"]


def test_base_that_strays_is_a_fault_only_where_nothing_is_decided() -> None:
    with pytest.raises(Fault, match="noise"):
        _verdict(30, times={"again": 9.0, "agent": 4.2})
    assert _verdict(7, times={"again": 9.0, "agent": 1.0}).passed
    with pytest.raises(Fault, match="noise"):
        _verdict(30, arm="baseline", times={"again": 9.0})
    assert _verdict(7, arm="baseline").passed


def test_result_far_above_the_humans_says_so() -> None:
    verdict = _verdict(times={"agent": 0.125}, inputs="fixed")
    assert verdict.passed
    assert verdict.facts["inputs"] == "fixed"
    assert verdict.facts["needs_review"] == verdict.note
    assert verdict.note.startswith("needs review: surely more than 2 times as fast as the human's answer")
    assert "the same in each block" in verdict.note
    near = _verdict(inputs="seeds")
    assert (near.facts["needs_review"], near.facts["inputs"], near.note) == (None, "seeds", "")


def test_record_of_an_earlier_version_lacks_inputs() -> None:
    blocks = [Block({leg: _leg(each / 1000) for leg, each in _TIMES.items()}) for _ in range(7)]
    told = msgspec.to_builtins(Measured("agent", "the patch", Applied("passed"), tuple(blocks)))
    del told["inputs"]
    for block in told["blocks"]:
        for leg in block["legs"].values():
            for name in ("hidden", "busy", "beside"):
                del leg["work"]["w"][name]
    verdict = verdict_on(json.dumps(told), Rule(), "here")
    assert verdict.passed
    assert verdict.facts["inputs"] is None


def _with_walls(rule: Rule, seconds: float, arm: str = "agent") -> Verdict:
    """A verdict on 30 blocks of a patch that takes the CPU that base takes, and so many seconds of 0.1 by wall."""
    walls = {"base": 0.1, "again": 0.1, "human": seconds, "agent": seconds}
    legs = {leg: Leg(0.3, 2.0, {"w": Timing(0.01, wall, 0.2)}) for leg, wall in walls.items()}
    measured = Measured(arm, "the patch", Applied("passed"), (Block(legs),) * 30)
    return verdict_on(json.dumps(msgspec.to_builtins(measured)), rule, "here")


@pytest.mark.parametrize("arm", ["human", "agent"])
def test_gain_on_the_other_clock_alone_names_the_option(arm: str) -> None:
    verdict = _with_walls(Rule(), 0.01, arm)
    assert verdict.facts["opt"] == "not"
    assert verdict.facts["other_clock"] == {"clock": "wall", "speedup_base": 10.0}
    line = told_of(SimpleNamespace(success=False, cause=verdict.cause, metrics=verdict.metrics, facts=verdict.facts))
    assert line.endswith("30 blocks, wall and CPU disagree: 10.00× base by --clock wall")

    assert line.startswith("not optimized: 1.00× base (98.4 % interval 1.00 to 1.00), ")

    by_wall = _with_walls(Rule(clock="wall"), 0.01, arm)
    assert (by_wall.facts["opt"], "other_clock" in by_wall.facts) == ("opt", False)


@pytest.mark.parametrize(("seconds", "arm"), [(0.1, "agent"), (0.095, "agent"), (0.2, "human"), (0.01, "baseline")])
def test_clocks_that_agree_are_not_told_of(seconds: float, arm: str) -> None:
    verdict = _with_walls(Rule(), seconds, arm)
    assert "other_clock" not in verdict.facts
