"""How a call is made: by which model, with what sampling, within the cap, and the first one alone."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any
from unittest.mock import AsyncMock

import pytest

from koderz.errors import FatalFault, Fault
from koderz.experiments.budget import CapReached
from koderz.experiments.calls import Caller
from koderz.experiments.recording import Ask
from koderz.models import Price
from koderz.plans.arms import Arm
from koderz.plans.plan import Identity
from koderz.settings.schema import Settings
from koderz.solvers import load_solver
from koderz.testing import FakeModel, a_model
from koderz.testing.factories import Answer
from koderz.types import Completion, Sampling, Task
from tests.conftest import PATIENCE
from tests.koderz.world import Crowded, good


def asked(text: str = "hello", model: str | None = None, purpose: str = "attempt", **sampling: Any) -> Ask:
    return Ask(({"role": "user", "content": text},), model, purpose, sampling)


def caller(*models: FakeModel, spent: float = 0.0, baseline: Price | None = None, **settings: Any) -> Caller:
    """A caller of models m0, m1, …; m0 is the run's own."""
    named = {f"m{i}": model for i, model in enumerate(models)}
    return Caller(Settings(local_model="m0", **settings), named, spent=spent, baseline=baseline)


def at(sample: int) -> Identity:
    """A sample of an arm whose models are m0, which answers, and m1, which helps."""
    arm = Arm("test", load_solver("zero-shot", {}, {}), {"main": "m0", "spec": "m1"})
    return Identity("exp_00000000000000ab", Task("T/0", "", "f"), arm, sample)


def sampling_sent(ask: Ask, sample: int = 0, **settings: Any) -> Sampling:
    model = a_model("GOOD")
    answer = asyncio.run(caller(model, **settings).complete(ask, at(sample)))
    assert model.asked[0][1] == answer.sampling
    return answer.sampling


# Which model, with what

ALL: dict[str, Any] = {"temperature": 0.3, "max_tokens": 77, "top_p": 0.5, "seed": 4}


async def test_halves_of_surrogate_pairs_are_replaced_in_all_that_a_model_says() -> None:
    half = "\ud83d"
    call = {"id": half, "type": "function", "function": MappingProxyType({"name": "f", "arguments": [half, 3]})}
    said = Completion(
        half, half, finish_reason=half, model=half, raw=half, tool_calls=(call,), body=half, items=(call,)
    )
    model = a_model("")
    model.complete = AsyncMock(return_value=said)  # type: ignore[method-assign]

    answer = await caller(model).complete(asked(), at(0))

    whole = {"id": "?", "type": "function", "function": {"name": "f", "arguments": ["?", 3]}}
    expected = Completion(
        "?", "?", finish_reason="?", model="?", raw="?", tool_calls=(whole,), body="?", items=(whole,)
    )
    assert replace(answer.completion, latency=0.0) == replace(expected, latency=0.0)


async def test_default_model_answers_unless_another_is_named() -> None:
    calls = caller(a_model("own"), a_model("other"))
    answers = [await calls.complete(asked(model=model), at(0)) for model in (None, "spec", "m1", "m0")]
    own, helped = ("own", "main", "m0"), ("other", "spec", "m1")
    found = [(answer.completion.text, answer.role, answer.model) for answer in answers]
    assert found == [own, helped, helped, own]


@pytest.mark.parametrize(
    ("answer", "ask", "kind", "said"),
    [
        ("x", asked(model="gpt-4o"), Fault, r"asks gpt-4o, which its arm hasn't got; it has main \(m0\), spec \(m1\)"),
        (
            "x",
            asked(zest=1, heat=2),
            Fault,
            "no sampling parameter heat, zest; it has temperature, max_tokens, top_p, seed, stop",
        ),
        (FatalFault("the key is wrong"), asked(), FatalFault, "the key is wrong"),
    ],
    ids=["no such model", "no such parameter", "fatal"],
)
def test_call_that_cannot_be_made_is_a_fault(answer: Answer, ask: Ask, kind: type[Fault], said: str) -> None:
    with pytest.raises(kind, match=said):
        asyncio.run(caller(a_model(answer), a_model(answer)).complete(ask, at(0)))


@pytest.mark.parametrize(
    ("own", "settings", "sample", "sent"),
    [
        ({}, ALL, 0, ALL),
        ({"temperature": 1.0, "max_tokens": 5, "stop": ("END",)}, {"temperature": 0.3}, 0, None),
        *(({}, {"seed": 11}, sample, {"seed": 11 + sample}) for sample in (0, 1, 9)),
        ({"seed": 5}, {"seed": 11}, 3, None),
        ({}, {}, 0, {"temperature": 0.0}),
        ({}, {"samples": 5}, 0, {"temperature": 0.8}),
        ({}, {"samples": 5, "temperature": 0.0}, 0, {"temperature": 0.0}),
    ],
)
def test_sampling_is_the_solvers_or_the_runs_with_a_seed_for_each_sample(
    own: dict[str, Any], settings: dict[str, Any], sample: int, sent: dict[str, Any] | None
) -> None:
    found = asdict(sampling_sent(asked(**own), sample, **settings))
    assert found.items() >= (own if sent is None else sent).items()
    if sent is ALL:
        assert found == asdict(Sampling(**ALL))


