"""A solver is handed what is on record, in its order, and goes live only after it."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from koderz.errors import Fault
from koderz.experiments import recording
from koderz.experiments.recording import Answer, Ask, Divergence
from koderz.experiments.replay import Handles, NeedsCallError, NotRecordedError, Replaying
from koderz.plans.arms import Arm
from koderz.plans.plan import Identity
from koderz.solvers import load_solver
from koderz.types import Completion, Reply, Sampling, Task, Verdict
from koderz_tracker.records import Attempt, Call, Grade, Keyed, Once, Record, decode, encode
from tests.conftest import PATIENCE

TASK = Task("T/0", "def f(): ...", "f")
OTHER = Task("T/1", "def g(): ...", "g")
ARM = Arm("test", load_solver("zero-shot", {}, {}), {"main": "local"})
IDENTITY = Identity("exp_00000000000000ab", TASK, ARM, 0)

Solver = Callable[[Handles], Awaitable[Any]]


class World:
    """Answers each ask with its last message in capitals; passes what contains GOOD.

    What is named in `order` is answered when what stands before it there is on record.
    """

    def __init__(self, *, passing: str = "GOOD", order: Sequence[str] = (), recorded: Sequence[Record] = ()) -> None:
        self.lines: list[Record] = []
        self.asked: list[str] = []
        self._passing, self._order, self._recorded = passing, order, recorded

    async def complete(self, ask: Ask, identity: Identity) -> Answer:
        text = ask.messages[-1]["content"]
        self.asked.append(text)
        await asyncio.sleep(0)
        before = self._order[: self._order.index(text)] if text in self._order else ()
        while not set(before) <= {*map(named, [*self._recorded, *self.lines])}:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        completion = Completion(text.upper(), tokens_in=2, tokens_out=3, cost=0.5)
        return Answer(completion, ask.model or "main", "local", Sampling())

    async def judge(self, task: Task, answer: Reply | str, *_: Any) -> Verdict:
        text = answer.text if isinstance(answer, Reply) else answer
        return Verdict("passed") if self._passing in text else Verdict("failed", "assertion", f"no {text}")

    async def record(self, *lines: Record) -> None:
        self.lines += lines

    def text(self, text: Any) -> str:
        assert isinstance(text, str)
        return text


def named(line: Record) -> str:
    """What a line is called in an order: what was asked, or what was judged."""
    return line.messages[-1]["content"] if isinstance(line, Call) else line.kind


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def through_a_file(lines: list[Record]) -> list[Record]:
    decoded = [decode(encode(line)) for line in lines]
    assert None not in decoded
    return [line for line in decoded if line is not None]


async def play(solver: Solver, recorded: list[Record], how: Replaying | None = None, **world: Any) -> tuple[Any, World]:
    there = World(recorded=recorded, **world)
    async with Handles(IDENTITY, through_a_file(recorded), there, how) as handles:
        value = await solver(handles)
    return value, there


def keys(lines: list[Record]) -> list[str]:
    return [line.key for line in lines if isinstance(line, Keyed)]


async def several(handles: Handles) -> Any:
    """Asks at once, acts on the first answer, measures, draws, and goes on in turn."""
    asks = [asyncio.create_task(handles.ask(say(name))) for name in ("a", "b", "c")]
    done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
    first = min((task.result() for task in done), key=lambda reply: reply.call).text
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
def test_killed_solver_resumes_at_any_line_and_asks_nothing_twice(solver: Solver) -> None:
    order = ("b", "after B", "c", "a")
    whole, world = asyncio.run(play(solver, [], order=order))

    for cut in range(len(world.lines) + 1):
        value, again = asyncio.run(play(solver, world.lines[:cut], order=order))
        assert value == whole, f"after {cut} lines"
        assert sorted(keys(world.lines[:cut] + again.lines)) == sorted(keys(world.lines))


def test_replay_keeps_recorded_order_before_faster_live_results() -> None:
    _, world = asyncio.run(play(several, [], order=("b", "after B", "c", "a")))

    value, again = asyncio.run(play(several, world.lines))

    assert value[0] == "B"
    assert again.asked == []


def test_equal_asks_are_separate_calls() -> None:
    async def twice(handles: Handles) -> list[int]:
        return [reply.call for reply in await asyncio.gather(handles.ask(say("x")), handles.ask(say("x")))]

    value, world = asyncio.run(play(twice, []))

    assert sorted(value) == [1, 2]
    assert len(set(keys(world.lines))) == 2
    assert asyncio.run(play(twice, world.lines))[0] == value


def test_divergence_is_stopped_before_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.05)
    _, world = asyncio.run(play(iterating, []))

    async def other(handles: Handles) -> Reply:
        return await handles.ask(say("something else"))

    async def stubborn(handles: Handles) -> None:
        for text in ("something else", "start", "and more"):
            with pytest.raises(Divergence):
                await handles.ask(say(text))

    with pytest.raises(Divergence, match="--accept-divergence"):
        asyncio.run(play(other, world.lines))
    assert asyncio.run(play(stubborn, world.lines))[1].asked == []
    value, again = asyncio.run(play(other, world.lines, Replaying(accept_divergence=True)))
    assert (value.text, again.asked) == ("SOMETHING ELSE", ["something else"])

    async def diverges(solver: Solver) -> bool:
        async with Handles(IDENTITY, world.lines, World(), Replaying(accept_divergence=True)) as handles:
            await solver(handles)
            return handles.diverged

    assert (asyncio.run(diverges(iterating)), asyncio.run(diverges(other))) == (False, True)


def test_divergence_is_not_a_solvers_own_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.05)

    async def slow(handles: Handles) -> list[str]:
        first = await handles.ask(say("one"))
        await asyncio.sleep(0.2)
        return [first.text, (await handles.ask(say("two"))).text]

    value, world = asyncio.run(play(slow, []))

    assert asyncio.run(play(slow, world.lines))[0] == value


async def with_a_branch_that_waits(handles: Handles) -> list[str]:
    """What one branch waits for takes longer than a replay allows, and the other's result was recorded after it."""

    async def waiting() -> str:
        with handles.waiting():
            await asyncio.sleep(0.2)
        return (await handles.ask(say("waited"))).text

    async def other() -> str:
        return (await handles.ask(say("other"))).text

    return [*await asyncio.gather(waiting(), other())]


