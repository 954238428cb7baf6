"""The cost cap: calls wait rather than fail while others may turn out cheaper, and none starts that could pass it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from koderz.experiments.budget import Budget, CapReached, Estimate


async def spend(budget: Budget, estimate: float, cost: float, seconds: float = 0.0) -> float:
    async with budget.call(Estimate.of(estimate)):
        await asyncio.sleep(seconds)
        budget.paid(cost)
    return cost


async def test_budget_without_a_cap_holds_nothing_back() -> None:
    budget = Budget(None)
    await asyncio.gather(*(spend(budget, 1e9, 2.0) for _ in range(10)))
    assert budget.spent == 20.0


@pytest.mark.parametrize(("spent", "estimate"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_cap_lets_a_call_that_just_fits(spent: float, estimate: float) -> None:
    asyncio.run(spend(Budget(1.0, spent), estimate, 0.0))


@pytest.mark.parametrize(("spent", "estimate"), [(0.0, 1.01), (0.5, 0.51), (1.2, 0.0)])
def test_cap_refuses_a_call_that_could_pass_it_with_advice(spent: float, estimate: float) -> None:
    with pytest.raises(CapReached, match=r"the cost cap of \$1 is reached: .* resume with a higher --max-cost"):
        asyncio.run(spend(Budget(1.0, spent), estimate, 0.0))


async def test_cap_waits_for_real_costs_of_other_calls() -> None:
    budget = Budget(1.0)
    done = await asyncio.gather(*(spend(budget, 0.6, 0.1, 0.001) for _ in range(5)), return_exceptions=True)
    assert done == [0.1] * 5  # one after the other: 0.6 + 0.6 would pass the cap


async def test_cap_refuses_a_call_that_has_waited_in_vain() -> None:
    budget = Budget(1.0)
    done = await asyncio.gather(*(spend(budget, 0.6, 0.5, 0.001) for _ in range(4)), return_exceptions=True)
    assert [value for value in done if not isinstance(value, BaseException)] == [0.5]
    assert all(isinstance(value, CapReached) for value in done[1:])
    assert budget.spent == 0.5


def test_calls_run_side_by_side_as_far_as_they_fit() -> None:
    async def go() -> int:
        budget, inside, most = Budget(1.0), 0, 0

        async def one() -> None:
            nonlocal inside, most
            async with budget.call(Estimate.of(0.25)):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(20)))
        return most

    assert asyncio.run(go()) == 4


async def test_failed_call_frees_what_it_held() -> None:
    budget = Budget(1.0)
    for _ in range(3):
        with pytest.raises(ValueError, match="oh"):
            async with budget.call(Estimate.of(0.9)):
                raise ValueError("oh")
    await spend(budget, 0.9, 0.0)


async def _cancel(work: Awaitable[float]) -> None:
    task = asyncio.ensure_future(work)
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_call_holds_nothing_whether_under_way_or_in_line() -> None:
    budget = Budget(1.0)
    waiting = asyncio.create_task(spend(budget, 0.5, 0.0))
    await _cancel(spend(budget, 0.9, 0.0, 60))
    await asyncio.wait_for(waiting, 10)
    await asyncio.wait_for(spend(budget, 1.0, 0.0), 10)
    async with budget.call(Estimate.of(0.9)):
        await _cancel(spend(budget, 0.9, 0.0))
    await asyncio.wait_for(spend(budget, 1.0, 0.0), 10)


async def test_cancelled_at_any_moment_nothing_stays_held() -> None:
    chance = random.Random(3)
    budget = Budget(1.0)
    tasks = [asyncio.create_task(spend(budget, chance.uniform(0.1, 0.9), 0.0, 0.001)) for _ in range(200)]
    while running := [task for task in tasks if not task.done()]:
        chance.choice(running).cancel()
        await asyncio.sleep(0)
    await asyncio.wait_for(spend(budget, 1.0, 0.0), 10)


async def test_cap_holds_for_any_costs_below_their_estimates() -> None:
    chance = random.Random(5)
    budget = Budget(10.0)

    async def one() -> None:
        estimate = chance.uniform(0.01, 1.0)
        await spend(budget, estimate, estimate * chance.random(), 0.0)
        assert budget.spent <= 10.0

    await asyncio.gather(*(one() for _ in range(300)), return_exceptions=True)
    assert 9.0 < budget.spent <= 10.0


def _residue(cap: float, most: float, seed: int) -> Callable[[Budget], Awaitable[None]]:
    """Calls that begin and end in an order of their own, until none is left."""

    async def go(budget: Budget) -> None:
        chance, under_way, held = random.Random(seed), [], 0.0
        for _ in range(2000):
            estimate = chance.random() * most
            if held + estimate < cap and chance.random() < 0.55:
                call = budget.call(Estimate.of(estimate))
                await call.__aenter__()
                under_way.append((call, estimate))
                held += estimate
            elif under_way:
                call, estimate = under_way.pop(chance.randrange(len(under_way)))
                await call.__aexit__(None, None, None)
                held -= estimate
        for call, _ in under_way:
            await call.__aexit__(None, None, None)

    return go


@pytest.mark.slow
async def test_cap_waits_for_no_call_if_none_is_under_way() -> None:
    for seed in range(40):
        budget = Budget(1000.0)
        await _residue(1000.0, 10.0, seed)(budget)
        with pytest.raises(CapReached):
            await asyncio.wait_for(spend(budget, 1000.1, 0.0), 10)


async def test_calls_in_batches_wait_beside_others_until_real_costs_leave_room() -> None:
    budget, ends = Budget(1.0), [asyncio.Event() for _ in range(3)]
    sent: asyncio.Queue[int] = asyncio.Queue()

    async def ask(number: int) -> None:
        async with budget.call_in_batch(0.4, is_held=False):
            sent.put_nowait(number)
            await ends[number].wait()
            budget.paid(0.1)

    asked = [asyncio.create_task(ask(number)) for number in range(3)]
    assert [await sent.get() for _ in range(2)] == [0, 1]
    assert budget.held == pytest.approx(0.8)
    with pytest.raises(CapReached):  # of a call that isn't in a batch
        await spend(budget, 0.3, 0.0)
    ends[1].set()
    assert await sent.get() == 2
    assert [budget.spent, budget.held] == pytest.approx([0.1, 0.8])
    for end in ends:
        end.set()
    await asyncio.gather(*asked)
    assert [budget.spent, budget.held] == pytest.approx([0.3, 0.0])
    with pytest.raises(CapReached):  # with none under way there is nothing to wait for
        async with budget.call_in_batch(0.8, is_held=False):
            raise AssertionError("it was let in")
    assert budget.held == pytest.approx(0.0)


async def test_call_in_a_batch_of_an_earlier_session_is_held_already() -> None:
    budget = Budget(1.0)
    budget.held = 0.9
    async with budget.call_in_batch(0.9, is_held=True):
        assert budget.held == 0.9
    assert budget.held == 0.0
