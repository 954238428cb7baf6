"""A plan is carried out: each experiment once, whatever solvers, models and the disk do meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from koderz.errors import FatalFault, Fault
from koderz.experiments import recording
from koderz.experiments.replay import Replaying
from koderz.models import Price
from koderz.runs.orchestrator import Orchestrator
from koderz.suites.suite import JudgeContext
from koderz.testing import FakeModel, a_model
from koderz.testing.factories import Answer, Line
from koderz.types import Completion, Measure, Message, Reply, Sampling, Task, Verdict
from koderz_tracker.index import index_path
from koderz_tracker.journal import NAME
from koderz_tracker.records import Record, encode
from koderz_tracker.summary import summarize
from tests.koderz.world import Crowded, Run, Words, begun, good, planned, resumed


def carried_out(folder: Path, model: FakeModel, n: int = 3, **settings: Any) -> Run:
    async def go() -> Run:
        return await begun(await planned(folder, n, **settings), model)

    return asyncio.run(go())


def with_solver(folder: Path, source: str, model: FakeModel | None = None, **settings: Any) -> Run:
    """A run by a user's own solver, `solve` in a file."""
    path = folder / "own.py"
    path.write_text(source)
    return carried_out(folder, model or a_model("GOOD"), solver=f"{path}:solve", **settings)


def of_task(number: int, answer: str | Fault, others: str) -> Line:
    """A line that answers one task otherwise than the others."""

    def line(messages: Sequence[Message], sampling: Sampling) -> str:
        said = answer if f"def f{number}()" in messages[1]["content"] else others
        if isinstance(said, Fault):
            raise said
        return said

    return line


# Whole runs


def test_answered_by_counts_calls_by_the_name_that_answered(tmp_path: Path) -> None:
    names = ["other", "scripted", "other-2", ""]

    def line(messages: Sequence[Message], sampling: Sampling) -> Completion:
        return Completion("BAD" if len(names) % 2 else "GOOD", model=names.pop(0) if names else "other")

    run = carried_out(tmp_path, a_model(line), n=2, mode="iterative", concurrency=1)

    answered = Counter(call.answered_by for call in run.of("call") if call.answered_by not in ("", "scripted"))
    assert answered["other"] >= 1
    assert run.summary.answered_by == {"scripted": answered}
    lines = [json.loads(line) for line in (run.folder / NAME).read_bytes().splitlines()]
    old = [{name: value for name, value in line.items() if name != "answered_by"} for line in lines]
    (run.folder / NAME).write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in old))
    index_path(run.folder / NAME).unlink(missing_ok=True)
    assert summarize(run.folder).answered_by == {}  # of a journal from before


def test_throttled_counts_refusals_for_load_by_provider(tmp_path: Path) -> None:
    refused = Fault("429 for ever", cause="unreachable", throttled={"ollama": 3})
    model = a_model([*(Completion("GOOD", throttled=tries) for tries in (1, 0, 2)), refused])
    run = carried_out(tmp_path, model, n=4, concurrency=1)

    assert sorted(call.throttled for call in run.of("call")) == [0, 1, 2]
    assert [fault.throttled for fault in run.of("fault")] == [{"ollama": 3}]
    assert sum(run.summary.throttled.values()) == 6


async def test_unknown_ends_are_counted_by_their_words_whatever_was_killed(tmp_path: Path) -> None:
    def line(messages: Sequence[Message], sampling: Sampling) -> Completion:
        is_first, is_again = "def f0()" in messages[1]["content"], len(messages) > 2
        if is_first and is_again:
            raise Fault("gone", cause="unreachable")
        return Completion("GOOD" if is_again else "BAD", finish_reason="stop" if is_again else "gone_fishing")

    plan = await planned(tmp_path, 3, mode="iterative", concurrency=1)
    whole = await begun(plan, a_model(line))
    assert (len(whole.of("fault")), whole.summary.unknown_ends) == (1, {"gone_fishing": 3})
    assert whole.summary.cautions == ["3 replies ended by 'gone_fishing', which koderz doesn't know"]
    journal = whole.folder / NAME
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        journal.write_bytes(b"".join(lines[:kept]))
        run = await resumed(whole.folder, plan, a_model(line))
        assert run.summary.unknown_ends == {"gone_fishing": 3}, f"cut off after {kept} lines"