def test_divergence_is_not_a_wait_for_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.01)
    value, world = asyncio.run(play(with_a_branch_that_waits, [], order=("waited", "other")))
    recorded: list[Record] = [
        replace(line, time="2026-01-31T12:02:00") for line in world.lines if isinstance(line, Call)
    ]

    again, silent = asyncio.run(play(with_a_branch_that_waits, recorded))

    assert (again, silent.asked) == (value, [])


def test_replay_hands_out_results_one_by_one() -> None:
    async def acting(handles: Handles) -> list[int]:
        asks = [asyncio.create_task(asyncio.wait_for(handles.ask(say(name)), PATIENCE)) for name in "abcd"]
        async with asyncio.TaskGroup() as group:
            waited = group.create_task(asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED))
        done, _ = waited.result()
        await asyncio.gather(*asks)
        return [len(done), len([ask for ask in asks if ask.done()])]

    _, world = asyncio.run(play(acting, []))

    assert asyncio.run(play(acting, world.lines))[0] == [1, 4]


def test_calls_that_fail_unawaited_are_noticed() -> None:
    class Refusing(World):
        async def complete(self, ask: Ask, identity: Identity) -> Answer:
            self.asked.append(ask.messages[-1]["content"])
            await asyncio.sleep(0.05 * len(self.asked))
            raise Fault("400")

    complaints = list[dict[str, Any]]()

    async def played() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with Handles(IDENTITY, [], Refusing()) as handles:
            asks = [asyncio.create_task(handles.ask(say(name))) for name in "abcd"]
            with pytest.raises(Fault):
                await asyncio.gather(*asks)
            for ask in asks:
                ask.cancel()
            await asyncio.gather(*asks, return_exceptions=True)

    asyncio.run(played())
    gc.collect()  # which ends tasks that tracebacks hold on to
    assert not complaints


