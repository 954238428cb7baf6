"""What calls are reckoned at: a cap holds where tokens can't be told from characters, and is used up all the same."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from koderz.experiments.budget import ESTIMATED, CapReached, ExperimentCapReached, Gauge, request_of
from koderz.experiments.calls import Caller
from koderz.experiments.recording import Ask
from koderz.models import Price
from koderz.models.tariffs import Tier
from koderz.plans.arms import Arm
from koderz.plans.plan import Identity
from koderz.settings.schema import Settings
from koderz.solvers import load_solver
from koderz.testing import FakeModel
from koderz.types import Completion, Message, Sampling, Task

LONGEST = 400  # tokens of a reply
AT_ONCE = 64
PRICE = Price(2.0, 8.0)
CHINESE = "在给定的整数列表中找出和最大的连续子序列并返回它的起止位置如果列表为空则应当抛出异常请注意时间复杂度"
CODE = "def total(values: list[int], limit=10) -> int:\n    return sum(v ** 2 for v in values[:limit] if v % 3)\n\n"

Bill = Callable[[str, float], tuple[float, float]]
"""Tokens in and out, by the prompt and a number from 0 to 1 that is its own."""


class Billing(FakeModel):
    """A model that counts tokens as it pleases."""

    def __init__(self, bill: Bill, price: Price = PRICE, surcharge: float = 1.0) -> None:
        super().__init__(self.answer, price)
        self.bill, self.surcharge = bill, surcharge
        self.billed: list[float] = []

    async def wait(self) -> None:
        text = self.asked[-1][0][0]["content"]
        for _ in range(1 + int(drawn_for(text) * 7)):  # turns, so that replies come back in an order of their own
            await asyncio.sleep(0)

    def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        text = messages[0]["content"]
        tokens_in, tokens_out = map(int, self.bill(text, drawn_for(text)))
        cost = self.cost.cost(tokens_in, tokens_out) * self.surcharge
        self.billed.append(cost)
        return Completion("done", tokens_in=tokens_in, tokens_out=tokens_out, cost=cost)


def drawn_for(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12


def prompt(kind: str, number: int) -> str:
    texts = {"chinese": [CHINESE], "code": [CODE], "mixed": [CHINESE, CODE, CHINESE + CODE]}[kind]
    drawn = drawn_for(f"{kind} {number}")
    return f"{number}: " + texts[number % len(texts)] * int(5 + 60 * drawn)


def counted(chinese: float, other: float) -> Callable[[str, float], float]:
    def count(text: str, drawn: float) -> float:
        wide = sum(char > "\u2fff" for char in text)
        return (chinese * wide + other * (len(text) - wide)) * (0.85 + 0.3 * drawn)

    return count


def spent_of(kind: str, models: Sequence[Billing], calls: int, *, spent: float = 0.0, **caps: float) -> list[str]:
    """Asks in 64 at once until no more is to be had; why each ended."""
    named: dict[str, Any] = {f"m{number}": model for number, model in enumerate(models)}
    caller = Caller(Settings(local_model="m0", max_tokens=LONGEST, **caps), named, spent=spent)  # type: ignore[arg-type]
    arm = Arm("test", load_solver("zero-shot", {}, {}), {"main": "m0", **{name: name for name in named}})
    numbers = iter(range(calls))

    async def asking(own: int) -> str:
        identity = Identity(f"exp_{own:016x}", Task("T/0"), arm, 0)
        with caller.experiment(identity.experiment_id, 0.0):
            for number in numbers:
                ask = Ask(({"role": "user", "content": prompt(kind, number)},), f"m{number % len(models)}", "test", {})
                try:
                    await caller.complete(ask, identity)
                except (CapReached, ExperimentCapReached) as reached:
                    return type(reached).__name__
        return ""

    async def go() -> list[str]:
        return await asyncio.gather(*map(asking, range(AT_ONCE)))

    return asyncio.run(go())


def usual(model: Billing, kind: str) -> float:
    """US dollars of a call on average."""
    texts = [prompt(kind, number) for number in range(90)]
    costs = [model.cost.cost(*map(int, model.bill(text, drawn_for(text)))) * model.surcharge for text in texts]
    return sum(costs) / len(costs)


USUAL = counted(1.1, 0.3)
BILLS: dict[str, tuple[str, Bill]] = {
    "code": ("code", lambda text, drawn: (counted(1.1, 0.36)(text, drawn), 100 + 300 * drawn)),
    "chinese": ("chinese", lambda text, drawn: (counted(1.2, 0.3)(text, drawn), 100 + 300 * drawn)),
    "chinese, 2 tokens a character": ("chinese", lambda text, drawn: (counted(2.1, 0.3)(text, drawn), 30)),
    "mixed": ("mixed", lambda text, drawn: (counted(1.6, 0.25)(text, drawn), 50 + 300 * drawn)),
    "max_tokens ignored": ("code", lambda text, drawn: (USUAL(text, drawn), LONGEST * (0.3 + 2.7 * drawn))),
    "max_tokens ignored by few": (
        "code",
        lambda text, drawn: (USUAL(text, drawn), LONGEST * (8 if drawn > 0.9 else 0.5)),
    ),
    "hidden prompt": ("code", lambda text, drawn: (1500 + USUAL(text, drawn), 100)),
}


@pytest.mark.parametrize("calls", [64, 150, 600])
@pytest.mark.parametrize("name", BILLS)
def test_cost_cap_holds_within_5_percent_and_is_used_up(name: str, calls: int) -> None:
    kind, bill = BILLS[name]
    model = Billing(bill)
    cap = calls * usual(model, kind)

    ends = spent_of(kind, [model], 20 * calls, max_cost=cap)

    assert set(ends) == {"CapReached"}
    assert 0.85 * cap <= sum(model.billed) <= 1.05 * cap


def test_cost_cap_holds_for_a_resumed_run() -> None:
    kind, bill = BILLS["chinese, 2 tokens a character"]
    model = Billing(bill)
    cap = 300 * usual(model, kind)
    spent_of(kind, [model], 5000, max_cost=cap)
    spent_of(kind, [model], 5000, max_cost=2 * cap, spent=sum(model.billed))

    assert 1.8 * cap <= sum(model.billed) <= 1.05 * 2 * cap


def test_cost_cap_holds_for_several_models_of_which_one_is_dear() -> None:
    kind, bill = BILLS["mixed"]
    models = [Billing(bill), Billing(BILLS["max_tokens ignored"][1], Price(20.0, 60.0)), Billing(bill, Price(0.1, 0.4))]
    cap = 100 * sum(usual(model, kind) for model in models)
    spent_of(kind, models, 20_000, max_cost=cap)

    assert 0.85 * cap <= sum(sum(model.billed) for model in models) <= 1.05 * cap


def test_cost_cap_holds_where_more_is_charged_than_the_price_says() -> None:
    model = Billing(BILLS["code"][1], surcharge=1.25)  # as prompts that are written into a cache are
    cap = 100 * usual(model, "code")
    spent_of("code", [model], 5000, max_cost=cap)

    assert 0.85 * cap <= sum(model.billed) <= 1.05 * cap


async def test_experiment_cap_holds_for_simultaneous_calls() -> None:
    model = Billing(BILLS["chinese, 2 tokens a character"][1])
    cap = 100 * usual(model, "chinese")
    caller = Caller(Settings(local_model="m", max_tokens=LONGEST, max_experiment_cost=cap), {"m": model}, spent=0.0)
    identity = Identity(
        "exp_00000000000000ab", Task("T/0"), Arm("test", load_solver("zero-shot", {}, {}), {"main": "m"}), 0
    )

    async def one(number: int) -> None:
        ask = Ask(({"role": "user", "content": prompt("chinese", number)},), None, "item", {})
        await caller.complete(ask, identity)

    with caller.experiment(identity.experiment_id, 0.0):
        await asyncio.gather(*map(one, range(400)), return_exceptions=True)
    assert 0.85 * cap <= sum(model.billed) <= 1.05 * cap


def test_cost_cap_far_off_holds_nothing_back() -> None:
    model = Billing(BILLS["code"][1])
    ends = spent_of("code", [model], 300, max_cost=1000 * usual(model, "code"))

    assert set(ends) == {""}
    assert len(model.billed) == 300


# What is learnt


def message(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def reply(tokens_in: int, tokens_out: int = 10, *, adapted: tuple[str, ...] = ()) -> Completion:
    return Completion("x", tokens_in=tokens_in, tokens_out=tokens_out, adapted=adapted)


def test_estimate_is_cautious_before_a_call_has_come_back() -> None:
    gauge = Gauge(Price(1e6, 0.0))  # a dollar a token in
    chinese, code = request_of(message(CHINESE * 50), 10), request_of(message(CODE * 50), 10)
    first = gauge.estimate(chinese).likely
    other = gauge.estimate(code)
    assert first > 1.5 * len(CHINESE * 50)

    gauge.learn(code, reply(int(len(CODE * 50) * 0.3)))

    assert gauge.estimate(chinese).likely == first  # nothing is known of it yet
    assert other.likely < 0.45 * len(CODE * 50)  # and what is under way is reckoned anew


def test_estimates_widen_by_what_is_billed_above_max_tokens() -> None:
    gauge = Gauge(Price(0.0, 1e6))  # a dollar a token out
    request = request_of(message(CODE), 100)
    under_way = gauge.estimate(request)
    assert under_way.likely == 100

    gauge.learn(request, reply(10, tokens_out=300))

    assert under_way.likely == gauge.estimate(request).likely == 300


def test_estimates_learn_nothing_from_tokens_that_are_estimated() -> None:
    gauge = Gauge(Price(1e6, 1e6))
    request = request_of(message(CODE), 100)
    before = gauge.estimate(request).likely
    gauge.learn(request, reply(1, 1, adapted=(ESTIMATED,)))

    assert gauge.estimate(request).likely == before


def test_estimates_know_price_tiers() -> None:
    request = request_of(message(CODE * 100), 0)
    plain, tiered = Price(1e6, 0.0), Price(1e6, 0.0, (Tier(int(request.tokens), 3e6, 0.0),))

    assert Gauge(tiered).estimate(request).likely == pytest.approx(3 * Gauge(plain).estimate(request).likely)


def test_estimates_count_long_texts_without_blanks_but_no_picture() -> None:
    chinese, picture = request_of(message(CHINESE * 200), 0), request_of(message("iVBORw0KGgo" * 2000), 0)

    assert chinese.tokens > len(CHINESE * 200)
    assert 1000 < picture.tokens < 2000


def test_estimates_count_tools_and_whatever_a_client_sends() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": CODE * 10, "parameters": {"n": [1, None]}}}]
    fields = {"role": "request", "content": None, "wire": "chat", "fields": {"instructions": CODE * 10}}

    assert request_of([{"role": "tools", "content": tools}], 0).tokens > len(CODE)
    assert request_of([fields, {"role": "user", "content": "\ud800 half"}], 0).tokens > len(CODE)