def test_rare_unknown_ends_are_told_together(tmp_path: Path) -> None:
    model = a_model([Completion("GOOD", finish_reason=word) for word in "bbcdefgh"])
    told = carried_out(tmp_path, model, n=8, concurrency=1).summary.cautions
    assert (told[0], len(told)) == ("2 replies ended by 'b', which koderz doesn't know", 6)
    assert told[5] == "2 replies ended by other words, which koderz doesn't know"


TOOL = {"id": "1", "type": "function", "function": {"name": "python", "arguments": "{}"}}


@pytest.mark.parametrize(
    "completion",
    [
        Completion("", finish_reason="tool_calls", tool_calls=(TOOL,)),
        Completion(" ", finish_reason="stop", tool_calls=(TOOL,)),
        Completion("", finish_reason="MALFORMED_FUNCTION_CALL"),
    ],
)
async def test_call_of_a_tool_alone_is_a_failure(tmp_path: Path, completion: Completion) -> None:
    model = a_model([*[completion] * 3, Completion("GOOD", tool_calls=(TOOL,)), Completion("GOOD")])
    shares = (Measure("score", "higher", "share"), Measure("f1", "higher", "share"), Measure("seconds", "lower"))

    plan = await planned(tmp_path, 5, concurrency=1)
    run = await begun(replace(plan, suite=Words(plan.tasks, measures=shares)), model)
    figures = run.summary.summary
    assert (len(run.of("call")), len(run.of("fault")), figures.success_rate) == (5, 0, 40.0)
    assert (figures.causes, figures.verdicts) == ({"tool_call": 3}, {"error": 3, "passed": 2})
    assert {(result.score, *(result.metrics or {}).items()) for result in run.summary.results if result.cause} == {
        (0.0, ("f1", 0.0))
    }
    assert run.summary.unknown_ends == {}


LONG = Completion("400: the prompt is too long", finish_reason="context")


@pytest.mark.parametrize("mode", ["zero-shot", "iterative"])
def test_prompt_longer_than_the_context_is_a_failure(tmp_path: Path, mode: str) -> None:
    shares = (Measure("score", "higher", "share"),)

    async def go() -> tuple[Run, Run]:
        plan = await planned(tmp_path, 2, mode=mode)
        plan = replace(plan, suite=Words(plan.tasks, measures=shares))
        model, how = a_model(LONG), Replaying(rescore=True, calls_allowed=False)
        first = await begun(plan, model)
        assert len(model.asked) == 2
        return first, await resumed(first.folder, plan, a_model("GOOD"), how, judged=True)

    for run in asyncio.run(go()):
        assert [(r.verdict, r.cause, r.score, r.iterations) for r in run.summary.results] == [
            ("failed", "context", 0.0, 1)
        ] * 2
        assert {attempt.detail for attempt in run.of("attempt")} == {LONG.text}
        assert run.of("fault") == []


def test_conversation_longer_than_the_context_fails_with_its_last_verdict(tmp_path: Path) -> None:
    def line(messages: Sequence[Message], sampling: Sampling) -> Completion:
        return LONG if len(messages) > 4 else Completion("BAD", tokens_out=len(messages))

    run = carried_out(tmp_path, a_model(line), n=1, mode="iterative", temperature=0.5)
    (result,) = run.summary.results
    assert (result.cause, result.iterations, result.calls) == ("assertion", 2, 3)
    assert result.note == "The conversation no longer fits the model's context."


def test_prompt_longer_than_a_helpers_context_is_a_fault(tmp_path: Path) -> None:
    def line(messages: Sequence[Message], sampling: Sampling) -> Completion:
        return Completion("GOOD") if messages[0]["role"] == "system" else LONG

    run = carried_out(tmp_path, a_model(line), n=1, mode="iterative", frontier_spec_model="scripted")
    (fault,) = run.of("fault")
    assert (fault.cause, fault.calls) == ("rejected", 0)
    assert "in the role spec: 400: the prompt is too long" in fault.reason


