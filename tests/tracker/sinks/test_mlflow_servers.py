"""A team's store: a tracking server over HTTP, also one that goes away, and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from koderz.errors import writable
from koderz_tracker.records import Finished, Record, Resumed
from koderz_tracker.sinks import SinkDown, SinkSlow
from koderz_tracker.sinks.mlflow.page import CLEANED
from koderz_tracker.sinks.mlflow.sink import MlflowSink
from tests.conftest import PATIENCE
from tests.tracker.builders import attempt, call, fault, judged
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
    with postgresql() as uri:
        folder = record(
            tmp_path / "results", new_plan(2, **SHARED), *experiments(0), fault(1), Finished(status="incomplete")
        )
        for _ in range(2):
            project(folder, environ={"MLFLOW_TRACKING_URI": uri}, detail="runs")
        project(folder, detail="runs")
        there, here = seen(folder, uri), seen(folder)

    assert_same(there, here)


NASTY = "a \0 b \ud83d c \u202e d \N{PILE OF POO} \\u0000"
LONG_NAME = "ä" * 150
TAGS = [f"tag {number}=value\0" for number in range(300)]


def nasty_run(results: Path) -> Path:
    """A run with texts that stores can't hold, long names, a reply of 10 MB and 300 tags."""
    solvers = [f"{LONG_NAME[1:]}\0", "iterative"]
    plan = new_plan(
        2,
        arms=solvers,
        config={"local_model": "m\0", "suite": "humaneval", "tags": TAGS, "note": NASTY[:5]},
        details={"prompts": {"task": "Do \0 ${what}."}, "expectations": {"T/0": {"expected_response": "x\0"}}},
    )
    records: list[Record] = []
    for solver in solvers:
        for number in range(2):
            reply = writable(NASTY) + ("x" * 10_000_000 if number and solver == solvers[0] else "")
            texts = {"program": reply, "feedback": "\0", "detail": "\0"}
            records += [
                call(number, 1, solver=solver, text="write \0", reply=reply, reasoning="\0"),
                attempt(number, 1, solver=solver, cause="assertion", artifacts={f"{LONG_NAME}.log": "\0"}, **texts),
                judged(number, False, solver=solver),
            ]
    records += [fault(1, solver=solvers[0], reason="gone \0"), Finished(status="incomplete")]
    return record(results, plan, *records)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "file", "postgresql alone"])
def test_nasty_texts_arrive_in_every_store(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    with ExitStack() as stack:
        environ = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
        if kind == "sqlite":
            environ["MLFLOW_TRACKING_URI"] = request.getfixturevalue("server").uri
        elif kind != "file":
            environ["MLFLOW_TRACKING_URI"] = stack.enter_context(postgresql())
        if kind == "postgresql":
            other = MlflowServer(tmp_path, environ["MLFLOW_TRACKING_URI"])
            stack.callback(other.kill)
            other.start()
            environ["MLFLOW_TRACKING_URI"] = other.uri
        folder = nasty_run(tmp_path / "results")
        for _ in range(2):
            sink = open_sink(folder, environ, "runs")
            take_patiently(sink, lines(folder))
            sink.close()
            assert sink.note == ""
        found = seen(folder, environ.get("MLFLOW_TRACKING_URI"))
        traces = [trace.to_dict() for trace in found.traces]
        children = [run for run in found.nested if run.data.tags["koderz.kind"] == "experiment"]

    assert (len(found.runs), len(children), len(traces)) == (1, 4, 4)
    assert found.run.data.tags["tag 299"] == "value\ufffd"
    for trace, tags in [(trace, trace.info.tags) for trace in found.traces]:
        assert tags["koderz.cleaned"] == CLEANED
        assert tags["solver"] in (f"{LONG_NAME[1:]}\ufffd", "iterative")
        assert "\0" not in str(trace.to_dict())
        assert len(trace.data.spans) in (4, 5)
    assert "a \ufffd b" in str(traces)
    assert "\\\\\\\\u0000" in str(traces)  # which was no character, but six
    assert all(run.data.tags["koderz.cleaned"] == CLEANED for run in [found.run, *children])


def take_patiently(sink: MlflowSink, records: list[Record]) -> None:
    """Hands on records again while the server is too busy, as the process does that feeds sinks."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            sink.take(records)
        except SinkSlow:
            assert time.monotonic() < deadline
            time.sleep(1)
        else:
            return


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
