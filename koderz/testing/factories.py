"""Factories of plans, runs, journals and models for tests, which take no more than a test has to say.

    folder = a_run(tmp_path, {"zero-shot": [True, False, "unreachable"]}, model="openai/gpt-6-luna")
    assert koderz.load_summary(folder).summary.success_rate == 50

koderz' tracker writes the files, so they are what a run leaves. No model is asked, and nothing is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.models.names import ModelName
from koderz.models.tariffs import FREE, Price
from koderz.plans.ids import planned_ids
from koderz.types import Completion, Message, Sampling
from koderz_tracker.index import index_path
from koderz_tracker.journal import NAME
from koderz_tracker.records import (
    Arm,
    Attempt,
    Call,
    Cell,
    Experiment,
    Fault,
    Finished,
    Plan,
    Record,
)
from koderz_tracker.runs import run_folders
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Coroutine

RUN = "bench_0a1b2c3d_20260131_120000"
"""The id of the first run that is made in a folder. Later ones count up from it, and begin an hour apart."""

TOKENS = ("tokens_in", "tokens_out")
NAMED = ModelName("ollama", "scripted")
"""The name of a model that `a_model` returns."""

Outcome = bool | str | None | Mapping[str, Any]
"""The end of an experiment: whether it passed; the cause of its fault as a word; None if it has none yet; or fields of
its record, as in `{"success": True, "iterations": 3, "cost": 0.25}`."""

Outcomes = Sequence[Outcome] | Mapping[str, Sequence[Outcome] | Mapping[str, Sequence[Outcome]]]
"""The outcomes of tasks T/0, T/1, … in one arm; or by arm; or by arm and task, those of each task's samples."""

Line = Callable[[Sequence[Message], Sampling], str | Completion]
"""What a model says to messages and sampling parameters."""

Answer = str | Completion | Exception
"""What a model does when it is asked: it says this, or raises it. A text counts as 5 tokens, and its prompt as 10."""


