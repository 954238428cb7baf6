"""A team's store: a tracking server over HTTP, also one that goes away, and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koderz_tracker.records import Finished, Resumed
from koderz_tracker.sinks import SinkDown
from koderz_tracker.sinks.mlflow.sink import MlflowSink
from tests.conftest import PATIENCE
from tests.tracker.builders import fault
from tests.tracker.sinks.mlflow_world import (
    SHARED,
    Seen,
    add,
    client,
    experiments,
    lines,
    new_plan,
    open_sink,
    project,
    record,
    scores,
    seen,
)
from tests.tracker.sinks.servers import MlflowServer, postgresql

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def test_server_gets_the_same_as_a_file(server: MlflowServer, tmp_path: Path) -> None:
    environ = {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
    folder = record(tmp_path, new_plan(2, **SHARED), *experiments(0), fault(1), Finished(status="incomplete"))
    for _ in range(2):
        project(folder, environ=environ, detail="runs")
    project(folder, detail="runs")
    there, here = seen(folder, server.uri), seen(folder)

    assert_same(there, here)
    trace = there.trace("T/0")
    assert len(trace.data.spans) == 7
    assert scores(trace) == {"passed": True, "expected_response": "x"}
    mlflow = client(folder, server.uri)
    (dataset,) = mlflow.search_datasets([there.run.info.experiment_id])
    assert len(dataset.records) == 2
    assert [prompt.version for prompt in mlflow.search_prompt_versions("koderz.task")] == [1]
    files = {file.path for file in mlflow.list_artifacts(there.run.info.run_id)}
    assert files >= {"summary.json", "plan.json", "results.json", "prompts"}


def test_points_beyond_a_requests_limit_are_sent_in_several(server: MlflowServer, tmp_path: Path) -> None:
    from tests.tracker.builders import judged

    ended = [judged(n, n % 2 == 0, score=0.5, metrics={"bleu": 0.5}) for n in range(450)]  # three scores each
    folder = record(tmp_path, new_plan(450), *ended, Finished(status="complete"))
    project(
        folder,
        environ={"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_HTTP_REQUEST_TIMEOUT": "120"},
        detail="parent",
    )
    found = seen(folder, server.uri)
    history = client(folder, server.uri).get_metric_history(found.run.info.run_id, "passed/mean")

    assert len(history) == 450
    assert history[-1].value == pytest.approx(0.5)


def test_server_that_went_away_is_caught_up_with(tmp_path: Path) -> None:
    server = MlflowServer(tmp_path)
    server.start()
    environ = {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
    try:
        results = tmp_path / "results"
        folder = record(results, new_plan(2), *experiments(0))
        sink = open_sink(folder, environ)
        sink.take(lines(folder))
        server.kill()
        add(folder, Resumed(), *experiments(1), Finished(status="complete"))
        began = time.monotonic()
        with pytest.raises(SinkDown, match="doesn't answer"):
            _again(sink, folder)
        with pytest.raises(SinkDown, match="doesn't answer"):
            open_sink(folder, environ)
        assert time.monotonic() - began < PATIENCE  # tries of MLflow's own go on for much longer
        server.start()
        project(folder, environ=environ)
        found = seen(folder, server.uri)
    finally:
        server.kill()

    assert found.counts == (1, 0, 2)
    assert found.run.info.status == "FINISHED"


def test_postgresql_gets_what_a_file_gets(tmp_path: Path) -> None:
    with postgresql(tmp_path) as uri:
        folder = record(
            tmp_path / "results", new_plan(2, **SHARED), *experiments(0), fault(1), Finished(status="incomplete")
        )
        for _ in range(2):
            project(folder, environ={"MLFLOW_TRACKING_URI": uri}, detail="runs")
        project(folder, detail="runs")
        there, here = seen(folder, uri), seen(folder)

    assert_same(there, here)


def _again(sink: MlflowSink, folder: Path) -> None:
    sink.take([Finished(status="complete")])
    sink.take(lines(folder))


def assert_same(there: Seen, here: Seen) -> None:
    """Both have the run with its nested runs and its traces."""
    assert there.counts == (1, 2, 2)
    assert _told(there) == _told(here)


def _told(found: Seen) -> object:
    runs = [(run.info.run_name, run.info.status, run.data.metrics, run.data.params) for run in found.nested]
    return sorted(map(repr, runs)), [found.run.data.metrics, [scores(trace) for trace in found.traces]]
