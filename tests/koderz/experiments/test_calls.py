"""How a call is made: by which model, with what sampling, within the cap, and the first one alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from koderz.errors import FatalFault, Fault
from koderz.experiments.budget import CapReached
from koderz.experiments.calls import Caller
from koderz.experiments.lines import Ask
from koderz.models import Price
from koderz.plans.arms import Arm
from koderz.plans.plan import Identity
from koderz.settings.schema import Settings
from koderz.solvers import load_solver
from koderz.types import Completion, Message, Sampling, Task
from tests.conftest import PATIENCE
from tests.koderz.world import Crowded, Scripted


def asked(text: str = "hello", model: str | None = None, purpose: str = "attempt", **sampling: Any) -> Ask:
    return Ask(({"role": "user", "content": text},), model, purpose, sampling)


def caller(*models: Scripted, spent: float = 0.0, baseline: Price | None = None, **settings: Any) -> Caller:
    """A caller of models m0, m1, …; m0 is the run's own."""
    named = {f"m{i}": model for i, model in enumerate(models)}
    return Caller(Settings(local_model="m0", **settings), named, spent=spent, baseline=baseline)


def at(sample: int) -> Identity:
    """A sample of an arm whose models are m0, which answers, and m1, which helps."""
    arm = Arm("test", load_solver("zero-shot", {}, {}), {"main": "m0", "spec": "m1"})
    return Identity("exp_00000000000000ab", Task("T/0", "", "f"), arm, sample)


def sampling_sent(ask: Ask, sample: int = 0, **settings: Any) -> Sampling:
    model = Scripted()
    answer = asyncio.run(caller(model, **settings).complete(ask, at(sample)))
    assert model.asked[0][1] == answer.sampling
    return answer.sampling


# Which model, with what


def test_default_model_answers_unless_another_is_named() -> None:
    own, other = Scripted(lambda m, s: "own"), Scripted(lambda m, s: "other")

    async def go() -> list[tuple[str, str, str]]:
        calls = caller(own, other)
        answers = [await calls.complete(asked(model=model), at(0)) for model in (None, "spec", "m1", "m0")]
        return [(answer.completion.text, answer.role, answer.model) for answer in answers]

    helped = ("other", "spec", "m1")
    assert asyncio.run(go()) == [("own", "main", "m0"), helped, helped, ("own", "main", "m0")]


def test_model_outside_of_the_plan_is_a_fault() -> None:
    with pytest.raises(Fault, match=r"asks gpt-4o, which its arm hasn't got; it has main \(m0\), spec \(m1\)"):
        asyncio.run(caller(Scripted(), Scripted()).complete(asked(model="gpt-4o"), at(0)))


def test_sampling_is_the_runs_where_the_solver_says_nothing() -> None:
    sent = sampling_sent(asked(), temperature=0.3, max_tokens=77, top_p=0.5, seed=4)

    assert sent == Sampling(temperature=0.3, max_tokens=77, top_p=0.5, seed=4)


def test_sampling_of_the_solver_wins() -> None:
    sent = sampling_sent(asked(temperature=1.0, max_tokens=5, stop=("END",)), temperature=0.3)

    assert (sent.temperature, sent.max_tokens, sent.stop) == (1.0, 5, ("END",))


@pytest.mark.parametrize(("sample", "seed"), [(0, 11), (1, 12), (9, 20)])
def test_seed_is_that_of_the_run_plus_the_sample(sample: int, seed: int) -> None:
    assert sampling_sent(asked(), sample, seed=11).seed == seed


def test_seed_of_the_solver_is_sent_unchanged() -> None:
    assert sampling_sent(asked(seed=5), 3, seed=11).seed == 5


def test_temperature_is_cold_for_one_sample_and_warm_for_several() -> None:
    assert sampling_sent(asked()).temperature == 0.0
    assert sampling_sent(asked(), samples=5).temperature == 0.8
    assert sampling_sent(asked(), samples=5, temperature=0.0).temperature == 0.0


def test_sampling_parameter_that_is_unknown_is_a_fault() -> None:
    with pytest.raises(
        Fault, match="no sampling parameter heat, zest; it has temperature, max_tokens, top_p, seed, stop"
    ):
        asyncio.run(caller(Scripted()).complete(asked(zest=1, heat=2), at(0)))


# The first call alone


