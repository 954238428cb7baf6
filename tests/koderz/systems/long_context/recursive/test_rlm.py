"""A recursive language model at work: its turns, sub-calls and children, its limits, and its replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.experiments.recording import Answer, Ask
from koderz.experiments.replay import Handles
from koderz.plans.arms import Arm
from koderz.plans.plan import Identity
from koderz.prompts import load_prompts
from koderz.solvers import load_solver
from koderz.systems.long_context.recursive.rlm import rlm
from koderz.systems.long_context.wasm.opening import Sessions
from koderz.systems.long_context.wasm.session import Pool
from koderz.types import Completion, Message, Reply, Sampling, Task, Verdict
from koderz_tracker.records import Call, Keyed, Once, Record, decode, encode

TASK = Task("L/0", needs=frozenset({"session"}), digest="d")
ARM = Arm("rlm", load_solver("zero-shot", {}, {}), {"main": "big", "sub": "small"})
IDENTITY = Identity("exp_00000000000000ab", TASK, ARM, 0)
CONTEXT = "line of text\n" * 500 + "the magic number is 4711\n"


class Text:
    """What is asked about."""

    context, question = CONTEXT, "What is the magic number?"

    async def read(self) -> Text:
        return self

    async def facts(self) -> dict[str, Any]:
        return {"characters": len(CONTEXT)}

    def part(self, of: str = "context", start: int = 0, end: int | None = None) -> dict[str, Any]:
        raise NotImplementedError


Line = Callable[[Sequence[Message], str], str]
Played = Callable[..., tuple[Verdict, "World"]]


class World:
    """Answers what `line` says of the messages and the purpose; passes the number."""

    def __init__(self, line: Line, cost: float = 0.0) -> None:
        self.lines: list[Record] = []
        self.asked: list[str] = []
        self.most = self._now = 0
        self._line, self._cost = line, cost

    async def complete(self, ask: Ask, identity: Identity) -> Answer:
        self._now += 1
        self.most = max(self.most, self._now)
        self.asked.append(str(ask.messages[-1]["content"]))
        await asyncio.sleep(0.01)
        self._now -= 1
        role = ask.model or "main"
        return Answer(Completion(self._line(ask.messages, ask.purpose), cost=self._cost), role, role, Sampling())

    async def judge(self, task: Task, answer: Reply | str, *_: Any) -> Verdict:
        text = answer.text if isinstance(answer, Reply) else answer
        return Verdict("passed") if text == "4711" else Verdict("failed", "answer", text)

    async def record(self, *lines: Record) -> None:
        self.lines += lines

    def text(self, text: Any) -> str:
        return str(text)

    @property
    def calls(self) -> list[Call]:
        return [line for line in self.lines if isinstance(line, Call)]

    @property
    def cells(self) -> list[dict[str, Any]]:
        return [line.value for line in self.lines if isinstance(line, Once) and line.name.startswith("cell")]


async def solved(
    pool: Pool, line: Line, recorded: Sequence[Record] = (), cost: float = 0.0, **options: Any
) -> tuple[Verdict, World]:
    world = World(line, cost)
    lines = [one for line in recorded if (one := decode(encode(line)))]
    async with Handles(IDENTITY, lines, world) as handles:
        roles = {"main": "big"} if options.pop("alone", False) else ARM.models
        arguments = {"window": 200_000, **options}
        verdict = await rlm(
            *(TASK, handles.ask, handles.judge, handles.once, load_prompts(), roles, Sessions(pool), Text()),
            **arguments,
        )
    return verdict, world


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as found:
        yield found


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[Pool]:
    """Of one worker, for all of them."""
    pool = Pool("wasm", 1)
    runner.run(pool.__aenter__())
    yield pool
    runner.run(pool.__aexit__(None, None, None))


@pytest.fixture
def played(runner: asyncio.Runner, pool: Pool) -> Played:
    return lambda line, **options: runner.run(solved(pool, line, **options))


def turn(messages: Sequence[Message]) -> int:
    return 1 + len([one for one in messages if one["role"] == "assistant"])


def repl(*lines: str) -> str:
    return "\n".join(["```repl", *lines, "```"])


def searching(messages: Sequence[Message], purpose: str) -> str:
    if turn(messages) == 1:
        return repl("import re", "n = re.search(r'number is (\\d+)', context)[1]", "print(n)")
    return "FINAL_VAR(n)"


def test_code_finds_what_no_model_was_shown(played: Played) -> None:
    verdict, world = played(searching)
    assert verdict.passed
    assert [(one.purpose, one.depth, one.parent) for one in world.calls] == [("root", 0, None)] * 2
    assert not any(CONTEXT in text for text in world.asked)
    assert world.asked[1].startswith("REPL output:\n4711\n\nREPL variables: ['context', 're', 'n']\n\nTurn 2/30")
    (cell,) = world.cells
    assert (cell["container"], cell["output"], cell["error"]) == ("wasm", "4711", None)


def deep(messages: Sequence[Message], purpose: str) -> str:
    """Three turns at the root, whose cells ask six leaves and three children, each of two turns and a leaf."""
    if purpose == "sub":
        return f"leaf {messages[-1]['content']}"
    if purpose == "child":
        return repl("a = llm_query('of ' + context)") if turn(messages) == 1 else "FINAL_VAR(a)"
    if turn(messages) < 3:
        asks = [f"'{turn(messages)}{n}'" for n in range(3)]
        rest = ["r = rlm_query_batched(['a', 'b', 'c'])", "print(r)"] if turn(messages) == 2 else []
        return repl(f"x = llm_query_batched([{', '.join(asks)}])", "print(x)", *rest)
    return repl("answer['content'] = 4711", "answer['ready'] = True")


def test_recursion_records_calls_with_depth_and_parent(played: Played) -> None:
    verdict, world = played(deep, max_depth=2)
    assert verdict.passed
    counted = sorted((one.purpose, one.depth) for one in world.calls)
    assert counted == sorted([("root", 0)] * 3 + [("sub", 1)] * 6 + [("child", 1)] * 6 + [("sub", 2)] * 3)
    by_number = {one.call: one for one in world.calls}
    for one in world.calls:
        parent = by_number[one.parent] if one.parent else None
        expected = {("root", 0): None, ("sub", 1): "root", ("child", 1): "root", ("sub", 2): "child"}
        assert (parent and parent.purpose) == expected[one.purpose, one.depth]
    assert {one.role for one in world.calls if one.depth} == {"sub"}
    assert world.cells[-1]["final_answer"] == "4711"
    assert "['leaf of a', 'leaf of b', 'leaf of c']" in "".join(cell["output"] for cell in world.cells)


@pytest.mark.slow
def test_killed_between_any_two_lines_it_asks_nothing_twice(runner: asyncio.Runner, pool: Pool) -> None:
    async def go() -> None:
        _, world = await solved(pool, deep, max_depth=2)
        keys = sorted(line.key for line in world.lines if isinstance(line, Keyed))
        for cut in range(0, len(world.lines) + 1, 3):
            verdict, again = await solved(pool, deep, world.lines[:cut], max_depth=2)
            assert verdict.passed
            assert not verdict.note
            both = world.lines[:cut] + again.lines
            assert sorted(line.key for line in both if isinstance(line, Keyed)) == keys, f"after {cut} lines"

    runner.run(go())


@pytest.mark.slow
def test_stopped_cell_is_not_run_again(runner: asyncio.Runner, pool: Pool) -> None:
    def stuck(messages: Sequence[Message], purpose: str) -> str:
        if purpose == "sub":
            return "x"
        codes = [
            repl("n = 4711"),
            repl("n = 0", "while True: llm_query('a'); sum(range(100_000))"),
            repl("while True: pass"),
            "FINAL_VAR(n)",
        ]
        return codes[turn(messages) - 1]

    async def go() -> tuple[World, World, Verdict]:
        _, world = await solved(pool, stuck, wasm_timeout=1.0)
        verdict, again = await solved(pool, stuck, world.lines[:-2], wasm_timeout=1.0)
        return world, again, verdict

    world, again, verdict = runner.run(go())
    assert [cell["stopped"] for cell in world.cells] == ["", "deadline", "deadline"]
    assert "Request timed out" in world.cells[1]["error"]
    assert verdict.passed
    assert [one for one in again.calls if one.purpose == "sub"] == []


@pytest.mark.parametrize(("depth", "purposes"), [(0, {"root"}), (1, {"root", "sub"}), (2, {"root", "sub", "child"})])
def test_depth_says_what_code_may_ask(played: Played, depth: int, purposes: set[str]) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        if purpose == "root" and turn(messages) == 1:
            return repl("print(llm_query('a'), rlm_query('b'))")
        return "FINAL(4711)"

    _, world = played(line, max_depth=depth)
    assert {one.purpose for one in world.calls} == purposes
    if not depth:
        assert world.cells[0]["output"].count("Error: ") == 2
    plain = [one.messages for one in world.calls if one.purpose == "sub"]
    assert all(messages[0]["role"] == "user" and len(messages) == 1 for messages in plain)


def test_turns_used_up_lead_to_a_last_call(played: Played) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        return "4711" if purpose == "final" else repl("print('more')")

    verdict, world = played(line, max_turns=2)
    assert verdict.passed
    assert [(one.purpose, one.depth, one.parent) for one in world.calls] == [*[("root", 0, None)] * 2, ("final", 0, 2)]
    assert world.calls[-1].messages[-1]["role"] == "user"


def test_cells_that_fail_in_a_row_and_cost_end_the_turns(played: Played) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        return "4711" if purpose == "final" else repl("1/0")

    failing, world = played(line, max_errors=2)
    assert [one.purpose for one in world.calls] == ["root", "root", "final"]
    assert "2 cells in a row failed" in failing.note
    dear, world = played(line, max_experiment_cost=5.0, cost=1.0)
    assert [one.purpose for one in world.calls] == ["root"] * 4 + ["final"]
    assert "cost limit" in dear.note


@pytest.mark.slow
def test_time_that_is_up_is_up_in_a_replay_too(runner: asyncio.Runner, pool: Pool) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        return "4711" if purpose == "final" else repl("import time", "time.sleep(0.6)")

    async def go() -> tuple[World, World]:
        _, world = await solved(pool, line, task_timeout=1.0)
        _, again = await solved(pool, line, world.lines, task_timeout=1.0)
        return world, again

    world, again = runner.run(go())
    assert world.calls[-1].purpose == "final"
    assert len(world.calls) < 5
    assert again.asked == []


def test_models_that_break_the_protocol_are_told_so(played: Played) -> None:
    replies = [
        "I will think about it.",
        "```repl\nprint('open')",
        "FINAL_VAR(nothing)",
        "```repl\nFINAL(no)\n```",
        "```\nFINAL(no)\n```",
        "FINAL_VAR(answer)",
        "```repl\nprint('x' * 10_000_000)\n```",
        "FINAL(4711)",
    ]

    verdict, world = played(lambda messages, purpose: replies[turn(messages) - 1])
    assert verdict.passed
    prose, unclosed, unknown, fenced, shown, untouched, large = world.asked[1:]
    assert "neither a ```repl block nor a final answer" in prose
    assert "REPL output:\nopen" in unclosed
    assert "no closing" in unclosed
    assert "there is no variable nothing" in unknown
    assert "NameError" in fenced
    assert "inside a block aren't read" in fenced
    assert "inside a block aren't read" in shown
    assert "`answer` is as it was at the start" in untouched
    assert "chars...]" in large
    assert len(large) < 25_000


def test_replies_of_an_older_run_are_read_as_they_were(runner: asyncio.Runner, pool: Pool) -> None:
    replies = ["```repl\nFINAL_VAR('context')\n```", "FINAL_VAR(answer)"]

    async def go() -> tuple[Verdict, World]:
        _, world = await solved(pool, lambda messages, purpose: "FINAL(1)")
        begun = [line for line in world.lines if isinstance(line, Once) and line.name in ("long_context", "session ")]
        begun[-1].value.pop("protocol")
        return await solved(pool, lambda messages, purpose: replies[turn(messages) - 1], begun)

    verdict, world = runner.run(go())
    assert "aren't read" not in world.asked[1]
    assert verdict.cause == "answer"
    assert "content" in verdict.detail + verdict.feedback


def test_history_that_fills_the_window_is_condensed(played: Played) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        if purpose == "condense":
            return "what I know so far"
        if any("what I know so far" in str(one["content"]) for one in messages):
            return repl("answer['content'] = 4711 if 'word' in history else 0", "answer['ready'] = True")
        return repl("print('word ' * 3000)")

    verdict, world = played(line, window=8_000, max_tokens=1000)
    assert verdict.passed
    assert [one.purpose for one in world.calls].count("condense") == 1


def test_sub_calls_in_flight_are_bounded_over_all_depths(played: Played) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        if purpose == "root" and turn(messages) == 1:
            return repl("rlm_query_batched([str(n) for n in range(6)])")
        if purpose == "child" and turn(messages) == 1:
            return repl("llm_query_batched([context + str(n) for n in range(5)])")
        return "FINAL(4711)"

    verdict, world = played(line, max_depth=2, max_concurrent_subcalls=3)
    assert verdict.passed
    assert world.most == 3


def test_prompts_that_do_not_fit_are_errors_to_the_code(played: Played) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        if turn(messages) == 1:
            return repl("print(llm_query('x' * 900_000))")
        return "FINAL(4711)"

    _, world = played(line)
    assert world.cells[0]["output"].startswith("Error: the prompt has 900,000 characters")


def test_unreachable_server_is_a_fault(played: Played) -> None:
    def line(messages: Sequence[Message], purpose: str) -> str:
        if purpose == "sub":
            raise Fault("the server is gone")
        return repl("try:\n    llm_query('x')\nexcept BaseException:\n    print('caught')")

    with pytest.raises(Fault, match="the server is gone"):
        played(line)
