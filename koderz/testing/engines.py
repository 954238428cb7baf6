"""Tests that every engine has to pass, as functions that raise AssertionError.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_it_is_an_engine(check, tmp_path):
        asyncio.run(check(tmp_path, "my-engine", os.environ))

The engine is found by its name, in koderz' registry or by an entry point of the group `koderz.engines`. Checks
ask the simulated model only, so they need no key and cost nothing but the engine's own machines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from koderz.engines import open_engine
from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
from koderz.experiments.replay import Replaying
from koderz.plans.plan import Identity, Plan
from koderz.runs.prepare import prepare
from koderz_tracker.recorded import RecordedReplies
from koderz_tracker.records import Attempt, Call, Experiment, Grade, Keyed, Record, Text, now

Check = Callable[[Path, str, Mapping[str, str]], Coroutine[Any, Any, None]]
Made = TypeVar("Made")


@dataclass
class Notes:
    """A driver that keeps in memory what an engine reports."""

    plan: Plan
    # by experiment, from before
    recorded: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    how: Replaying = field(default_factory=Replaying)
    spent: float = 0.0
    replies: RecordedReplies | None = None
    detach: bool = False
    stopping: str = ""
    stop_after: int | None = None  # outcomes
    began: list[str] = field(default_factory=list)
    lines: list[Record] = field(default_factory=list)
    outcomes: list[ExperimentOutcome] = field(default_factory=list)

    def work(self) -> Iterator[PendingExperiment]:
        for experiment in self.plan.experiments():
            if self.stopping:
                return
            self.began.append(experiment.experiment_id)
            yield PendingExperiment(experiment, self.recorded.get(experiment.experiment_id, ()))

    async def room(self) -> None:
        """There always is."""

    async def record(self, *lines: Record) -> None:
        self.lines += lines

    def text(self, text: Text) -> str:
        assert isinstance(text, str)
        return text

    async def settle(self, outcome: ExperimentOutcome) -> None:
        self.outcomes.append(outcome)
        if self.stop_after is not None and len(self.outcomes) >= self.stop_after:
            self.stop("stopped", "enough")

    def stop(self, status: str, reason: str) -> None:  # noqa: ARG002
        self.stopping = self.stopping or reason

    def of(self, experiment: Identity, *kinds: type[Record]) -> list[Any]:
        """The experiment's lines of these kinds, in the order in which they were recorded."""
        own = [
            line
            for line in self.lines
            if getattr(line, "experiment_id", "") == experiment.experiment_id
        ]
        return [line for line in own if isinstance(line, kinds)]


async def every_experiment_is_performed_once(
    folder: Path, engine: str, environ: Mapping[str, str]
) -> None:
    plan = await planned(folder, engine, tasks=3, samples=2)

    notes = await performed(plan, environ)

    ended = Counter(outcome.record.experiment_id for outcome in notes.outcomes if outcome.record)
    assert ended == {one.experiment_id: 1 for one in plan.experiments()}, ended


async def what_happens_is_recorded_once_and_in_order(
    folder: Path, engine: str, environ: Mapping[str, str]
) -> None:
    plan = await planned(
        folder, engine, tasks=2, mode="iterative", simulated_skill=0.0, max_iterations=3
    )

    notes = await performed(plan, environ)

    for experiment in plan.experiments():
        lines = notes.of(experiment, Call, Attempt)
        assert len({(line.kind, line.key) for line in lines}) == len(lines), (
            "a line was recorded twice"
        )
        assert [line.call for line in lines if isinstance(line, Call)] == [1, 2, 3]
        assert [line.kind for line in lines] == ["call", "attempt"] * 3


async def what_is_on_record_is_not_made_again(
    folder: Path, engine: str, environ: Mapping[str, str]
) -> None:
    first = await performed(
        await planned(
            folder, engine, tasks=2, mode="iterative", simulated_skill=0.0, max_iterations=3
        ),
        environ,
    )
    plan = await planned(
        folder, engine, tasks=2, mode="iterative", simulated_skill=0.0, max_iterations=3
    )
    before: dict[str, list[Record]] = {}
    for old, new in zip(first.plan.experiments(), plan.experiments(), strict=True):
        before[new.experiment_id] = [_moved(line, new) for line in first.of(old, Call, Attempt)[:3]]

    notes = await performed(plan, environ, recorded=before)

    for experiment in plan.experiments():
        lines = notes.of(experiment, Call, Attempt)
        assert [line.kind for line in lines] == ["attempt", "call", "attempt"], (
            "what was recorded was made again"
        )
    ended = [outcome.record for outcome in notes.outcomes]
    assert [getattr(record, "calls", 0) for record in ended] == [3, 3], "recorded calls don't count"