def test_first_call_goes_alone_until_it_has_come_back() -> None:
    async def go() -> None:
        gate = asyncio.Event()

        class Gated(Scripted):
            async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
                self.asked.append((tuple(messages), sampling))
                await gate.wait()
                return Completion("x")

        model = Gated()
        calls = caller(model)
        tasks = [asyncio.create_task(calls.complete(asked(str(i)), at(0))) for i in range(20)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(model.asked) == 1
        gate.set()
        await asyncio.gather(*tasks)
        assert len(model.asked) == 20

    asyncio.run(go())


def test_once_a_model_has_answered_its_calls_go_side_by_side() -> None:
    async def go() -> int:
        model = Crowded(crowd=7)
        calls = caller(model)
        await asyncio.gather(*(calls.complete(asked(str(i)), at(0)) for i in range(8)))
        return model.most_at_once

    assert asyncio.run(go()) == 7  # the first alone


def test_first_call_is_made_for_each_model() -> None:
    async def go() -> None:
        one, two = Scripted(), Scripted(delay=0.005)
        calls = caller(one, two)
        await calls.complete(asked(), at(0))
        pending = [asyncio.create_task(calls.complete(asked(str(i), "m1"), at(0))) for i in range(5)]
        await asyncio.sleep(0.001)
        assert len(two.asked) <= 1
        await asyncio.gather(*pending)

    asyncio.run(go())


def test_first_call_that_fails_lets_another_try() -> None:
    left: list[BaseException] = [Fault("busy"), Fault("busy")]

    def line(messages: Sequence[Message], sampling: Sampling) -> str:
        if left:
            raise left.pop()
        return "x"

    async def go() -> list[Any]:
        model = Scripted(line, delay=0.001)
        calls = caller(model)
        done = await asyncio.gather(*(calls.complete(asked(str(i)), at(0)) for i in range(6)), return_exceptions=True)
        return [done, model.most_at_once]

    done, _ = asyncio.run(go())
    assert [isinstance(value, Fault) for value in done] == [True, True, False, False, False, False]


def test_closed_caller_makes_no_more_calls() -> None:
    async def go() -> Scripted:
        model = Scripted()
        calls = caller(model)
        await calls.complete(asked(), at(0))
        calls.closed = CapReached("the run is over")
        with pytest.raises(CapReached, match="the run is over"):
            await calls.complete(asked(), at(0))
        return model

    assert len(asyncio.run(go()).asked) == 1


def test_first_call_that_is_cancelled_lets_another_through() -> None:
    async def go() -> None:
        model = Scripted(delay=2 * PATIENCE)
        calls = caller(model)
        first = asyncio.create_task(calls.complete(asked("a"), at(0)))
        await asyncio.sleep(0.001)
        second = asyncio.create_task(calls.complete(asked("b"), at(0)))
        await asyncio.sleep(0.001)
        model.delay = 0
        first.cancel()
        await asyncio.wait_for(second, PATIENCE)
        assert len(model.asked) == 2

    asyncio.run(go())


def test_fatal_fault_is_handed_on() -> None:
    def line(messages: Sequence[Message], sampling: Sampling) -> str:
        raise FatalFault("the key is wrong")

    with pytest.raises(FatalFault, match="the key is wrong"):
        asyncio.run(caller(Scripted(line)).complete(asked(), at(0)))


# Money


def test_estimate_goes_by_characters_and_longest_reply() -> None:
    model = Scripted(cost=Price(3e6, 1e6))  # $3 a token in, $1 a token out
    with pytest.raises(CapReached, match=r"the next call could cost \$(\d+\.\d{4})") as refused:
        asyncio.run(caller(model, max_cost=1.0, max_tokens=10).complete(asked("x" * 30), at(0)))
    (dollars,) = re.findall(r"could cost \$(\d+\.\d{4})", str(refused.value))
    assert 10 + 3 * 30 / 4 < float(dollars) < 10 + 3 * (30 + 40)

    asyncio.run(caller(model, max_cost=float(dollars) + 1e-4, max_tokens=10).complete(asked("x" * 30), at(0)))


def test_estimate_counts_the_solvers_own_token_limit() -> None:
    async def go(longest: int) -> None:
        model = Scripted(cost=Price(0, 1e6))
        await caller(model, max_cost=50, max_tokens=10).complete(asked(max_tokens=longest), at(0))

    asyncio.run(go(50))
    with pytest.raises(CapReached):
        asyncio.run(go(51))


def test_spending_of_earlier_sessions_counts() -> None:
    model = Scripted(cost=Price(0, 1e6))

    with pytest.raises(CapReached, match=r"\$95.0000 is spent"):
        asyncio.run(caller(model, spent=95.0, max_cost=100, max_tokens=10).complete(asked(), at(0)))


def test_free_model_is_never_held_back() -> None:
    asyncio.run(caller(Scripted(), max_cost=0.0).complete(asked("x" * 1000), at(0)))


def test_tokens_are_priced_on_the_baseline_model_where_there_is_one() -> None:
    assert caller(Scripted(), baseline=Price(2.0, 10.0)).baseline_cost(1_000_000, 500_000) == 7.0
    assert caller(Scripted()).baseline_cost(1_000_000, 500_000) is None