def test_experiments_are_performed_once_and_recorded_step_by_step(tmp_path: Path) -> None:
    run = carried_out(tmp_path, a_model("GOOD"), n=3)

    assert run.ended.status == "complete"
    kinds = Counter(line.kind for line in run.lines)
    assert kinds == {"plan": 1, "call": 3, "attempt": 3, "experiment": 3, "finished": 1}
    assert run.summary.summary.successes == len(run.summary.results) == 3


def test_comparative_run_alternates_between_its_solvers(tmp_path: Path) -> None:
    run = carried_out(tmp_path, a_model("BAD"), n=2, mode="comparative", max_iterations=2, concurrency=1)

    names = {line.experiment_id: (line.problem_id, line.solver) for line in run.of("experiment")}
    assert [*dict.fromkeys(names[call.experiment_id] for call in run.of("call"))] == [
        (f"T/{i}", solver) for i in range(2) for solver in ("zero-shot", "iterative")
    ]


def test_concurrency_is_reached_and_never_passed(tmp_path: Path) -> None:
    model = Crowded(crowd=4)

    carried_out(tmp_path, model, n=20, concurrency=4)

    assert (len(model.asked), model.most_at_once) == (20, 4)


def test_samples_are_separate_calls_with_their_own_seeds(tmp_path: Path) -> None:
    model = a_model("GOOD")
    run = carried_out(tmp_path, model, n=2, samples=3, seed=40)

    assert sorted(sampling.seed or 0 for _, sampling in model.asked) == [40, 40, 41, 41, 42, 42]
    assert {sampling.temperature for _, sampling in model.asked} == {0.8}
    assert len({line.experiment_id for line in run.of("experiment")}) == 6
    assert {line.sampling["seed"] for line in run.of("call")} == {40, 41, 42}


async def test_observers_hear_of_lines_that_are_on_disk(tmp_path: Path) -> None:
    heard: dict[str, list[str]] = {}

    plan = await planned(tmp_path, 2, concurrency=1)
    journal = plan.settings.results / plan.name / NAME

    def observe(record: Record) -> None:
        heard.setdefault(getattr(record, "experiment_id", ""), []).append(record.kind)
        assert f'{{"kind":"{record.kind}","time":"{record.time}"' in journal.read_text()

    assert (await begun(plan, a_model("GOOD"), observe=observe)).ended.status == "complete"
    assert [*heard.values()] == [["call", "attempt", "experiment"]] * 2


def test_observer_that_has_gone_is_not_the_solvers_fault(tmp_path: Path) -> None:
    def observe(record: Record) -> None:
        if record.kind == "call":
            raise BrokenPipeError(32, "Broken pipe")

    async def go() -> None:
        await begun(await planned(tmp_path, 1), a_model("GOOD"), observe=observe)

    with pytest.raises(BrokenPipeError):
        asyncio.run(go())


# Faults


async def test_fault_ends_its_experiment_alone_and_retry_runs_just_it(tmp_path: Path) -> None:
    plan = await planned(tmp_path, 4)
    first = await begun(plan, a_model(of_task(1, Fault("the server is gone"), "GOOD")))
    assert first.ended.status == "incomplete"
    assert [line.reason for line in first.of("fault")] == ["the server is gone"]
    well = a_model("GOOD")
    retried = await resumed(first.folder, plan, well, faults=True)
    assert retried.ended.status == "complete"
    assert len(well.asked) == 1
    assert (len(retried.summary.results), retried.summary.faults) == (4, [])


def test_faults_in_a_row_stop_the_run(tmp_path: Path) -> None:
    model = a_model(Fault("no route"))
    run = carried_out(tmp_path, model, n=60, concurrency=2)

    assert run.ended.status == "incomplete"
    assert "10 experiments in a row ended in a fault, the last with: no route" in run.ended.reason
    assert len(model.asked) < 20
    assert (run.summary.status, run.summary.reason) == ("incomplete", run.ended.reason)