async def grades_are_carried_and_not_made_again(
    folder: Path, engine: str, environ: Mapping[str, str]
) -> None:
    solver = folder / "grading.py"
    solver.write_text(
        "from koderz.types import Verdict\n\n\n"
        "async def grading(task, ask, grade):\n"
        "    reply = await ask(task.messages)\n"
        "    for item in 'ab':\n"
        "        await grade(item, item == 'a', tokens=reply.tokens_out, split='test')\n"
        "    return Verdict('passed')\n"
    )
    first = await performed(
        await planned(folder, engine, tasks=1, solver=f"{solver}:grading"), environ
    )
    plan = await planned(folder, engine, tasks=1, solver=f"{solver}:grading")
    (old,), (new,) = first.plan.experiments(), plan.experiments()
    lines = first.of(old, Call, Grade)
    assert [(line.item, line.score, line.labels) for line in lines if isinstance(line, Grade)] == [
        ("a", 1.0, {"split": "test"}),
        ("b", 0.0, {"split": "test"}),
    ]

    notes = await performed(
        plan, environ, recorded={new.experiment_id: [_moved(line, new) for line in lines[:2]]}
    )

    assert [line.item for line in notes.of(new, Call, Grade)] == ["b"], (
        "what was recorded was made again"
    )
    for done in (first, notes):
        (outcome,) = done.outcomes
        assert isinstance(outcome.record, Experiment), outcome.fault
        assert (outcome.record.grades, outcome.record.score) == (2, 0.5), outcome.record


async def an_experiment_that_goes_wrong_is_one_fault(
    folder: Path, engine: str, environ: Mapping[str, str]
) -> None:
    solver = folder / "breaking.py"
    solver.write_text(
        "async def breaking(task, ask, judge):\n"
        "    if task.id == 'T/1':\n"
        "        raise ValueError('no idea')\n"
        "    return await judge(task, await ask(task.messages))\n"
    )
    plan = await planned(folder, engine, tasks=3, solver=f"{solver}:breaking")

    notes = await performed(plan, environ)

    kinds = {
        outcome.record.problem_id: outcome.record.kind
        for outcome in notes.outcomes
        if outcome.record
    }
    assert kinds == {"T/0": "experiment", "T/1": "fault", "T/2": "experiment"}, kinds
    (fault,) = (str(outcome.fault) for outcome in notes.outcomes if outcome.fault)
    assert "no idea" in fault


async def nothing_is_begun_once_the_run_is_to_stop(
    folder: Path, engine: str, environ: Mapping[str, str]
) -> None:
    plan = await planned(folder, engine, tasks=2, samples=40, concurrency=2)

    notes = await performed(plan, environ, stop_after=1)

    assert len(notes.outcomes) == len(notes.began), "what was begun has to be seen through"


CHECKS: tuple[Check, ...] = (
    every_experiment_is_performed_once,
    what_happens_is_recorded_once_and_in_order,
    what_is_on_record_is_not_made_again,
    grades_are_carried_and_not_made_again,
    an_experiment_that_goes_wrong_is_one_fault,
    nothing_is_begun_once_the_run_is_to_stop,
)
"""All checks. None depends on another."""


async def planned(folder: Path, engine: str, *, tasks: int, **settings: Any) -> Plan:
    """A plan over a number of one-line tasks, for the simulated model."""
    settings_of_plan = {
        "engine": engine,
        "local_model": "simulated",
        "mode": "zero-shot",
        "results": folder / "results",
    }
    settings_of_plan["judges"] = 1  # what is started for more is paid for
    settings_of_plan |= {"dataset": write_tasks(folder / f"{tasks}.jsonl", tasks), **settings}
    return await prepare(settings_of_plan, range(tasks), environ={"XDG_STATE_HOME": str(folder)})


def write_tasks(path: Path, n: int) -> Path:
    """Writes a file of `n` one-line tasks in HumanEval's format: T/0, T/1, …"""
    rows = [
        {
            "task_id": f"T/{i}",
            "prompt": f'def f{i}():\n    """Return {i}."""\n',
            "entry_point": f"f{i}",
            "test": f"def check(candidate):\n    assert candidate() == {i}\n",
            "canonical_solution": f"    return {i}\n",
        }
        for i in range(n)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


_LAST: dict[str, tuple[object, Any]] = {}


async def shared(what: str, key: object, make: Callable[[], Awaitable[Made]]) -> Made:
    """Return what `make` does, or what it did the last time if the key is still the same."""
    if what not in _LAST or _LAST[what][0] != key:
        _LAST[what] = (key, await make())
    made: Made = _LAST[what][1]
    return made


async def performed(plan: Plan, environ: Mapping[str, str], **driving: Any) -> Notes:
    """Runs a plan and returns the driver with all that the engine reported."""
    notes = Notes(plan, **driving)
    async with open_engine(plan, environ) as engine:
        await engine.check()
        await engine.run(notes)
    return notes


def _moved(line: Keyed, to: Identity) -> Record:
    """The line as if it had been recorded for another experiment."""
    return replace(line, experiment_id=to.experiment_id, time=now())
