"""What tests of the MLflow sink share: runs recorded, projected and read back."""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Finished, Plan, Record
from koderz_tracker.runs import read_plan
from koderz_tracker.sinks import Source
from koderz_tracker.sinks.mlflow.sink import MlflowSink
from koderz_tracker.stories import Stories
from koderz_tracker.tracker import Tracker
from tests.tracker.builders import attempt, call, experiment_id, fault, judged

_NUMBERS = itertools.count()
SHARED: dict[str, Any] = {
    "details": {"prompts": {"task": "Do ${what}."}, "expectations": {"T/0": {"expected_response": "x"}}}
}
"""A plan's prompts and expectations."""


def new_plan(tasks: int = 3, **more: Any) -> Plan:
    """A plan with a run id that no other test has."""
    run_id = f"bench_{next(_NUMBERS):08x}_20260131_120000"
    given: dict[str, Any] = {
        "config": {"local_model": "m", "suite": "humaneval", "seed": 7},
        "environment": {"dataset_digest": "ab" * 32, "git_commit": "c0ffee", "koderz": "0.1.0"},
        **more,
    }
    return a_plan(tasks, run_id=run_id, **given)


def experiments(*numbers: int, solver: str = "zero-shot") -> list[Record]:
    """Whole experiments: a call, a failed attempt, a call, a passed attempt, success."""
    return [record for number in numbers for record in experiment(number, solver)]


def experiment(number: int, solver: str = "zero-shot") -> list[Record]:
    return [
        call(number, 1, solver=solver, text="write f"),
        attempt(number, 1, solver=solver, cause="assertion", feedback="f(1) should be 2", program="def f(x): return x"),
        call(number, 2, solver=solver, text="try again"),
        attempt(number, 2, solver=solver, verdict="passed", program="def f(x): return x + 1"),
        judged(number, True, solver=solver, iterations=2, calls=2, cost=0.5, tokens_in=14, tokens_out=6),
    ]


def record(results: Path, plan: Plan, *records: Record) -> Path:
    return a_journal(results, *records, plan=plan)


def add(folder: Path, *records: Record) -> None:
    """Goes on with a run that was recorded."""

    async def go() -> None:
        with Tracker.reopen(folder) as tracker:
            await tracker.record(*records)

    asyncio.run(go())


def open_sink(
    folder: Path, environ: Mapping[str, str] | None = None, detail: str | None = None, experiment: str | None = None
) -> MlflowSink:
    stories = Stories(folder)
    stories.refresh()
    options = {"mlflow_detail": detail, "mlflow_experiment": experiment}
    return MlflowSink(Source(folder, read_plan(folder), stories, environ or {}, options))


def lines(folder: Path) -> list[Record]:
    """Everything in the journal."""
    stories = Stories(folder)
    return list(stories.records([entry.span for entry in stories.refresh()]))


def project(
    folder: Path,
    records: Sequence[Record] | None = None,
    environ: Mapping[str, str] | None = None,
    detail: str | None = None,
    experiment: str | None = None,
) -> None:
    """Brings the run into MLflow by a sink of its own."""
    sink = open_sink(folder, environ, detail, experiment)
    try:
        sink.take(lines(folder) if records is None else records)
    finally:
        sink.close()


@dataclass
class Seen:
    """A run as MLflow has it."""

    runs: list[Any]  # those that aren't nested
    nested: list[Any]
    traces: list[Any] = field(default_factory=list)

    @property
    def run(self) -> Any:
        (run,) = self.runs
        return run

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many runs, nested runs and traces there are."""
        return len(self.runs), len(self.nested), len(self.traces)

    def nested_run(self, name: str) -> Any:
        (found,) = [run for run in self.nested if run.info.run_name == name]
        return found

    def trace(self, problem: str, solver: str = "zero-shot") -> Any:
        """The trace of an experiment."""
        tags = {"problem_id": problem, "solver": solver}
        (found,) = [trace for trace in self.traces if trace.info.tags.items() >= tags.items()]
        return found

    def facts(self) -> Any:
        """All that the run is known for, without what MLflow makes up."""
        runs = [
            (
                run.info.run_name,
                run.info.status,
                run.info.start_time,
                run.info.end_time,
                run.data.metrics,
                run.data.params,
                {k: v for k, v in run.data.tags.items() if k != "mlflow.parentRunId"},
                [(given.dataset.name, given.dataset.digest) for given in run.inputs.dataset_inputs],
            )
            for run in [*self.runs, *self.nested]
        ]
        traces = [
            (
                trace.info.trace_id,
                trace.info.request_preview,
                trace.info.state,
                len(trace.data.spans),
                scores(trace),
            )
            for trace in self.traces
        ]
        return sorted(map(repr, runs)), sorted(map(repr, traces))


def scores(trace: Any) -> dict[str, Any]:
    """The values of a trace's assessments, expectations among them."""
    return {found.name: (found.feedback or found.expectation).value for found in trace.info.assessments}


def client(folder: Path, uri: str | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow

        uri = uri or f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"
        mlflow.set_tracking_uri(uri)  # where a dataset looks for its records
        return mlflow.MlflowClient(uri)


def seen(folder: Path, uri: str | None = None, experiment: str = "koderz/humaneval") -> Seen:
    """Reads the run back through MLflow's own client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow = client(folder, uri)
        place = mlflow.get_experiment_by_name(experiment).experiment_id
        runs = mlflow.search_runs([place], f"tags.benchmark_run_id = '{folder.name}'", max_results=5000)
        traces = mlflow.search_traces(
            locations=[place], filter_string=f"tags.benchmark_run_id = '{folder.name}'", max_results=500
        )
    outer = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    nested = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    return Seen(outer, nested, list(traces))


__all__ = ["Finished", "experiment_id", "fault"]