def test_faults_now_and_then_do_not_stop_the_run(tmp_path: Path) -> None:
    answers: list[Answer] = [*[Fault("now and then")] * 7, "GOOD", Fault("now and then")]
    run = carried_out(tmp_path, a_model(answers), n=16, concurrency=1)

    assert len(run.of("fault")) == 15
    assert run.ended.reason == ""


async def test_fatal_fault_is_met_once_ends_the_run_and_leaves_the_rest_undone(tmp_path: Path) -> None:
    model = a_model(FatalFault("the key is wrong"))

    plan = await planned(tmp_path, 20, concurrency=8)
    first = await begun(plan, model)
    second = await resumed(first.folder, plan, a_model("GOOD"))
    assert len(model.asked) == 1
    assert (first.ended.status, first.ended.reason) == ("failed", "the key is wrong")
    assert not first.of("call")
    assert (second.ended.status, len(second.summary.results), second.of("fault")) == ("complete", 20, [])


# The cost cap


async def test_cap_stops_before_it_is_passed_and_resume_pays_nothing_twice(tmp_path: Path) -> None:
    answer, priced = Completion("GOOD", tokens_out=5, cost=0.05), Price(0.0, 1e4)  # a cent a token

    plan = await planned(tmp_path, 20, max_cost=0.52, max_tokens=10, concurrency=4)
    first = await begun(plan, a_model(answer, price=priced))
    richer = replace(plan, settings=replace(plan.settings, max_cost=50.0))
    model = a_model(answer, price=priced)
    second = await resumed(first.folder, richer, model)
    assert first.ended.status == "stopped"
    assert "the cost cap of $0.52 is reached" in first.ended.reason
    assert len(first.of("call")) == 9  # 0.45 is spent, and 0.10 more might pass the cap
    assert (second.ended.status, len(second.summary.results)) == ("complete", 20)
    assert len(model.asked) == 11
    assert second.summary.paid["total"] == pytest.approx(1.0)


# Resuming


async def test_resume_after_any_line_ends_the_same_and_asks_nothing_twice(tmp_path: Path) -> None:
    def line(messages: Sequence[Message], sampling: Sampling) -> str:
        failures = len(messages) // 2 - 1
        return "GOOD" if failures == 1 and "def f1()" in messages[1]["content"] else f"BAD {failures}"

    plan = await planned(tmp_path, 2, mode="comparative", max_iterations=3, concurrency=2)
    model = a_model(line)
    whole = await begun(plan, model)
    journal = whole.folder / NAME
    lines = journal.read_bytes().splitlines(keepends=True)
    keys = Counter((call.experiment_id, call.key) for call in whole.of("call"))
    for kept in range(1, len(lines)):
        journal.write_bytes(b"".join(lines[:kept]))
        again = a_model(line)
        run = await resumed(whole.folder, plan, again)
        assert Counter((call.experiment_id, call.key) for call in run.of("call")) == keys
        assert len(again.asked) == len(model.asked) - sum(b'{"kind":"call"' in text for text in lines[:kept])
        assert _figures(run) == _figures(whole), f"cut off after {kept} lines"


def _figures(run: Run) -> list[Any]:
    return [(r.experiment_id, r.success, r.iterations, r.calls, r.tokens) for r in run.summary.results]


def cut_and_resumed(folder: Path, source: str, kept: Callable[[list[bytes]], list[bytes]]) -> tuple[Run, FakeModel]:
    """A run by a user's own solver, of which some lines are left when it is resumed, at a dollar a call."""
    (folder / "own.py").write_text(source)
    first, second = (a_model(Completion("GOOD", cost=1.0)) for _ in range(2))

    async def go() -> Run:
        plan = await planned(folder, 1, solver=f"{folder}/own.py:solve")
        run = await begun(plan, first)
        journal = run.folder / NAME
        journal.write_bytes(b"".join(kept(journal.read_bytes().splitlines(keepends=True))))
        return await resumed(run.folder, plan, second)

    return asyncio.run(go()), second