def test_replay_keeps_a_branch_waiting_for_anothers_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.05)

    async def two_branches(handles: Handles) -> list[str]:
        async def cell() -> str:
            await asyncio.to_thread(time.sleep, 0.2)  # code that runs again in a replay, and takes its time
            return (await handles.ask(say("after the cell"))).text

        async def other() -> str:
            return (await handles.ask(say("other"))).text

        return list(await asyncio.gather(cell(), other()))

    value, world = asyncio.run(play(two_branches, [], order=("after the cell", "other")))
    calls = [line for line in world.lines if isinstance(line, Call)]
    assert [line.reply for line in calls] == ["AFTER THE CELL", "OTHER"]
    within = replace(calls[0], time="2026-01-31T12:02:00")
    other = replace(calls[1], time="2026-01-31T12:03:00", latency=180.0)

    again, silent = asyncio.run(play(two_branches, [within, other]))

    assert (again, silent.asked) == (value, [])


def test_replay_of_a_call_takes_one_turn_of_the_event_loop() -> None:
    async def many(handles: Handles) -> None:
        for number in range(300):
            await handles.ask(say(str(number)))

    async def turns_of(recorded: list[Record]) -> int:
        passed = 0

        async def count() -> None:
            nonlocal passed
            while True:
                passed += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await play(many, recorded)
        counting.cancel()
        return passed

    _, world = asyncio.run(play(many, []))

    assert asyncio.run(turns_of(world.lines)) <= 300 + 20


def test_replay_of_gathered_calls_looks_at_each_record_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    async def many(handles: Handles) -> list[str]:
        return [reply.text for reply in await asyncio.gather(*(handles.ask(say(str(n))) for n in range(300)))]

    value, world = asyncio.run(play(many, []))
    looks: list[Record] = []
    begun = recording._begun

    def look(record: Record) -> datetime:
        looks.append(record)
        return begun(record)

    monkeypatch.setattr(recording, "_begun", look)

    again, silent = asyncio.run(play(many, world.lines[::-1]))  # the last one asked came back first

    assert (again, silent.asked) == (value, [])
    assert len(looks) <= 3 * 300


# Code that runs again


async def cells(handles: Handles) -> list[Any]:
    """Two branches: one runs code that asks, the other asks more quickly than the code runs in a replay."""

    async def cell() -> str:
        await asyncio.to_thread(time.sleep, PACE["cell"])
        return (await handles.ask(say("within"))).text

    async def other() -> str:
        first = await handles.ask(say("first"))
        return (await handles.ask(say(f"then {first.text}"))).text

    return list(await asyncio.gather(handles.once("cell", cell, rerun=True), other()))


PACE = {"cell": 0.0}  # seconds that the code takes


@pytest.mark.slow
def test_replay_waits_while_recorded_code_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.05)
    value, world = asyncio.run(play(cells, []))
    world.lines.sort(key=lambda line: getattr(line, "reply", "") != "WITHIN")  # the code was the quicker

    monkeypatch.setitem(PACE, "cell", 0.4)  # as on a machine that is busy with other things
    for cut in range(len(world.lines) + 1):
        again, silent = asyncio.run(play(cells, world.lines[:cut]))
        assert again == value
        assert sorted(keys(world.lines[:cut] + silent.lines)) == sorted(keys(world.lines)), f"after {cut} lines"


def test_once_that_is_run_again_hands_on_what_is_on_record() -> None:
    runs: list[str] = []

    async def solver(handles: Handles) -> Any:
        async def cell() -> str:
            runs.append((await handles.ask(say("sub"))).text)
            return f"run {len(runs)}"

        return await handles.once("cell", cell, rerun=True)

    value, world = asyncio.run(play(solver, []))
    again, silent = asyncio.run(play(solver, world.lines))

    assert (value, again) == ("run 1", "run 1")
    assert (runs, silent.lines) == (["SUB", "SUB"], [])


