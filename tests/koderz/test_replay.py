"""A solver is handed what is on record, in its order, and goes live only after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koderz import tape
from koderz.errors import Fault
from koderz.replay import Ask, Handles, Identity, Replaying, Settled
from koderz.tape import Divergence
from koderz.types import Completion, Reply, Sampling, Task, Verdict
from tracker.records import Attempt, Call, Once, Record, decode, encode

TASK = Task("T/0", "def f(): ...", "f")
IDENTITY = Identity("exp_00000000000000ab", TASK, "test", 0)

Solver = Callable[[Handles], Awaitable[Any]]


class World:
    """Answers each ask with its last message in capitals; passes what contains GOOD."""

    def __init__(self, *, passing: str = "GOOD", delays: dict[str, float] | None = None) -> None:
        self.lines: list[Record] = []
        self.asked: list[str] = []
        self._passing, self._delays = passing, delays or {}

    async def complete(self, ask: Ask, sample: int) -> tuple[Completion, str, Sampling]:
        text = ask.messages[-1]["content"]
        self.asked.append(text)
        await asyncio.sleep(self._delays.get(text, 0))
        return Completion(text.upper(), tokens_in=2, tokens_out=3, cost=0.5), "local", Sampling()

    async def judge(self, task: Task, answer: Reply | str) -> Verdict:
        text = answer.text if isinstance(answer, Reply) else answer
        return Verdict("passed") if self._passing in text else Verdict("failed", "assertion", f"no {text}")

    async def record(self, *lines: Record) -> None:
        self.lines += lines

    def text(self, text: Any) -> str:
        assert isinstance(text, str)
        return text


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def through_a_file(lines: list[Record]) -> list[Record]:
    decoded = [decode(encode(line)) for line in lines]
    assert None not in decoded
    return [line for line in decoded if line is not None]


async def play(solver: Solver, recorded: list[Record], how: Replaying | None = None, **world: Any) -> tuple[Any, World]:
    there = World(**world)
    async with Handles(IDENTITY, through_a_file(recorded), there, how) as handles:
        try:
            value = await solver(handles)
        except Settled as settled:
            value = settled.verdict
    return value, there


def keys(lines: list[Record]) -> list[str]:
    return [line.key for line in lines if isinstance(line, Call | Attempt | Once)]


async def several(handles: Handles) -> Any:
    """Asks at once, acts on the first answer, measures, draws, and goes on in turn."""
    asks = [asyncio.create_task(handles.ask(say(name))) for name in ("a", "b", "c")]
    done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
    first = min(task.result().text for task in done)
    follow = await handles.ask(say(f"after {first}"))
    measured = await handles.once("measure", lambda: {"at": (1, 2)})
    rest = await asyncio.gather(*asks)
    drawn = handles.rng.randrange(10**6)
    verdict = await handles.judge(TASK, await handles.ask(say(f"good {drawn}")))
    return first, follow.text, measured, [reply.text for reply in rest], drawn, verdict.verdict


async def iterating(handles: Handles) -> Verdict:
    told = "start"
    verdict = Verdict("error")
    for _ in range(3):
        verdict = await handles.judge(TASK, await handles.ask(say(told)))
        if verdict.passed:
            break
        told = f"again: {verdict.feedback}"
    return verdict


@pytest.mark.parametrize("solver", [several, iterating])
def test_killed_between_any_two_lines_a_solver_ends_the_same_and_asks_nothing_twice(solver: Solver) -> None:
    delays = {"a": 0.03, "b": 0.01, "c": 0.02}
    whole, world = asyncio.run(play(solver, [], delays=delays))

    for cut in range(len(world.lines) + 1):
        value, again = asyncio.run(play(solver, world.lines[:cut], delays=delays))
        assert value == whole, f"after {cut} lines"
        assert sorted(keys(world.lines[:cut] + again.lines)) == sorted(keys(world.lines))


def test_results_come_in_recorded_order_even_where_live_ones_would_be_faster() -> None:
    _, world = asyncio.run(play(several, [], delays={"a": 0.03, "b": 0.01, "c": 0.02}))

    value, again = asyncio.run(play(several, world.lines))

    assert value[0] == "B"
    assert again.asked == []


def test_two_equal_asks_are_two_calls() -> None:
    async def twice(handles: Handles) -> list[int]:
        return [reply.call for reply in await asyncio.gather(handles.ask(say("x")), handles.ask(say("x")))]

    value, world = asyncio.run(play(twice, []))

    assert sorted(value) == [1, 2]
    assert len(set(keys(world.lines))) == 2
    assert asyncio.run(play(twice, world.lines))[0] == value


def test_a_solver_that_goes_another_way_is_stopped_before_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "GRACE", 0.05)
    _, world = asyncio.run(play(iterating, []))

    async def other(handles: Handles) -> Reply:
        return await handles.ask(say("something else"))

    with pytest.raises(Divergence, match="--accept-divergence"):
        asyncio.run(play(other, world.lines))
    value, again = asyncio.run(play(other, world.lines, Replaying(accept_divergence=True)))
    assert (value.text, again.asked) == ("SOMETHING ELSE", ["something else"])


def test_a_solver_that_waits_for_something_of_its_own_has_not_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "GRACE", 0.05)

    async def slow(handles: Handles) -> list[str]:
        first = await handles.ask(say("one"))
        await asyncio.sleep(0.2)
        return [first.text, (await handles.ask(say("two"))).text]

    value, world = asyncio.run(play(slow, []))

    assert asyncio.run(play(slow, world.lines))[0] == value


def test_rescoring_ends_at_a_new_pass_and_hands_out_the_old_feedback_until_then() -> None:
    _, world = asyncio.run(play(iterating, []))
    texts = [line.reply for line in world.lines if isinstance(line, Call)]
    how = Replaying(rescore=True, calls_allowed=False)

    value, again = asyncio.run(play(iterating, world.lines, how, passing=str(texts[1])))

    assert value.passed
    assert again.asked == []
    assert [(line.number, line.verdict) for line in again.lines if isinstance(line, Attempt)] == [
        (1, "failed"),
        (2, "passed"),
    ]


def test_rescoring_a_pass_that_fails_now_needs_a_call_and_makes_none_by_itself() -> None:
    value, world = asyncio.run(play(iterating, [], passing="START"))
    assert value.passed

    with pytest.raises(Fault, match="rescore: needs a call"):
        asyncio.run(play(iterating, world.lines, Replaying(rescore=True, calls_allowed=False)))
    _, again = asyncio.run(play(iterating, world.lines, Replaying(rescore=True)))
    assert len(again.asked) == 2


def test_rescored_twice_the_last_verdicts_count() -> None:
    _, world = asyncio.run(play(iterating, []))
    how = Replaying(rescore=True, calls_allowed=False)
    _, second = asyncio.run(play(iterating, world.lines, how, passing="START"))

    value, third = asyncio.run(play(iterating, world.lines + second.lines, how))

    assert (value.verdict, third.asked) == ("failed", [])


def test_a_fault_counts_even_if_the_solver_goes_on_after_it() -> None:
    class Broken(World):
        async def complete(self, ask: Ask, sample: int) -> tuple[Completion, str, Sampling]:
            raise Fault("gone")

    async def stubborn(handles: Handles) -> Verdict:
        try:
            await handles.ask(say("x"))
        except Exception:
            return await handles.judge(TASK, "whatever")
        raise AssertionError

    async def run() -> Fault | None:
        async with Handles(IDENTITY, [], Broken()) as handles:
            await stubborn(handles)
            return handles.fault

    assert str(asyncio.run(run())) == "gone"


def test_a_call_that_the_solver_gives_up_on_is_recorded_all_the_same() -> None:
    async def impatient(handles: Handles) -> None:
        task = asyncio.create_task(handles.ask(say("slow")))
        await asyncio.sleep(0.01)
        task.cancel()

    _, world = asyncio.run(play(impatient, [], delays={"slow": 0.05}))

    assert [line.reply for line in world.lines if isinstance(line, Call)] == ["SLOW"]


def test_costs_and_tokens_of_replayed_calls_count_once() -> None:
    async def totals(recorded: list[Record]) -> tuple[int, float, int]:
        async with Handles(IDENTITY, through_a_file(recorded), World()) as handles:
            await iterating(handles)
            return handles.totals.calls, handles.totals.cost, handles.totals.tokens_out

    _, world = asyncio.run(play(iterating, []))

    assert asyncio.run(totals(world.lines[:3])) == asyncio.run(totals([])) == (3, 1.5, 9)


def test_random_numbers_are_the_same_each_time_an_experiment_runs() -> None:
    async def draw(handles: Handles) -> float:
        return handles.rng.random()

    assert asyncio.run(play(draw, []))[0] == random.Random(IDENTITY.experiment_id).random()
