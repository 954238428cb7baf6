"""Wherever a process dies, and however many work at once: MLflow ends up with each thing once."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koderz_tracker.records import Finished
from koderz_tracker.sinks import SinkDown
from koderz_tracker.sinks.mlflow.store import MlflowStore
from koderz_tracker.sinks.mlflow.target import Outbox
from tests.tracker.builders import fault
from tests.tracker.sinks.mlflow_world import SHARED, client, experiments, lines, new_plan, project, record, scores, seen

pytestmark = pytest.mark.slow


class Died(BaseException):
    """What nothing in the sink may catch: the process is gone."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> Iterator[None]:
    """Dies at the so-manieth call of MLflow or write of the outbox: before it, or after it was carried out."""
    count = itertools.count()

    def wrapped(name: str, real: Any) -> Any:
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            is_now = next(count) == at
            if is_now and not after:
                raise Died(name)
            value = real(self, *arguments, **named)
            if is_now:
                raise Died(name)
            return value

        return call

    import mlflow
    from mlflow.entities import EvaluationDataset
    from mlflow.tracing.client import TracingClient

    calls = {
        mlflow.MlflowClient: "create_run log_batch set_terminated log_inputs log_artifacts set_tag "
        "create_dataset register_prompt",
        EvaluationDataset: "merge_records",
        TracingClient: "start_trace log_spans",
        Outbox: "_write traced",
    }
    with monkeypatch.context() as patch:
        for owner, names in calls.items():
            for name in names.split():
                patch.setattr(owner, name, wrapped(name, getattr(owner, name)))
        yield


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_at_any_call_is_completed_by_the_next_process(
    results: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    whole = record(results, new_plan(2, **SHARED), *experiments(0), fault(1), Finished(status="incomplete"))
    project(whole, detail="runs")
    expected = _comparable(whole)
    died = 0
    for at in itertools.count():
        folder = record(results, new_plan(2, **SHARED), *experiments(0), fault(1), Finished(status="incomplete"))
        written = lines(folder)
        try:
            with dying(monkeypatch, at, after=after):
                project(folder, detail="runs")
        except Died:
            died += 1
        else:
            break
        project(folder, written, detail="runs")
        assert _comparable(folder) == expected, f"died at call {at}"
    assert died > 15


def test_concurrent_processes_create_nothing_twice(results: Path) -> None:
    folder = record(results, new_plan(12), *experiments(*range(12)), Finished(status="complete"))
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=project, args=(folder, None, None, "runs")) for _ in range(2)]
    for process in others:
        process.start()
    for process in others:
        process.join(120)
    found = seen(folder)

    assert [process.exitcode for process in others] == [0, 0]
    assert found.counts == (1, 12, 12)


def test_run_created_without_a_reply_is_not_created_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = record(results, new_plan(1), *experiments(0), Finished(status="complete"))
    real = MlflowStore.create

    def lost(self: MlflowStore, page: Any) -> str:
        real(self, page)
        raise ConnectionResetError("the answer got lost")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowStore, "create", lost)
        for _ in ("the run's", "the nested run's"):
            with pytest.raises(SinkDown, match="answer got lost"):
                project(folder, detail="runs")
    project(folder, detail="runs")

    assert seen(folder).counts == (1, 1, 1)


def test_arm_runs_created_without_a_reply_are_not_created_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solvers = ("zero-shot", "iterative")
    ended = [*experiments(0), *experiments(0, solver="iterative"), Finished(status="complete")]
    folder = record(results, new_plan(1, arms=solvers), *ended)
    real = MlflowStore.create

    def lost(self: MlflowStore, page: Any) -> str:
        real(self, page)
        raise ConnectionResetError("the answer got lost")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowStore, "create", lost)
        for _ in ("the run's", "an arm's", "the other arm's"):
            with pytest.raises(SinkDown, match="answer got lost"):
                project(folder)
    project(folder)
    found = seen(folder)

    assert found.counts == (1, 2, 2)
    assert [run.data.metrics["passed/mean"] for run in found.nested] == [1.0] * 2
    params = {run.data.tags["koderz.arm"]: run.data.params.get("solver") for run in found.nested}
    assert params == {name: name for name in solvers}


def _comparable(folder: Path) -> Any:
    """What the run has in MLflow, without its own id and times; and what the registries hold."""
    found, mlflow = seen(folder), client(folder)
    place = mlflow.get_experiment_by_name("koderz/humaneval").experiment_id
    runs = [
        (
            run.info.run_name.replace(folder.name, "RUN"),
            run.info.status,
            sorted(run.data.metrics),
            run.data.params,
            run.data.tags.get("mlflow.linkedPrompts"),
            len(run.inputs.dataset_inputs),
        )
        for run in [found.run, *found.nested]
    ]
    traces = [(trace.info.state, len(trace.data.spans), scores(trace)) for trace in found.traces]
    datasets = [(dataset.name, len(dataset.records)) for dataset in mlflow.search_datasets([place])]
    prompts = [prompt.version for prompt in mlflow.search_prompt_versions("koderz.task")]
    return sorted(map(repr, runs)), sorted(map(repr, traces)), datasets, prompts
