"""A team's store: a tracking server over HTTP, also one that goes away, and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracker.builders import fault
from tests.tracker.sinks.mlflow_world import add, client, experiments, lines, new_plan, open_sink, project, record, seen
from tests.tracker.sinks.servers import MlflowServer, postgresql
from tracker.records import Finished, Resumed
from tracker.sinks import SinkDown
from tracker.sinks.mlflow import MlflowSink

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def test_a_server_gets_what_a_file_gets(server: MlflowServer, tmp_path: Path) -> None:
    environ = {"MLFLOW_TRACKING_URI": server.uri}
    folder = record(tmp_path, new_plan(2), *experiments(0), fault(1), Finished(status="incomplete"))
    for _ in range(2):
        project(folder, environ=environ)
    project(folder)
    there, here = seen(folder, server.uri), seen(folder)

    assert there.facts() == here.facts() or _names(there) == _names(here)
    assert (len(there.parents), len(there.children), len(there.traces)) == (1, 2, 2)
    (trace,) = [trace for trace in there.traces if trace.info.state == "OK"]
    assert len(trace.data.spans) == 7
    assert [found.feedback.value for found in trace.info.assessments] == [True]
    files = {file.path for file in client(folder, server.uri).list_artifacts(there.parent.info.run_id)}
    assert files >= {"summary.json", "plan.json", "results.json", "prompts"}


def test_more_points_than_a_request_takes_are_sent_in_several(server: MlflowServer, tmp_path: Path) -> None:
    from tests.tracker.builders import judged

    folder = record(tmp_path, new_plan(450), *[judged(n, n % 2 == 0) for n in range(450)], Finished(status="complete"))
    project(folder, environ={"MLFLOW_TRACKING_URI": server.uri}, detail="parent")
    found = seen(folder, server.uri)
    history = client(folder, server.uri).get_metric_history(found.parent.info.run_id, "success_rate")

    assert len(history) == 450
    assert history[-1].value == pytest.approx(50.0)


def test_a_server_that_goes_away_is_made_up_for_once_it_is_back(tmp_path: Path) -> None:
    server = MlflowServer(tmp_path)
    server.start()
    environ = {"MLFLOW_TRACKING_URI": server.uri}
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
        assert time.monotonic() - began < 30
        server.start()
        project(folder, environ=environ)
        found = seen(folder, server.uri)
    finally:
        server.kill()

    assert (len(found.parents), len(found.children), len(found.traces)) == (1, 2, 2)
    assert found.parent.info.status == "FINISHED"


def test_postgresql_gets_what_a_file_gets(tmp_path: Path) -> None:
    with postgresql(tmp_path) as uri:
        folder = record(tmp_path / "results", new_plan(2), *experiments(0), fault(1), Finished(status="incomplete"))
        for _ in range(2):
            project(folder, environ={"MLFLOW_TRACKING_URI": uri})
        project(folder)
        there, here = seen(folder, uri), seen(folder)

    assert _names(there) == _names(here)
    assert (len(there.parents), len(there.children), len(there.traces)) == (1, 2, 2)


def _again(sink: MlflowSink, folder: Path) -> None:
    sink.take([Finished(status="complete")])
    sink.take(lines(folder))


def _names(found: object) -> object:
    from tests.tracker.sinks.mlflow_world import Seen

    assert isinstance(found, Seen)
    runs = [(run.info.run_name, run.info.status, run.data.metrics, run.data.params) for run in found.children]
    return sorted(map(repr, runs))