def test_stall_of_the_machine_is_no_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver's own wait and the replay's grace end in the same turn of the event loop."""
    monkeypatch.setattr(recording, "GRACE", 0.05)
    source = """
import asyncio, time

async def solve(task, ask, judge):
    first = await ask(task.messages)
    asyncio.get_running_loop().call_later(0.02, time.sleep, 0.1)
    await asyncio.sleep(0.04)
    return await judge(task, await ask([*task.messages, {"role": "assistant", "content": first.text}]))
"""
    run, _ = cut_and_resumed(tmp_path, source, lambda lines: [x for x in lines if b'"kind":"experiment"' not in x])
    assert [line.reason for line in run.of("fault")] == []


def test_restarting_solver_is_answered_by_what_it_paid(tmp_path: Path) -> None:
    source = """
async def solve(task, ask, judge):
    await ask(task.messages, purpose="first")
    return await judge(task, await ask(task.messages, purpose="second"))

solve.resume = "restart"
"""
    run, model = cut_and_resumed(tmp_path, source, lambda lines: lines[:2])  # the plan and the first call
    assert len(model.asked) == 1
    assert [call.call for call in run.of("call")] == [1, 2]
    (result,) = run.summary.results
    assert (result.success, result.cost, result.calls) == (True, 2.0, 2)


async def test_stop_lets_nothing_begin(tmp_path: Path) -> None:
    plan = await planned(tmp_path, 12, concurrency=2)
    running: list[Orchestrator] = []

    class Stopper(FakeModel):
        async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
            if len(self.asked) == 4:
                running[0].stop("interrupted", "enough")
            return await super().complete(messages, sampling)

    first = await begun(plan, Stopper(good), started=running.append)
    second = await resumed(first.folder, plan, a_model("GOOD"))
    assert (first.ended.status, first.ended.reason) == ("interrupted", "enough")
    assert 4 <= len(first.of("experiment")) <= 6
    assert len(first.of("call")) == len(first.of("experiment"))  # what was under way went on
    assert len(second.summary.results) == 12


# Rescoring


def rescored(
    folder: Path, *, lines_kept: int | None = None, judged_as: str = "nothing", n: int, **settings: Any
) -> tuple[Run, FakeModel]:
    """A run of GOOD answers one by one, cut off after some lines, rescored by a judge that passes `judged_as` alone."""

    async def go() -> tuple[Run, FakeModel]:
        plan = await planned(folder, n, concurrency=1, **settings)
        run = await begun(plan, a_model("GOOD"))
        lines = [encode(line) for line in _one_by_one(run.lines)]
        (run.folder / NAME).write_bytes(b"".join(lines[:lines_kept]))
        index_path(run.folder / NAME).unlink()
        plan.suite.passing = judged_as  # type: ignore[attr-defined]
        model = a_model("GOOD")
        how = Replaying(rescore=True, calls_allowed=False)
        return await resumed(run.folder, plan, model, how, faults=True, judged=True), model

    return asyncio.run(go())


def _one_by_one(lines: Sequence[Record]) -> list[Record]:
    """The lines of each experiment together."""
    first = {getattr(line, "experiment_id", line.kind): place for place, line in reversed([*enumerate(lines)])}
    return sorted(lines, key=lambda line: first[getattr(line, "experiment_id", line.kind)])


def test_rescoring_judges_what_is_on_record_anew_and_asks_nothing(tmp_path: Path) -> None:
    run, model = rescored(tmp_path, lines_kept=1 + 9 + 1, n=3)

    assert model.asked == []
    assert [result.success for result in run.summary.results] == [False] * 3
    assert run.ended.status == "complete"


def test_rescoring_leaves_alone_what_was_never_begun(tmp_path: Path) -> None:
    run, _ = rescored(tmp_path, lines_kept=1 + 6, judged_as="GOOD", n=4)

    assert run.summary.faults == []
    assert len(run.summary.results) == 2


def test_rescoring_goes_on_however_many_experiments_need_a_call(tmp_path: Path) -> None:
    run, _ = rescored(tmp_path, n=30, mode="iterative", max_iterations=2)
    assert len(run.summary.faults) == 30
    assert {row["reason"] for row in run.summary.faults} == {"rescore: needs a call"}


# Solvers of the user's own


def test_users_solver_is_handed_what_it_names(tmp_path: Path) -> None:
    source = """