def test_divergence_by_other_code_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.05)
    texts = iter(["one", "another"])

    async def solver(handles: Handles) -> Any:
        async def inner() -> str:
            return (await handles.ask(say(next(texts)))).text

        async def outer() -> Any:
            return await handles.once("inner cell", inner, rerun=True)

        return await handles.once("outer cell", outer, rerun=True)

    _, world = asyncio.run(play(solver, []))

    with pytest.raises(Divergence, match="went another way than before in inner cell, with 3 recorded results unused"):
        asyncio.run(play(solver, world.lines))


def test_depth_and_parent_of_a_call_are_recorded_outside_its_key() -> None:
    async def asking(handles: Handles, depth: int, parent: int | None) -> Reply:
        return await handles.ask(say("sub"), depth=depth, parent=parent)

    _, world = asyncio.run(play(lambda handles: asking(handles, 2, 1), []))
    (call,) = (line for line in world.lines if isinstance(line, Call))

    assert (call.depth, call.parent) == (2, 1)
    assert b'"depth":2,"parent":1,"key"' in encode(call)
    assert asyncio.run(play(lambda handles: asking(handles, 0, None), world.lines))[1].asked == []


def test_schema_is_recorded_and_part_of_the_key() -> None:
    async def asking(handles: Handles, **sampling: Any) -> Reply:
        return await handles.ask(say("sub"), **sampling)

    schema = {"type": "object"}
    _, world = asyncio.run(play(lambda handles: asking(handles, response_format=schema), []))
    _, bare = asyncio.run(play(asking, []))

    def key(lines: list[Record]) -> str:
        return next(line.key for line in lines if isinstance(line, Call))

    assert key(world.lines) != key(bare.lines)
    assert asyncio.run(play(lambda handles: asking(handles, response_format=schema), world.lines))[1].asked == []


# Solvers that can't replay


async def agent(handles: Handles, third: str = "c") -> list[str]:
    made = await handles.once("folder", lambda: "fresh")
    replies = [(await handles.ask(say(text))).text for text in ("a", "b", third, "d")]
    return [made, *replies]


def test_restart_is_answered_by_the_record_while_requests_match() -> None:
    async def other(handles: Handles) -> list[str]:
        return await agent(handles, "C?")

    async def reused(solver: Solver, recorded: list[Record]) -> tuple[int, list[str]]:
        world = World()
        async with Handles(IDENTITY, through_a_file(recorded), world, Replaying(restart=True)) as handles:
            await solver(handles)
            return handles.reused, world.asked

    _, world = asyncio.run(play(agent, [], Replaying(restart=True)))
    killed = world.lines[:4]  # the folder, and three replies

    assert asyncio.run(reused(agent, killed)) == (3, ["d"])
    assert asyncio.run(reused(other, world.lines)) == (2, ["C?", "d"]), "after the first that differs, all are new"
    _, again = asyncio.run(play(agent, killed, Replaying(restart=True)))
    assert [line.kind for line in again.lines] == ["once", "call"], "what is no reply is made again"


def test_restart_repeats_no_work_that_had_ended() -> None:
    done: list[str] = []

    async def working(handles: Handles) -> list[str]:
        async def work() -> str:
            done.append("work")
            return (await handles.ask(say("a"))).text

        said = await handles.once("agent", work, rerun=lambda _: done.append("again"))
        return [said, await handles.once("diff", lambda: done.append("diff"))]

    _, world = asyncio.run(play(working, [], Replaying(restart=True)))
    assert [line.kind for line in world.lines] == ["call", "once", "once"]
    for recorded, wanted in ((3, ["again"]), (2, ["again", "diff"]), (1, ["work", "diff"])):
        done.clear()
        _, again = asyncio.run(play(working, world.lines[:recorded], Replaying(restart=True)))
        assert (done, again.asked) == (wanted, [])


# Calls of other tasks