def a_plan(
    tasks: int | Sequence[str] = 3,
    *,
    arms: Sequence[str] = ("zero-shot",),
    model: str = "m",
    config: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Plan:
    """Return the plan of a run, the first line of its journal.

    `tasks` are ids, or how many: T/0, T/1, … Each arm is named after its solver and asks `model`. `config` adds
    settings, and `fields` are others of the record, such as `samples`, `clusters` and `measures`. Raises TypeError for
    a field that there is not.
    """
    settings = {"local_model": model, **(config or {})}
    usual = {
        "run_id": RUN,
        "mode": "comparative" if len(arms) > 1 else arms[0],
        "arms": [
            Arm(name=arm, solver=arm, models={"main": settings["local_model"]}) for arm in arms
        ],
        "samples": 1,
        "environment": {"python": "3.11"},
    }
    names = [f"T/{number}" for number in range(tasks)] if isinstance(tasks, int) else tasks
    return Plan(**{**usual, "tasks": names, "config": settings, **fields})


def a_journal(
    results: Path,
    *records: Record,
    plan: Plan | None = None,
    lines: int | None = None,
    is_torn: bool = False,
    damaged: Sequence[int] = (),
) -> Path:
    """Write the journal of a run that has no summary, and return the run's folder, which is in `results`.

    It holds `plan` and then `records`, which are classes of `koderz_tracker.records`. As after a kill, no more than
    the first `lines` of its lines are left, and half of the next one, or of its last, if it `is_torn`. Lines of which
    `damaged` has the numbers, the plan's being 0, can't be read. Can be called while an event loop runs. Raises
    KoderzError if there is a run of the plan's id in `results`.
    """
    plan = plan or a_plan(run_id=_next_id(results))

    async def write() -> Path:
        with Tracker.create(results, plan.run_id or next(planned_ids(plan))[0], plan) as tracker:
            if records:
                await tracker.record(*records)
        return tracker.folder

    folder = _done(write())
    journal = folder / NAME
    if lines is not None or is_torn or damaged:
        whole = journal.read_bytes().splitlines(keepends=True)
        for number in damaged:
            whole[number] = b"#" * (len(whole[number]) - 1) + b"\n"
        kept = len(whole) - is_torn if lines is None else lines
        half = [whole[kept][: len(whole[kept]) // 2]] if is_torn else []
        journal.write_bytes(b"".join([*whole[:kept], *half]))
        index_path(journal).unlink()
    return folder


def a_run(
    results: Path,
    outcomes: Outcomes = (True, False),
    *,
    status: str = "complete",
    cost: float = 0.01,
    latency: float = 0.5,
    **planned: Any,
) -> Path:
    """Write the journal and the summary of a run with these outcomes, and return its folder, which is in `results`.

    An experiment makes as many calls as it has iterations: one, if its outcome doesn't say otherwise. Together they
    cost `cost` US dollars and take `latency` seconds. `status` is that of its end; if it is empty, the run was killed
    and has no summary. `planned` are parameters of `a_plan`. Raises KoderzError if there is a run of this id already.
    """
    named = outcomes if isinstance(outcomes, Mapping) else {"zero-shot": outcomes}
    by_arm = {arm: dict(_by_task(given)) for arm, given in named.items()}
    tasks = [*dict.fromkeys(task for given in by_arm.values() for task in given)]
    samples = {
        (task, arm): len(given[task])
        for task in tasks
        for arm, given in by_arm.items()
        if task in given
    }
    cells = [Cell(task, arm, number) for (task, arm), number in samples.items()]
    is_even = len(set(samples.values())) < 2 and len(cells) == len(tasks) * len(by_arm)
    run_id = _next_id(results)
    usual = {
        "run_id": run_id,
        "arms": [*by_arm],
        "samples": max(samples.values(), default=1),
        "cells": None if is_even else cells,
        "time": _later(datetime.strptime(run_id[15:], "%Y%m%d_%H%M%S")),
    }
    plan = a_plan(**{"tasks": tasks, **usual, **planned})
    begun = datetime.fromisoformat(plan.time)
    records: list[Record] = []
    for number, (name, task, arm, sample) in enumerate(planned_ids(plan), 1):
        about = {"experiment_id": name, "time": _later(begun, latency * number)}
        outcome = by_arm[arm][task][sample]
        records += _lines(
            plan, about, {"problem_id": task, "arm": arm, "sample": sample}, outcome, cost, latency
        )
    if status:
        records.append(Finished(status=status, time=records[-1].time if records else plan.time))
    folder = a_journal(results, *records, plan=plan)
    if status:
        write_summary(folder)
    return folder


def a_model(
    answer: Answer | Sequence[Answer] | Line, *, price: Price = FREE, delay: float = 0.0
) -> FakeModel:
    """Return a model that gives this answer to whatever it is asked, and keeps what it was asked.

    Several answers are given one after the other, the last one to all later calls. A function is called with the
    messages and the sampling parameters of each call. An exception is raised, as a `koderz.Fault` of a server is.
    A call takes `delay` seconds, and `price` is told to whoever asks for it. Such a model can be the `replies` of a
    `ModelServer`, and what a provider opens. Raises ValueError if `answer` is an empty sequence.
    """
    if callable(answer):
        return FakeModel(answer, price, delay)
    answers = [answer] if isinstance(answer, Answer) else [*answer]
    if not answers:
        raise ValueError("the model has no answer to give: name one at least")

    def line(messages: Sequence[Message], sampling: Sampling) -> str | Completion:
        del messages, sampling
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return FakeModel(line, price, delay)


@dataclass
class FakeModel:
    """A model whose answers are those of a function; see `a_model`."""

    line: Line
    cost: Price = FREE
    """US dollars a million tokens."""
    delay: float = 0.0
    """Seconds that a call takes."""
    name: ModelName = NAMED
    asked: list[tuple[tuple[Message, ...], Sampling]] = field(default_factory=list)
    """The messages and the sampling parameters of each call, in the order in which they came."""
    at_once: int = 0
    """Calls that are open now."""
    most_at_once: int = 0

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Return the answer. Raises what the function does."""
        self.asked.append((tuple(messages), sampling))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.wait()
            said = self.line(messages, sampling)
        finally:
            self.at_once -= 1
        return Completion(said, tokens_in=10, tokens_out=5) if isinstance(said, str) else said

    async def wait(self) -> None:
        """Return when the answer is due."""
        await asyncio.sleep(self.delay)

    async def check(self) -> dict[str, str]:
        """Return nothing to record: it can always be asked."""
        return {}

    def price(self) -> Price:
        """Return what its tokens cost."""
        return self.cost

    async def aclose(self) -> None:
        """Release nothing."""


def _next_id(results: Path) -> str:
    number = len(run_folders(results))
    begun = datetime.strptime(RUN[15:], "%Y%m%d_%H%M%S") + timedelta(hours=number)
    return f"bench_{int(RUN[6:14], 16) + number:08x}_{begun:%Y%m%d_%H%M%S}"


def _later(begun: datetime, seconds: float = 0.0) -> str:
    return (begun + timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def _by_task(
    given: Sequence[Outcome] | Mapping[str, Sequence[Outcome]],
) -> Iterator[tuple[str, Sequence[Outcome]]]:
    """The outcomes of an arm by task, one for each sample."""
    yield from (
        given.items()
        if isinstance(given, Mapping)
        else ((f"T/{n}", [each]) for n, each in enumerate(given))
    )


def _lines(
    plan: Plan,
    about: Mapping[str, Any],
    cell: Mapping[str, Any],
    outcome: Outcome,
    cost: float,
    latency: float,
) -> Iterator[Record]:
    """The lines of an experiment that came to this outcome."""
    if outcome is None:
        return
    model, arm = (
        plan.model_of(cell["arm"]),
        {**about, **cell, "solver": plan.arm(cell["arm"]).solver},
    )
    given: dict[str, Any] = {"iterations": 1, "cost": cost, "latency": latency, "success": outcome}
    given |= outcome if isinstance(outcome, Mapping) else {}
    calls = given.get("calls", given["iterations"])
    fields = {"calls": calls, "tokens_in": 7 * calls, "tokens_out": 3 * calls, **given}
    for number in range(1, calls + 1):
        messages = [{"role": "user", "content": f"Solve {cell['problem_id']}, go {number}."}]
        share = {name: fields[name] / calls for name in ("cost", "latency")}
        share |= {
            name: fields[name] * number // calls - fields[name] * (number - 1) // calls
            for name in TOKENS
        }
        key, purpose = f"ask:{number:032x}/1", "attempt"
        yield Call(
            **about,
            call=number,
            purpose=purpose,
            model=model,
            messages=messages,
            reply="pass",
            key=key,
            **share,
        )
    if isinstance(outcome, str):
        yield Fault(**arm, reason=f"the model is {outcome}", cause=outcome, cost=cost, calls=calls)
        return
    usual = (
        {"verdict": "passed"} if fields["success"] else {"verdict": "failed", "cause": "assertion"}
    )
    ended = {**usual, **fields}
    for number in range(1, ended["iterations"] + 1):
        last = {
            name: ended[name]
            for name in ("verdict", "cause", "score", "metrics")
            if ended.get(name) is not None
        }
        verdict = (
            last if number == ended["iterations"] else {"verdict": "failed", "cause": "assertion"}
        )
        call = min(number, calls) or None
        yield Attempt(
            **arm, number=number, call=call, program="pass", key=f"judge:{number:032x}/1", **verdict
        )
    yield Experiment(**arm, model=model, **ended)


def _done(work: Coroutine[Any, Any, Path]) -> Path:
    """The result of a coroutine, whether or not an event loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
