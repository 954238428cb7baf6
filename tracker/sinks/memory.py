"""The memory store as a sink: one memory an experiment, and one a run.

Memories have the experiment's or the run's id as their key and the journal's times, so that a record which
comes again changes nothing, and an older one never undoes a newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koderz_tracker.errors import JournalError
from koderz_tracker.memory import maintenance as caretaking
from koderz_tracker.memory.cortex import store_path
from koderz_tracker.memory.database import StoreDown
from koderz_tracker.memory.memories import Draft, how_it_failed
from koderz_tracker.memory.store import Store
from koderz_tracker.messages import text_of
from koderz_tracker.parts import completes, from_parts
from koderz_tracker.records import Attempt, Call, Experiment, Fault, Finished, Plan, Record
from koderz_tracker.scrubber import Scrubber
from koderz_tracker.sinks import Sink, SinkDown, Source
from koderz_tracker.sinks.json import encode_summary
from koderz_tracker.summary import Summary, summarize

_PATIENCE = 20.0  # seconds that another writer may hold the store
_ASKED = 4000  # characters of what was asked
_CONCEPTS = 20  # functions of modules that a program uses, such as math.gcd


class MemorySink(Sink):
    """Copies one run into the memory store of its results folder, or of `KODERZ_MEMORY`."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        # what tells the memories of one project from another's
        self._project = (
            source.environ.get("KODERZ_PROJECT")
            or source.folder.parent.resolve().parent.name
            or "koderz"
        )
        path, scrubber = store_path(source.folder.parent, source.environ), Scrubber(source.environ)
        with _border():
            self._store = Store(path, scrubber=scrubber, timeout=_PATIENCE)

    def take(self, records: Sequence[Record]) -> None:
        """Stores in one transaction the last outcome of each experiment, and the state of the run."""
        if drafts := list(self._drafts(records)):
            with _border():
                self._store.remember(drafts)

    def close(self) -> None:
        with _border():
            self._store.close()

    @classmethod
    def rebuild(cls, results: Path, environ: Mapping[str, str]) -> None:
        """Rebuilds a damaged store with every memory that can still be read; the file is put aside.

        Raises SinkDown where it is locked or can't be written.
        """
        with _border():
            caretaking.rebuild(store_path(results, environ), environ)

    def _drafts(self, records: Sequence[Record]) -> Iterator[Draft]:
        plan = self.source.plan
        outcomes = {
            record.experiment_id: record
            for record in records
            if isinstance(record, Experiment | Fault)
        }
        for outcome in outcomes.values():
            yield self._experiment_memory(outcome)
        finished = [record for record in records if isinstance(record, Finished)]
        if not finished:
            return
        with _border():
            summary = summarize(self.source.folder)
        # by experiments that may have ended later than the one that they complete
        if completes(plan):
            yield from self._completed_memories(summary)
        if plan.run_id is not None:
            yield self._run_memory(plan, finished[-1], summary)

    def _experiment_memory(self, outcome: Experiment | Fault) -> Draft:
        plan, story = self.source.plan, self.source.stories.of(outcome.experiment_id)
        own = [record for record in story if isinstance(record, Attempt) and not record.task_id]
        attempts = sorted(own, key=lambda attempt: attempt.number)
        run = [plan.run_id] if plan.run_id is not None else []
        state = "fault" if isinstance(outcome, Fault) else "completed"
        return Draft(
            key=outcome.experiment_id,
            title=f"Experiment {outcome.experiment_id}",
            content="\n\n".join(_text_of(plan, outcome, attempts, story)),
            category="learning",
            type="episodic",
            tags=["result", outcome.experiment_id, outcome.problem_id, state, *run],
            metadata=_metadata(plan, outcome, attempts),
            project=self._project,
            created_at=outcome.time,
            updated_at=outcome.time,
        )

    def _completed_memories(self, summary: Summary) -> Iterator[Draft]:
        for result in summary.results:
            ends = [
                line
                for line in self.source.stories.of(result.experiment_id)
                if isinstance(line, Experiment)
            ]
            whole = {"success": result.success, "score": result.score, "metrics": result.metrics}
            yield from (self._experiment_memory(replace(end, **whole)) for end in ends[-1:])

    def _run_memory(self, plan: Plan, finished: Finished, summary: Summary) -> Draft:
        models = dict.fromkeys(plan.model_of(arm.name) for arm in plan.arms)
        return Draft(
            key=plan.run_id,
            title=f"Benchmark Run {plan.run_id}",
            content=b"".join(encode_summary(summary)).decode(),
            category="architecture",
            type="long_term",
            importance="critical",
            tags=["benchmark_run", str(plan.run_id), plan.mode, *models],
            metadata={
                "benchmark_run_id": plan.run_id,
                "mode": plan.mode,
                "suite": plan.suite,
                "model": ", ".join(models),
                "status": summary.status,
                "planned": plan.planned,
                "success_rates": {
                    name: arm.summary.success_rate for name, arm in summary.arms.items()
                },
                "cost": summary.paid["total"],
                "simulated": plan.simulated,
            },
            project=self._project,
            created_at=plan.time,
            updated_at=finished.time,
        )


