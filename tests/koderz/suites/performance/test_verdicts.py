"""What blocks tell of a patch: nothing is claimed that the noise doesn't allow."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from koderz.suites.performance.measuring.verdicts import Block, Leg, Rule, Timing, estimate, found, is_look, rank_of

RULE = Rule()


def _block(times: dict[str, float], *, outside: dict[str, float] | None = None, calls: int = 20) -> Block:
    """One workload in legs that take these milliseconds a call, and so many seconds `outside` of calls."""
    legs = {}
    for leg, milliseconds in times.items():
        seconds = milliseconds / 1000
        total = seconds * calls
        legs[leg] = Leg(total + (outside or {}).get(leg, 0.05), total, {"w": Timing(seconds, seconds, total)})
    return Block(legs)


def _blocks(count: int, agent: float, *, human: float = 4.0, noise: float = 0.02, seed: int = 1) -> list[Block]:
    rng = random.Random(seed)

    def drawn(milliseconds: float) -> float:
        return milliseconds * math.exp(rng.gauss(0, noise))

    return [
        _block({"base": drawn(10), "again": drawn(10), "human": drawn(human), "agent": drawn(agent)})
        for _ in range(count)
    ]


@pytest.mark.parametrize(("count", "rank"), [(6, 0), (7, 1), (12, 2), (17, 4), (22, 5), (27, 7), (30, 8)])
def test_intervals_are_of_the_order_statistics_that_hold_984_in_1000(count: int, rank: int) -> None:
    assert rank_of(count) == rank
    logs = [math.log(1 + number / 100) for number in range(1, count + 1)]
    found = estimate(logs)
    if rank:
        assert found.low == pytest.approx(1 + rank / 100)
        assert found.high == pytest.approx(1 + (count + 1 - rank) / 100)
    else:
        assert (found.low, found.high) == (None, None)


def test_looks_are_few_and_the_last_is_where_blocks_end() -> None:
    assert [count for count in range(1, 31) if is_look(count, 30)] == [7, 12, 17, 22, 27, 30]
    assert is_look(9, 9)


@pytest.mark.parametrize(
    ("agent", "word"),
    [(3.0, "opt"), (10.0, "not"), (9.5, "not"), (6.0, "not")],
    ids=["faster than both", "as base", "a little faster", "slower than the human"],
)
def test_a_clear_case_is_decided_in_seven_blocks(agent: float, word: str) -> None:
    assert found(_blocks(7, agent), "agent", RULE).opt == word


def test_what_lies_on_the_threshold_is_not_decided() -> None:
    finding = found(_blocks(30, 4.0 / 0.95), "agent", RULE)
    assert finding.opt == "inconclusive"


def test_six_blocks_decide_nothing() -> None:
    assert found(_blocks(6, 1.0), "agent", RULE).opt == "inconclusive"


def test_a_no_op_is_never_good_enough_whatever_the_noise() -> None:
    words = {
        found(_blocks(count, 10.0, noise=0.3, seed=seed), "agent", RULE).opt for seed in range(40) for count in (7, 30)
    }
    assert "opt" not in words


def test_what_base_is_off_from_itself_widens_the_intervals() -> None:
    even = [_block({"base": 10, "again": 10, "human": 5}) for _ in range(7)]
    odd = [_block({"base": 10, "again": 9.6, "human": 5}) for _ in range(7)]
    (one, other) = (found(blocks, "human", RULE).speedups["base"] for blocks in (even, odd))
    assert one.low == one.high == pytest.approx(2)
    assert other.low
    assert other.high
    assert other.high / other.low == pytest.approx((10 / 9.6) ** 2)


def test_work_that_is_moved_out_of_the_calls_is_seen_in_the_whole_leg() -> None:
    outside = {"base": 0.05, "again": 0.05, "human": 0.05}
    honest = [_block({"base": 10, "again": 10, "human": 5, "agent": 2}, outside={**outside, "agent": 0.05})] * 7
    moved = [_block({"base": 10, "again": 10, "human": 5, "agent": 2}, outside={**outside, "agent": 0.2})] * 7
    assert (found(honest, "agent", RULE).opt, found(honest, "agent", RULE).hack) == ("opt", "")
    assert (found(moved, "agent", RULE).opt, found(moved, "agent", RULE).hack) == ("not", "moved")
    noisy = [
        _block(
            {"base": 10, "again": 10, "human": 5, "agent": 2},
            outside={"base": 1.3, "again": 1.5, "human": 1.4, "agent": 1.45},
        )
    ] * 7
    assert found(noisy, "agent", RULE).hack == ""  # as little as base is off from itself


@pytest.mark.parametrize(("between", "hack"), [(1.0, ""), (1.4, ""), (3.0, "moved")])
def test_work_that_is_done_before_each_call_is_seen_whatever_the_rest_of_the_leg_saves(
    between: float, hack: str
) -> None:
    def block() -> Block:
        found = _block({"base": 10, "again": 10, "human": 8, "agent": 8}, outside={"agent": 0.0})
        legs = {
            name: replace(leg, work={"w": replace(leg.work["w"], between=0.001)}) for name, leg in found.legs.items()
        }
        legs["agent"] = replace(legs["agent"], work={"w": replace(legs["agent"].work["w"], between=between / 1000)})
        return Block(legs)

    assert found([block() for _ in range(7)], "agent", RULE).hack == hack


@pytest.mark.parametrize(("agent", "base", "commit"), [(8.69, True, False), (8.7, False, False), (4.2, True, True)])
def test_gso_s_rule_is_one_of_points(agent: float, base: bool, commit: bool) -> None:
    blocks = [_block({"base": 10, "again": 10, "human": 4.0, "agent": agent})] * 7
    finding = found(blocks, "agent", Rule(strict=True))
    assert dict(finding.points) == {"opt_base": base, "opt_commit": commit}
    assert finding.opt == ("opt" if commit else "not")


def test_means_are_geometric_to_base_and_harmonic_to_the_human() -> None:
    def leg(one: float, two: float) -> Leg:
        return Leg(1.0, 1.0, {"one": Timing(one, one, one), "two": Timing(two, two, two)})

    block = Block({"base": leg(8, 2), "again": leg(8, 2), "human": leg(4, 2), "agent": leg(2, 2)})
    finding = found([block] * 7, "agent", RULE)
    assert finding.speedups["base"].value == pytest.approx(math.sqrt(4 * 1))
    assert finding.speedups["human"].value == pytest.approx(2 / (2 / 4 + 2 / 2))


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_the_clock_that_decides_is_chosen(clock: str) -> None:
    timing: Callable[[float, float], Leg] = lambda cpu, wall: Leg(cpu, wall, {"w": Timing(cpu, wall, cpu)})  # noqa: E731
    block = Block({"base": timing(4, 4), "again": timing(4, 4), "human": timing(1, 4)})
    word = found([block] * 7, "human", Rule(clock=clock)).opt  # type: ignore[arg-type]
    assert word == ("opt" if clock == "cpu" else "not")