# The first call alone


async def test_first_call_goes_alone_until_it_has_come_back() -> None:
    gate = asyncio.Event()

    class Gated(FakeModel):
        async def wait(self) -> None:
            await gate.wait()

    model = Gated(good)
    calls = caller(model)
    tasks = [asyncio.create_task(calls.complete(asked(str(i)), at(0))) for i in range(20)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(model.asked) == 1
    gate.set()
    await asyncio.gather(*tasks)
    assert len(model.asked) == 20


async def test_once_a_model_has_answered_its_calls_go_side_by_side() -> None:
    model = Crowded(crowd=7)
    calls = caller(model)
    await asyncio.gather(*(calls.complete(asked(str(i)), at(0)) for i in range(8)))
    assert model.most_at_once == 7  # the first alone


async def test_first_call_is_made_for_each_model() -> None:
    one, two = a_model("GOOD"), a_model("GOOD", delay=0.005)
    calls = caller(one, two)
    await calls.complete(asked(), at(0))
    pending = [asyncio.create_task(calls.complete(asked(str(i), "m1"), at(0))) for i in range(5)]
    await asyncio.sleep(0.001)
    assert len(two.asked) <= 1
    await asyncio.gather(*pending)


async def test_first_call_that_fails_lets_another_try() -> None:
    calls = caller(a_model([Fault("busy"), Fault("busy"), "x"], delay=0.001))
    assert [
        isinstance(value, Fault)
        for value in (
            await asyncio.gather(*(calls.complete(asked(str(i)), at(0)) for i in range(6)), return_exceptions=True)
        )
    ] == [True, True, False, False, False, False]


async def test_closed_caller_makes_no_more_calls() -> None:
    model = a_model("GOOD")
    calls = caller(model)
    await calls.complete(asked(), at(0))
    calls.closed = CapReached("the run is over")
    with pytest.raises(CapReached, match="the run is over"):
        await calls.complete(asked(), at(0))
    assert len(model.asked) == 1


async def test_first_call_that_is_cancelled_lets_another_through() -> None:
    model = a_model("GOOD", delay=2 * PATIENCE)
    calls = caller(model)
    first = asyncio.create_task(calls.complete(asked("a"), at(0)))
    await asyncio.sleep(0.001)
    second = asyncio.create_task(calls.complete(asked("b"), at(0)))
    await asyncio.sleep(0.001)
    model.delay = 0
    first.cancel()
    await asyncio.wait_for(second, PATIENCE)
    assert len(model.asked) == 2


# Money


def test_estimate_goes_by_characters_and_longest_reply() -> None:
    model = a_model("GOOD", price=Price(3e6, 1e6))  # $3 a token in, $1 a token out
    with pytest.raises(CapReached, match=r"the next call could cost \$(\d+\.\d{4})") as refused:
        asyncio.run(caller(model, max_cost=1.0, max_tokens=10).complete(asked("x" * 30), at(0)))
    (dollars,) = re.findall(r"could cost \$(\d+\.\d{4})", str(refused.value))
    assert 10 + 3 * 30 / 4 < float(dollars) < 10 + 3 * (30 + 40)

    asyncio.run(caller(model, max_cost=float(dollars) + 1e-4, max_tokens=10).complete(asked("x" * 30), at(0)))


def test_estimate_counts_the_solvers_own_token_limit() -> None:
    async def go(longest: int) -> None:
        model = a_model("GOOD", price=Price(0, 1e6))
        await caller(model, max_cost=50, max_tokens=10).complete(asked(max_tokens=longest), at(0))

    asyncio.run(go(50))
    with pytest.raises(CapReached):
        asyncio.run(go(51))


def test_spending_of_earlier_sessions_counts() -> None:
    model = a_model("GOOD", price=Price(0, 1e6))

    with pytest.raises(CapReached, match=r"\$95.0000 is spent"):
        asyncio.run(caller(model, spent=95.0, max_cost=100, max_tokens=10).complete(asked(), at(0)))


def test_free_model_is_never_held_back() -> None:
    asyncio.run(caller(a_model("GOOD"), max_cost=0.0).complete(asked("x" * 1000), at(0)))


def test_tokens_are_priced_on_the_baseline_model_where_there_is_one() -> None:
    assert caller(a_model("GOOD"), baseline=Price(2.0, 10.0)).baseline_cost(1_000_000, 500_000) == 7.0
    assert caller(a_model("GOOD")).baseline_cost(1_000_000, 500_000) is None