async def solve(task, ask, judge, once, rng, prompts, *, seed, max_iterations=3):
    measured = await once("measured", lambda: {"at": (1, 2)})
    assert measured == {"at": [1, 2]}
    assert 0 <= rng.random() < 1
    assert "Python" in prompts.render("system")
    assert (seed, max_iterations) == (7, 4)
    reply = await ask(task.messages, temperature=0.3, purpose="probe")
    assert (reply.text, reply.call, reply.tokens) == ("GOOD", 1, 15)
    return await judge(task, reply)
"""
    model = a_model("GOOD")
    run = with_solver(tmp_path, source, model, seed=7, max_iterations=4)

    assert [result.solver for result in run.summary.results] == ["solve"] * 3
    assert {sampling.temperature for _, sampling in model.asked} == {0.3}
    assert Counter(line.kind for line in run.lines)["once"] == 3
    assert {call.purpose for call in run.of("call")} == {"probe"}


ENDS = {
    "raises": ("raise RuntimeError('oh')", "the solver raised RuntimeError: oh"),
    "raises an error of koderz'": ("from koderz import KoderzError; raise KoderzError('mine')", "mine"),
    "raises half a character": ("raise ValueError('\\ud800')", "the solver raised ValueError"),
    "returns nothing": ("await judge(task, 'GOOD')", "the solver returned NoneType, not the Verdict that judge"),
    "returns a truth": ("return True", "the solver returned bool, not the Verdict that judge"),
    "returns an unknown word": (
        "from koderz import Verdict; return Verdict('opt')",
        "the solver returned the verdict 'opt'; it is one of passed, failed, timeout, error",
    ),
    "notes half a character": ("return replace(await judge(task, 'GOOD'), note='\\ud800')", ""),
    "measures no number": ("return replace(await judge(task, 'GOOD'), metrics={'x': object()})", ""),
    "asks an unplanned model": (
        "return await ask(task.messages, model='gpt-4o')",
        "asks gpt-4o, which its arm hasn't got",
    ),
    "asks oddly": ("return await ask(task.messages, heat=3)", "ask has no sampling parameter heat; it has temperature"),
    "asks in prose": ("return await ask('hello')", "ask: message 1 has to be a dict with role and content"),
    "cancels what it asks": ("asking = asyncio.create_task(ask(task.messages)); asking.cancel(); await asking", ""),
    "keeps no JSON": ("return await once('x', lambda: object())", "the solver raised TypeError"),
}


@pytest.mark.parametrize("case", ENDS)
def test_error_in_a_solver_is_a_fault_with_its_reason(tmp_path: Path, case: str) -> None:
    body, reason = ENDS[case]
    imports = "import asyncio\nfrom dataclasses import replace\n\n"
    run = with_solver(tmp_path, f"{imports}async def solve(task, ask, judge, once):\n    {body}\n", n=2)

    assert run.ended.status == "incomplete"
    assert len(run.summary.faults) == 2
    assert all(reason in row["reason"] for row in run.summary.faults)
    assert run.summary.results == []


def test_fault_that_a_solver_swallows_is_a_fault(tmp_path: Path) -> None:
    source = """
async def solve(task, ask, judge):
    try:
        await ask(task.messages)
    except Exception:
        return await judge(task, "GOOD")
"""
    run = with_solver(tmp_path, source, a_model(Fault("gone")))

    assert [row["reason"] for row in run.summary.faults] == ["gone"] * 3


def test_call_that_a_solver_does_not_await_is_recorded(tmp_path: Path) -> None:
    source = """
import asyncio