@contextmanager
def _border() -> Iterator[None]:
    """Turns errors of the store and of the journal into SinkDown."""
    try:
        yield
    except (StoreDown, JournalError) as error:
        raise SinkDown(str(error)) from error


def _metadata(
    plan: Plan, outcome: Experiment | Fault, attempts: Sequence[Attempt]
) -> dict[str, Any]:
    common = {
        "benchmark_run_id": plan.run_id,
        "experiment_id": outcome.experiment_id,
        "problem_id": outcome.problem_id,
        "solver": outcome.solver,
        "arm": outcome.arm,
        "success": None,
        "iterations": len(attempts),
        "cost": outcome.cost,
        "model": plan.model_of(outcome.arm),
        "mode": plan.mode,
        "sample": outcome.sample,
        "suite": plan.suite,
        "simulated": plan.is_simulated(outcome.arm),
        "causes": list(dict.fromkeys(attempt.cause for attempt in attempts if not attempt.passed)),
        "concepts": list(_concepts(plan, outcome.problem_id, attempts)),
    }
    if isinstance(outcome, Fault):
        return {**common, "cause": outcome.cause, "reason": outcome.reason}
    return {
        **common,
        "success": outcome.success,
        "iterations": outcome.iterations,
        "verdict": outcome.verdict,
        "cause": outcome.cause,
        "tokens": outcome.tokens_in + outcome.tokens_out,
        "duration_seconds": outcome.duration_seconds,
        "score": outcome.score,
        **({"metrics": outcome.metrics} if outcome.metrics else {}),
        **({"saved_cost": outcome.saved_cost, "reused": outcome.reused} if outcome.reused else {}),
        **(
            {"lesson_cause": outcome.lesson_cause, "lesson": outcome.lesson}
            if outcome.lesson
            else {}
        ),
    }


_IMPORTED = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\w+(?:[ \t]*,[ \t]*\w+)*)|import[ \t]+([\w.]+))",
    re.MULTILINE,
)


def _concepts(plan: Plan, task: str, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Concepts of a task besides its statement: its groups, and functions that its passing program uses of modules."""
    if task in plan.tasks:
        yield from filter(
            None, (str(values[plan.tasks.index(task)]) for values in plan.groups.values())
        )
    program = next(
        (str(attempt.program) for attempt in attempts if attempt.passed and attempt.program), ""
    )
    used: dict[str, None] = {}
    for origin, names, module in _IMPORTED.findall(program):
        used |= dict.fromkeys(f"{origin}.{name.strip()}" for name in names.split(",") if origin)
        used |= dict.fromkeys(re.findall(rf"\b{re.escape(module)}\.\w+", program) if module else ())
    yield from [name for name in used if not name.startswith(("typing.", "__future__."))][
        :_CONCEPTS
    ]


def _text_of(
    plan: Plan, outcome: Experiment | Fault, attempts: Sequence[Attempt], story: Sequence[Record]
) -> Iterator[str]:
    """The text of an experiment's memory for people and agents, without hidden tests and programs."""
    yield f"{outcome.problem_id} · {outcome.solver} · {plan.model_of(outcome.arm)}: {_ending(outcome)}"
    if asked := _asked(story):
        yield f"Asked:\n{asked}"
    if attempts:
        yield "Attempts:\n" + "\n".join(
            f"{each.number}. {how_it_failed(each.verdict, each.cause, str(each.detail or each.feedback))}"
            for each in attempts
        )
    if isinstance(outcome, Experiment) and outcome.lesson:
        yield f"Lesson: {outcome.lesson}"
    yield from filter(None, from_parts(plan, lambda part: [part.excerpt(story)]))
    if isinstance(outcome, Experiment) and outcome.metrics:
        figures = {"score": outcome.score, **outcome.metrics}
        yield "; ".join(
            f"{name} {value:.4g}" for name, value in figures.items() if value is not None
        )
    yield f"Cost ${outcome.cost:.4f}; {f'run {plan.run_id}' if plan.run_id else 'a single experiment'}"


def _ending(outcome: Experiment | Fault) -> str:
    if isinstance(outcome, Fault):
        return f"not judged, since {outcome.reason}"
    attempts = "1 attempt" if outcome.iterations == 1 else f"{outcome.iterations} attempts"
    cause = f" ({outcome.cause})" if outcome.cause else ""
    return f"{outcome.verdict}{cause} after {attempts}{f'; {outcome.note}' if outcome.note else ''}"


def _asked(story: Sequence[Record]) -> str:
    """The first message to the model, shortened if it is long."""
    for record in story:
        if isinstance(record, Call) and record.purpose == "attempt":
            texts = [text_of(message) for message in record.messages if message["role"] == "user"]
            text = texts[0].strip() if texts else ""
            return text if len(text) <= _ASKED else f"{text[:_ASKED]} …"
    return ""
