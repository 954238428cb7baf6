"""What blocks tell of a patch: nothing is claimed that the noise doesn't allow."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from koderz.systems.patches.measuring.verdicts import (
    Block,
    Finding,
    Leg,
    Rule,
    Timing,
    autocorrelation,
    estimate,
    found,
    is_look,
    rank_of,
    review_of,
    widening,
)

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
def test_verdict_of_a_clear_case_takes_7_blocks(agent: float, word: str) -> None:
    assert found(_blocks(7, agent), "agent", RULE).opt == word


def test_verdict_on_the_threshold_is_undecided() -> None:
    finding = found(_blocks(30, 4.0 / 0.95), "agent", RULE)
    assert finding.opt == "inconclusive"


def test_six_blocks_decide_nothing() -> None:
    assert found(_blocks(6, 1.0), "agent", RULE).opt == "inconclusive"


def test_verdict_on_a_no_op_is_never_good_in_any_noise() -> None:
    words = {
        found(_blocks(count, 10.0, noise=0.3, seed=seed), "agent", RULE).opt for seed in range(40) for count in (7, 30)
    }
    assert "opt" not in words


def test_intervals_widen_by_the_drift_of_base() -> None:
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


@pytest.mark.parametrize(("count", "opt", "hack"), [(3, "opt", ""), (4, "inconclusive", ""), (7, "not", "moved")])
def test_work_is_moved_only_where_each_leg_says_so(count: int, opt: str, hack: str) -> None:
    """Legs that take longer outside their calls now and then are those of a busy machine, or of a patch that hides."""
    blocks = [
        _block({"base": 10, "again": 10, "human": 5, "agent": 2}, outside={"agent": 0.2 if number < count else 0.05})
        for number in range(7)
    ]
    finding = found(blocks, "agent", RULE)
    assert (finding.opt, finding.hack) == (opt, hack)
    assert all(finding.points.values()) == (opt == "opt")


@pytest.mark.parametrize(("between", "hack"), [(1.0, ""), (1.4, ""), (3.0, "moved")])
def test_work_before_each_call_is_seen_whatever_a_leg_saves(between: float, hack: str) -> None:
    def block() -> Block:
        found = _block({"base": 10, "again": 10, "human": 8, "agent": 8}, outside={"agent": 0.0})
        legs = {
            name: replace(leg, work={"w": replace(leg.work["w"], between=0.001)}) for name, leg in found.legs.items()
        }
        legs["agent"] = replace(legs["agent"], work={"w": replace(legs["agent"].work["w"], between=between / 1000)})
        return Block(legs)

    assert found([block() for _ in range(7)], "agent", RULE).hack == hack


def _beside(blocks: list[Block], **seconds: float) -> list[Block]:
    """The same, whose agent takes so many seconds beside each call, and as many fewer in it."""

    def changed(leg: Leg) -> Leg:
        work = leg.work["w"]
        return replace(leg, work={"w": replace(work, cpu=work.cpu - sum(seconds.values()), **seconds)})

    return [Block({**block.legs, "agent": changed(block.legs["agent"])}) for block in blocks]


@pytest.mark.parametrize("kind", ["between", "beside"])
def test_work_of_a_patch_beside_its_calls_counts(kind: str) -> None:
    blocks = _blocks(7, 4.0 / 0.83, noise=0.005)
    assert found(blocks, "agent", RULE).opt == "not"
    finding = found(_beside(blocks, **{kind: 0.0008}), "agent", RULE)  # 8 % of base's
    assert (finding.opt, finding.hack) == ("not", "")
    assert finding.speedups["human"].value == pytest.approx(0.83, rel=0.02)
    assert finding.beside == {"agent": pytest.approx(0.0008)}


def test_work_of_the_human_beside_the_calls_counts() -> None:
    blocks = _blocks(7, 4.0)
    slower = [
        Block({**block.legs, "human": replace(leg, work={"w": replace(leg.work["w"], between=0.001)})})
        for block in blocks
        for leg in [block.legs["human"]]
    ]
    assert found(slower, "agent", RULE).speedups["human"].value == pytest.approx(5 / 4, rel=0.05)


def test_work_not_surely_more_beside_the_calls_does_not_count() -> None:
    blocks = _blocks(7, 3.0)
    once = [*_beside(blocks[:1], between=0.001), *blocks[1:]]
    assert found(once, "agent", RULE).beside == {}


def test_gso_s_rule_counts_what_is_done_beside_the_calls() -> None:
    blocks = [_block({"base": 10, "again": 10, "human": 4.0, "agent": 8.9})] * 7
    assert found(_beside(blocks, beside=0.0008), "agent", RULE).points == found(blocks, "agent", RULE).points
    assert not found(blocks, "agent", RULE).points["opt_base"]


def _series(rho: float, count: int, rng: random.Random) -> list[float]:
    values = [rng.gauss(0, 1)]
    while len(values) < count:
        values.append(rho * values[-1] + math.sqrt(1 - rho**2) * rng.gauss(0, 1))
    return values


def test_blocks_that_resemble_those_before_widen_the_intervals() -> None:
    rngs = [*map(random.Random, range(300))]
    low, high = (sum(autocorrelation([_series(rho, 30, rng)]) for rng in rngs) / len(rngs) for rho in (0.0, 0.6))
    assert low < 0.15
    assert 0.5 < high < 0.7
    drifting = [_block({"base": 10 + 0.01 * n, "again": 10, "human": 4, "agent": 3 + 0.01 * n}) for n in range(12)]
    mixed = [drifting[n] for n in (5, 0, 11, 3, 8, 1, 10, 4, 7, 2, 9, 6)]
    (wide, narrow) = (found(each, "agent", RULE) for each in (drifting, mixed))
    assert wide.autocorrelation > narrow.autocorrelation
    widths = [each.speedups["human"].high / each.speedups["human"].low for each in (wide, narrow)]  # type: ignore[operator]
    assert widths[0] > widths[1]


def test_values_that_are_all_the_same_resemble_nothing() -> None:
    assert autocorrelation([[0.1 + 0.2] * 7, [0.3] * 30, []]) == 0.0
    assert widening(0.0) == 1.0
    assert widening(0.6) == pytest.approx(2.0)


def _at_work(leg: Leg, *, hidden: float = 0.0, busy: float = 0.0) -> Leg:
    """The leg with so many seconds of its calls hidden, and with so many on its core."""
    return replace(leg, work={"w": replace(leg.work["w"], hidden=hidden, busy=busy)})


def test_hidden_work_is_unclocked_and_gainful() -> None:
    def finding(agent: float, hidden: float) -> Finding:
        legs = _block({"base": 10, "again": 10, "human": 5, "agent": agent}).legs
        return found([Block({**legs, "agent": _at_work(legs["agent"], hidden=hidden)})] * 7, "agent", RULE)

    assert (finding(10.0, 0.19).opt, finding(10.0, 0.19).hack) == ("not", "hidden")
    assert (finding(10.0, 0.0).opt, finding(10.0, 0.0).hack) == ("not", "")
    assert (finding(2.0, 0.03).opt, finding(2.0, 0.03).hack) == ("opt", "")  # it counts, and is little


@pytest.mark.parametrize(
    ("agent_busy", "word", "hack"), [(0.2, "not", "hidden"), (0.04, "opt", ""), (0.06, "opt", ""), (0.0, "opt", "")]
)
def test_work_that_is_counted_nowhere_is_seen_on_its_core(agent_busy: float, word: str, hack: str) -> None:
    def block(load: float) -> Block:
        legs = _block({"base": 10, "again": 10, "human": 5, "agent": 2}).legs
        busy = {"base": 0.2, "again": 0.2, "human": 0.1, "agent": agent_busy}
        return Block({name: _at_work(leg, busy=busy[name] * load) for name, leg in legs.items()})

    for load in (1.0, 5.0):  # what else is at work on the core makes all of it longer
        finding = found([block(load)] * 7, "agent", RULE)
        assert (finding.opt, finding.hack) == (word, hack)


def test_honest_patch_hides_nothing_on_a_busy_core() -> None:
    def block(rng: random.Random) -> Block:
        legs = _block({"base": 10, "again": 10, "human": 5, "agent": 2}).legs
        loads = {name: rng.choice([1.0, 2.0, 5.0]) for name in legs}
        return Block({name: _at_work(leg, busy=leg.wall * loads[name]) for name, leg in legs.items()})

    hacks = {found([block(rng) for _ in range(7)], "agent", RULE).hack for rng in map(random.Random, range(500))}
    assert hacks == {""}


@pytest.mark.parametrize(("agent", "why"), [(1.9, "surely more than 2 times"), (2.1, ""), (4.0, "")])
def test_review_is_needed_far_above_the_human(agent: float, why: str) -> None:
    finding = found(_blocks(7, agent, noise=0.001), "agent", RULE)
    assert finding.opt == "opt"
    assert bool(review_of(finding)) == bool(why)
    assert why in review_of(finding)


def test_review_is_not_needed_without_certainty() -> None:
    assert review_of(found(_blocks(6, 0.1), "agent", RULE)) == ""
    assert review_of(found(_blocks(7, 1.9, noise=0.1), "agent", RULE)) == ""


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
def test_clock_that_decides_is_chosen(clock: str) -> None:
    timing: Callable[[float, float], Leg] = lambda cpu, wall: Leg(cpu, wall, {"w": Timing(cpu, wall, cpu)})  # noqa: E731
    block = Block({"base": timing(4, 4), "again": timing(4, 4), "human": timing(1, 4)})
    word = found([block] * 7, "human", Rule(clock=clock)).opt  # type: ignore[arg-type]
    assert word == ("opt" if clock == "cpu" else "not")