async def solve(task, ask, judge):
    task_ = asyncio.create_task(ask(task.messages))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return await judge(task, "GOOD")
"""
    run = with_solver(tmp_path, source, a_model("GOOD", delay=0.02))

    assert len(run.of("call")) == 3
    assert [result.calls for result in run.summary.results] == [1] * 3


def test_solver_that_cancels_itself_is_a_fault(tmp_path: Path) -> None:
    body = "asyncio.current_task().cancel()\n    await asyncio.sleep(0)"
    run = with_solver(tmp_path, f"import asyncio\n\nasync def solve(task):\n    {body}\n", n=20, concurrency=4)

    assert run.ended.status == "incomplete"
    assert len(run.summary.faults) > 0


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_metric_that_is_not_finite_leaves_the_journal_readable(tmp_path: Path, number: str) -> None:
    body = f"replace(await judge(task, 'GOOD'), metrics={{'x': float('{number}')}})"
    run = with_solver(
        tmp_path, f"from dataclasses import replace\n\nasync def solve(task, judge):\n    return {body}\n", n=2
    )

    assert len(run.summary.results) + len(run.summary.faults) == 2


# The cap of an experiment


async def test_experiment_cap_ends_it_alone_and_retry_pays_nothing_twice(tmp_path: Path) -> None:
    priced = Price(0.0, 1e4)  # a cent a token

    def line(messages: Sequence[Message], sampling: Sampling) -> Completion:
        is_second = "def f1()" in messages[1]["content"]
        return Completion("BAD" if is_second else "GOOD", tokens_out=5, cost=0.05)

    plan = await planned(
        tmp_path, 3, mode="iterative", max_iterations=4, temperature=0.5, max_tokens=10, max_experiment_cost=0.22
    )
    first = await begun(plan, a_model(line, price=priced))
    richer = replace(plan, settings=replace(plan.settings, max_experiment_cost=1.0))
    model = a_model(line, price=priced)
    second = await resumed(first.folder, richer, model, faults=True)
    assert first.ended.status == "incomplete"
    (fault,) = first.of("fault")
    assert fault.problem_id == "T/1"
    assert "the cost cap of $0.22 an experiment is reached: $0.1500 is spent" in fault.reason
    assert "retry with a higher --max-experiment-cost" in fault.reason
    assert (second.ended.status, len(model.asked)) == ("complete", 1)


def test_experiment_caps_reached_do_not_stop_the_run(tmp_path: Path) -> None:
    run = carried_out(
        tmp_path, a_model("GOOD", price=Price(0.0, 1e6)), n=30, max_experiment_cost=0.01, max_tokens=10, concurrency=2
    )

    assert (len(run.of("fault")), run.of("call")) == (30, [])
    assert "in a row" not in run.ended.reason


# Verdicts of a suite's own


@dataclass
class Opinions(Words):
    """Says `opt` of good answers, which passes, and `inconclusive` of others."""

    words: Sequence[str] = ("opt", "inconclusive")

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        verdict = await super().judge(task, answer, context)
        return Verdict("opt", passes=True) if verdict.passed else Verdict("inconclusive", "noise")


def test_verdict_words_of_a_suite_are_recorded_and_replayed(tmp_path: Path) -> None:
    async def go() -> tuple[Run, Run]:
        plan = await planned(tmp_path, 2, concurrency=1)
        plan = replace(plan, suite=Opinions(plan.tasks))
        first = await begun(plan, a_model(of_task(0, "GOOD", "BAD")))
        lines = (first.folder / NAME).read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith((b'{"kind":"experiment"', b'{"kind":"finished"'))]
        (first.folder / NAME).write_bytes(b"".join(kept))
        return first, await resumed(first.folder, plan, a_model("GOOD"))

    for run in asyncio.run(go()):
        assert [(row.verdict, row.cause, row.success) for row in run.summary.results] == [
            ("opt", "", True),
            ("inconclusive", "noise", False),
        ]
        assert run.summary.summary.verdicts == {"opt": 1, "inconclusive": 1}