async def bridged(handles: Handles) -> list[str]:
    """An agent asks over a socket, whose server's tasks are not the solver's own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write((await handles.ask(say(line.decode().strip()))).text.encode() + b"\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        heard = []
        for text in ("x", "y", "z"):
            writer.write(f"{text}\n".encode())
            heard.append((await reader.readline()).decode().strip())
        writer.close()
        await writer.wait_closed()
    return heard


def test_calls_about_another_task_are_recorded_and_replayed() -> None:
    value, world = asyncio.run(play(bridged, []))
    assert value == ["X", "Y", "Z"]

    for cut in range(len(world.lines) + 1):
        again, silent = asyncio.run(play(bridged, world.lines[:cut]))
        assert (again, len(silent.asked)) == (value, 3 - cut)


async def test_call_after_the_experiments_end_is_refused_and_not_paid() -> None:
    world = World()
    async with Handles(IDENTITY, [], world) as handles:
        pass
    with pytest.raises(Fault, match="the experiment is over"):
        await handles.ask(say("late"))
    assert world.asked == []


def test_request_that_waits_for_its_turn_ends_with_the_experiment() -> None:
    async def both(handles: Handles) -> None:
        for text in ("first", "second"):
            await handles.ask(say(text))

    async def is_cancelled(lines: list[Record]) -> bool:
        async with Handles(IDENTITY, lines, World()) as handles:
            waiting = asyncio.create_task(handles.ask(say("second")))
            await asyncio.sleep(0)
        await asyncio.wait([waiting], timeout=5)
        return waiting.cancelled()

    _, world = asyncio.run(play(both, []))
    assert asyncio.run(is_cancelled(world.lines))


def test_items_of_a_turn_are_brought_along_by_the_next_call() -> None:
    class WithItems(World):
        async def complete(self, ask: Ask, identity: Identity) -> Answer:
            self.messages = ask.messages
            return Answer(Completion("ok", items=({"id": "r1"},)), "main", "local", Sampling())

    async def go(world: WithItems) -> None:
        async with Handles(IDENTITY, [], world) as handles:
            reply = await handles.ask(say("a"))
            await handles.ask([*say("a"), {"role": "assistant", "content": reply.text}, *say("b")])

    world = WithItems()
    asyncio.run(go(world))
    assert world.messages[1] == {"role": "assistant", "content": "ok", "items": [{"id": "r1"}]}


BEST_OF = ("first", "second GOOD", "third")


async def best_of_three(handles: Handles) -> Verdict:
    """Judges candidates until one passes, has that one refined, and judges the outcome on another task."""
    replies = [await handles.ask(say(text)) for text in BEST_OF]
    for reply in replies:
        verdict = await handles.judge(TASK, reply)
        if verdict.passed:
            refined = await handles.ask(say(f"refine {reply.text}"))
            return await handles.judge(OTHER, refined)
    return verdict


def test_rescoring_runs_a_solver_with_several_judgings_to_its_end() -> None:
    value, world = asyncio.run(play(best_of_three, []))
    assert value.passed

    again, silent = asyncio.run(play(best_of_three, world.lines, Replaying(rescore=True, calls_allowed=False)))

    assert (again.passed, silent.asked) == (True, [])
    judged = [(line.number, line.task_id, line.verdict) for line in silent.lines if isinstance(line, Attempt)]
    assert judged == [(1, "", "failed"), (2, "", "passed"), (3, "T/1", "passed")]


def test_rescoring_stops_at_a_request_that_is_not_on_record() -> None:
    _, world = asyncio.run(play(best_of_three, []))

    with pytest.raises(NeedsCallError, match="rescore: needs a call"):
        asyncio.run(play(best_of_three, world.lines, Replaying(rescore=True, calls_allowed=False), passing="FIRST"))


class Unmoved:
    """An audit that has nothing to say."""

    def asked(self, ask: Ask, call: Call) -> None:
        pass

    def judging(self, key: str, answer: Reply | str) -> None:
        pass

    def graded(self, grade: Grade, recorded: Grade) -> None:
        pass

    def made(self, value: Any, recorded: Once) -> None:
        pass


def test_audit_makes_nothing_that_is_not_on_record() -> None:
    async def solver(handles: Handles) -> Any:
        reply = await handles.ask(say("x"))
        await handles.judge(TASK, reply)
        await handles.grade("x", 1)
        return await handles.once("x", lambda: 1)

    value, world = asyncio.run(play(solver, []))
    audit = Replaying(audit=Unmoved())
    assert asyncio.run(play(solver, world.lines, audit))[0] == value
    for recorded, missing in enumerate(("a call", "a verdict", "a grade", "the value 'x'")):
        with pytest.raises(NotRecordedError, match=missing):
            asyncio.run(play(solver, world.lines[:recorded], audit))


def test_rescoring_that_may_call_passes_over_what_it_needs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.05)
    _, world = asyncio.run(play(best_of_three, []))

    value, again = asyncio.run(play(best_of_three, world.lines, Replaying(rescore=True), passing="FIRST"))
    assert (value.passed, again.asked) == (True, ["refine FIRST"])

    # A later session replays that way, although what was recorded first went another.
    once_more, silent = asyncio.run(play(best_of_three, world.lines + again.lines, passing="FIRST"))
    assert (once_more.passed, silent.asked) == (True, [])


def test_rescored_verdict_comes_before_later_records() -> None:
    class Slow(World):
        async def judge(self, task: Task, answer: Reply | str, *_: Any) -> Verdict:
            await asyncio.sleep(0.05)
            return await super().judge(task, answer)

    async def racing(handles: Handles) -> list[str]:
        order: list[str] = []

        async def judged() -> None:
            order.append((await handles.judge(TASK, "GOOD")).verdict)

        async def asked() -> None:
            order.append((await handles.ask(say("late"))).text)

        await asyncio.gather(judged(), asked())
        return order

    async def rescored(lines: list[Record]) -> list[str]:
        how = Replaying(rescore=True, calls_allowed=False)
        async with Handles(IDENTITY, through_a_file(lines), Slow(), how) as handles:
            return await racing(handles)

    value, world = asyncio.run(play(racing, [], order=("attempt", "late")))

    assert asyncio.run(rescored(world.lines)) == value == ["passed", "LATE"]


def test_attempt_names_the_task_that_was_judged_if_another() -> None:
    async def both(handles: Handles) -> list[Verdict]:
        return [await handles.judge(task, "GOOD") for task in (TASK, OTHER)]

    _, world = asyncio.run(play(both, []))
    own, other = (encode(line) for line in world.lines)

    assert b"task_id" not in own
    assert b'"problem_id":"T/0"' in other
    assert b'"task_id":"T/1"' in other
    assert len(set(keys(world.lines))) == 2
    assert asyncio.run(play(both, world.lines))[1].lines == []


def test_truncated_is_told_of_the_last_reply_that_was_judged_on_the_task() -> None:
    async def solver(handles: Handles) -> list[str]:
        told = [handles.truncated]
        reply = Reply(1, "GOOD", finish_reason="length")
        for task, answer in ((TASK, reply), (OTHER, "GOOD"), (TASK, "GOOD")):
            await handles.judge(task, answer)
            told.append(handles.truncated)
        return told

    assert asyncio.run(play(solver, []))[0] == ["", "text", "text", ""]


async def graded(handles: Handles) -> list[float]:
    """Grades what it asks, one item twice, then ends with a verdict of its own."""
    scores: list[float] = []
    for item in ("a", "b", "a"):
        reply = await handles.ask(say(item))
        scores.append(await handles.grade(item, len(scores), tokens=reply.tokens_out, split="train"))
    return scores


def test_grade_is_recorded_before_it_returns_and_replayed() -> None:
    value, world = asyncio.run(play(graded, []))

    found = [line for line in world.lines if isinstance(line, Grade)]
    assert [(line.item, line.score, line.key) for line in found] == [
        ("a", 0.0, "grade:a/1"),
        ("b", 1.0, "grade:b/1"),
        ("a", 2.0, "grade:a/2"),
    ]
    assert (found[0].metrics, found[0].labels) == ({"tokens": 3.0}, {"split": "train"})
    for cut in range(len(world.lines) + 1):
        again, silent = asyncio.run(play(graded, world.lines[:cut]))
        assert again == value
        assert sorted(keys(world.lines[:cut] + silent.lines)) == sorted(keys(world.lines))


def test_grade_returns_what_is_on_record_unless_it_is_rescored() -> None:
    async def graded_as(score: float, how: Replaying, recorded: list[Record]) -> tuple[float, float | None, int]:
        world = World()
        async with Handles(IDENTITY, through_a_file(recorded), world, how) as handles:
            value = await handles.grade("a", score)
            return value, handles.totals.mean_grade, len(world.lines)

    first = World()

    async def go() -> None:
        async with Handles(IDENTITY, [], first) as handles:
            await handles.grade("a", 0.25)

    asyncio.run(go())

    assert asyncio.run(graded_as(0.5, Replaying(), first.lines)) == (0.25, 0.25, 0)
    assert asyncio.run(graded_as(0.5, Replaying(rescore=True), first.lines)) == (0.5, 0.5, 1)
    assert asyncio.run(graded_as(0.25, Replaying(rescore=True), first.lines)) == (0.25, 0.25, 0)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "1", None])
def test_grade_of_no_finite_number_is_a_fault_and_not_recorded(score: Any) -> None:
    async def grading(handles: Handles) -> None:
        with pytest.raises(Fault, match="grade: the score of a has to be a finite number"):
            await handles.grade("a", score)
        with pytest.raises(Fault, match="grade: the cost of a has to be a finite number"):
            await handles.grade("a", 1, cost=[score])  # type: ignore[arg-type]

    assert asyncio.run(play(grading, []))[1].lines == []


TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
        {"role": "tool", "content": "out", "tool_call_id": "c1"},
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
    ],
)
def test_message_fields_are_all_asked_recorded_and_in_the_key(message: dict[str, Any]) -> None:
    class Silent(World):
        async def complete(self, ask: Ask, identity: Identity) -> Answer:
            self.messages = ask.messages
            return Answer(Completion("ok"), "main", "local", Sampling())

    async def run(sent: dict[str, Any], recorded: list[Record]) -> Silent:
        world = Silent()
        async with Handles(IDENTITY, through_a_file(recorded), world) as handles:
            await handles.ask([sent])
        return world

    world = asyncio.run(run(message, []))

    assert world.messages == (message,)
    (call,) = world.lines
    assert isinstance(call, Call)
    assert list(call.messages) == [message]
    assert (
        Ask((message,), None, "attempt", {}).digest()
        != Ask(({"role": "user", "content": "hi"},), None, "attempt", {}).digest()
    )
    assert not hasattr(asyncio.run(run(message, world.lines)), "messages"), "the same message is found on record"


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ("hello", "message 1 has to be a dict with role and content, not 'h'"),
        ([{"role": "user"}], "message 1 has to be a dict with role and content"),
        ([{"role": "user", "content": 3}], "the content of message 1 has to be text, a list of parts or None, not int"),
        ([{"role": "user", "content": "x", "image": b"png"}], "can't be recorded as JSON"),
    ],
)
def test_message_that_is_invalid_is_refused_in_one_line(messages: Any, told: str) -> None:
    async def asking(handles: Handles) -> Reply:
        return await handles.ask(messages)

    with pytest.raises(Fault, match=told):
        asyncio.run(play(asking, []))


def test_rescoring_keeps_old_feedback_up_to_a_new_pass() -> None:
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


def test_rescoring_a_pass_that_now_fails_needs_a_call() -> None:
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


def test_fault_counts_even_if_the_solver_goes_on() -> None:
    class Broken(World):
        async def complete(self, ask: Ask, identity: Identity) -> Answer:
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


def test_call_that_the_solver_abandons_is_recorded() -> None:
    class Slow(World):
        async def complete(self, ask: Ask, identity: Identity) -> Answer:
            answer = await super().complete(ask, identity)
            await asyncio.sleep(0.05)
            return answer

    async def impatient(handles: Handles) -> None:
        task = asyncio.create_task(handles.ask(say("slow")))
        while not world.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()

    world = Slow()

    async def go() -> None:
        async with Handles(IDENTITY, [], world) as handles:
            await impatient(handles)

    asyncio.run(go())

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
