"""A run in MLflow: what its pages say, and that nothing is there twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.tracker.builders import experiment_id, fault, judged
from tests.tracker.sinks.mlflow_world import (
    add,
    client,
    experiment,
    experiments,
    lines,
    new_plan,
    open_sink,
    project,
    record,
    seen,
)
from tracker.errors import KoderzError
from tracker.records import Finished, Resumed
from tracker.sinks import SinkDown
from tracker.sinks.mlflow.outbox import page_of
from tracker.sinks.mlflow.page import milliseconds
from tracker.sinks.mlflow.target import border

BOTH = ("zero-shot", "iterative")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One results folder, so that the store is made once."""
    return tmp_path_factory.mktemp("results")


def test_a_run_is_a_parent_with_a_nested_run_and_a_trace_an_experiment(results: Path) -> None:
    plan = new_plan(2)
    folder = record(results, plan, *experiments(0), fault(1, reason="server gone"), Finished(status="incomplete"))
    project(folder)
    found = seen(folder)

    assert found.parent.info.run_name == folder.name
    assert found.parent.info.status == "FAILED"
    assert {child.info.run_name for child in found.children} == {"T/0 · zero-shot", "T/1 · zero-shot"}
    good, bad = found.child("T/0 · zero-shot"), found.child("T/1 · zero-shot")
    assert good.info.status == "FINISHED"
    assert bad.info.status == "FAILED"
    assert bad.data.tags["koderz.fault"] == "server gone"
    assert (
        good.data.tags.items()
        >= {
            "benchmark_run_id": folder.name,
            "koderz.experiment_id": experiment_id(0),
            "problem_id": "T/0",
            "koderz.simulated": "false",
            "mlflow.source.git.commit": "c0ffee",
            "mlflow.source.type": "LOCAL",
            "mlflow.parentRunId": found.parent.info.run_id,
        }.items()
    )
    assert good.data.params.items() >= {"model": "m", "mode": "zero-shot", "seed": "7"}.items()
    assert good.data.metrics.items() >= {"success": 1.0, "iterations": 2.0, "cost": 0.5, "tokens_in": 14.0}.items()
    assert len(found.traces) == 2


def test_times_are_the_journals_and_not_the_uploads(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0), Finished(status="complete"))
    project(folder)
    written, found = lines(folder), seen(folder)

    assert found.parent.info.start_time == milliseconds(written[0].time)
    assert found.parent.info.end_time == milliseconds(written[-1].time)
    assert found.children[0].info.end_time == milliseconds(written[-2].time)
    assert found.traces[0].info.request_time == milliseconds(written[1].time)


def test_an_attempt_is_a_span_with_its_call_and_its_judging_and_the_verdict_is_an_assessment(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    project(folder)
    found = seen(folder)
    (trace,) = found.traces
    spans = {span.span_id: span for span in trace.data.spans}
    tree = [(span.name, spans[span.parent_id].name if span.parent_id else None) for span in spans.values()]

    assert sorted(tree, key=str) == sorted(
        [("T/0 · zero-shot", None)]
        + [(f"attempt {n}", "T/0 · zero-shot") for n in (1, 2)]
        + [(name, f"attempt {n}") for n in (1, 2) for name in ("m", "judge")],
        key=str,
    )
    call = next(span for span in spans.values() if span.span_type == "CHAT_MODEL")
    assert call.inputs["messages"] == [{"role": "user", "content": "write f"}]
    assert call.outputs["choices"][0]["message"] == {"role": "assistant", "content": "reply 1"}
    assert trace.info.token_usage == {"input_tokens": 14, "output_tokens": 6, "total_tokens": 20}
    assert trace.info.trace_metadata["mlflow.sourceRun"] == found.children[0].info.run_id
    (assessment,) = trace.info.assessments
    assert (assessment.name, assessment.feedback.value, assessment.source.source_type) == ("passed", True, "CODE")


def test_an_assessment_says_why_an_answer_did_not_pass(results: Path) -> None:
    story = experiment(0)[:2]
    folder = record(results, new_plan(1), *story, judged(0, False))
    project(folder)
    (assessment,) = seen(folder).traces[0].info.assessments

    assert assessment.feedback.value is False
    assert "assertion" in assessment.rationale
    assert "f(1) should be 2" in assessment.rationale


def test_the_parent_has_curves_figures_dataset_table_and_files(results: Path) -> None:
    records = [judged(0, True, cost=0.25), judged(1, False, cost=0.75), judged(2, True, cost=0.5)]
    folder = record(results, new_plan(3), *records, Finished(status="complete"))
    (results / f"{folder.name}.html").write_text("<p>the report</p>")
    project(folder)
    found, mlflow = seen(folder), client(folder)
    parent = found.parent

    history = mlflow.get_metric_history(parent.info.run_id, "success_rate")
    assert [(point.step, round(point.value, 1)) for point in history] == [(1, 100.0), (2, 50.0), (3, 66.7)]
    assert (
        parent.data.metrics.items() >= {"total_cost": 1.5, "summary/successes": 2.0, "summary/pass_at_1": 2 / 3}.items()
    )
    (dataset,) = parent.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("humaneval", ("ab" * 32)[:36])
    files = {file.path for file in mlflow.list_artifacts(parent.info.run_id)}
    assert files >= {"summary.json", "plan.json", "results.json", "report.html"}
    assert json.loads(parent.data.tags["mlflow.loggedArtifacts"]) == [{"path": "results.json", "type": "table"}]
    table = json.loads((Path(parent.info.artifact_uri.removeprefix("file://")) / "results.json").read_bytes())
    assert [row[0] for row in table["data"]] == [f"T/{n} · zero-shot" for n in range(3)]


def test_both_arms_of_a_comparative_run_have_curves_of_their_own(results: Path) -> None:
    plan = new_plan(1, solvers=BOTH)
    folder = record(results, plan, judged(0, False), judged(0, True, solver="iterative"), Finished(status="complete"))
    project(folder)
    metrics = seen(folder).parent.data.metrics

    assert (metrics["zero-shot/success_rate"], metrics["iterative/success_rate"]) == (0.0, 100.0)
    assert metrics["comparison/success_rate_improvement"] == 100.0


def test_every_prefix_replayed_twice_leaves_the_same(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0), fault(1), Finished(status="incomplete"))
    project(folder)
    before, written = seen(folder).facts(), lines(folder)
    for end in (0, 1, 4, 6, len(written)):
        for _ in range(2):
            project(folder, written[:end])

    assert seen(folder).facts() == before


def test_a_fault_that_is_retried_and_succeeds_becomes_finished(results: Path) -> None:
    folder = record(results, new_plan(1), fault(0), Finished(status="incomplete"))
    project(folder)
    add(folder, Resumed(how="retry"), *experiments(0), Finished(status="complete"))
    project(folder)
    found = seen(folder)

    assert (found.parent.info.status, found.children[0].info.status) == ("FINISHED", "FINISHED")
    assert found.children[0].data.tags["koderz.outcome"] == "passed"
    assert "koderz.fault" not in found.children[0].data.tags
    assert len(found.children) == len(found.traces) == 1
    (assessment,) = found.traces[0].info.assessments
    assert assessment.feedback.value is True
    assert found.traces[0].info.state == "OK"


def test_more_detail_adds_what_was_left_out(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0, 1), Finished(status="complete"))
    counts = []
    for detail in ("parent", "runs", "full", "full", "parent"):
        project(folder, [], detail=detail)
        found = seen(folder)
        counts.append((len(found.parents), len(found.children), len(found.traces)))

    assert counts == [(1, 0, 0), (1, 2, 0), (1, 2, 2), (1, 2, 2), (1, 2, 2)]


def test_a_lost_outbox_is_made_anew_from_what_mlflow_has(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0, 1), Finished(status="complete"))
    project(folder)
    before = seen(folder).facts()
    for path in folder.glob("mlflow_outbox*"):
        path.unlink()
    project(folder)

    assert seen(folder).facts() == before


def test_a_run_that_was_deleted_in_mlflow_comes_back_whole(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0), Finished(status="complete"))
    project(folder)
    client(folder).delete_run(seen(folder).parent.info.run_id)
    project(folder, [])
    found = seen(folder)

    assert found.parent.info.status == "FINISHED"
    assert sum(child.data.tags["mlflow.parentRunId"] == found.parent.info.run_id for child in found.children) == 1


def test_a_run_that_was_killed_is_shown_so(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0))
    project(folder)

    assert seen(folder).parent.info.status == "KILLED"


def test_a_single_experiment_is_a_run_without_a_parent(results: Path) -> None:
    folder = record(results, replace(new_plan(1), run_id=None), *experiments(0))
    for _ in range(2):
        project(folder)
    mlflow = client(folder)
    place = mlflow.get_experiment_by_name("koderz/humaneval").experiment_id
    runs = mlflow.search_runs([place], f"tags.`koderz.experiment_id` = '{experiment_id(0)}'", max_results=500)
    (alone,) = [run for run in runs if "benchmark_run_id" not in run.data.tags]

    assert "mlflow.parentRunId" not in alone.data.tags
    assert alone.data.metrics["success"] == 1.0


def test_the_page_of_a_run_is_known_without_asking_mlflow(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    assert page_of(folder, "results koderz/humaneval") is None
    project(folder)
    info = seen(folder).parent.info

    assert page_of(folder, "results koderz/humaneval") == f"#/experiments/{info.experiment_id}/runs/{info.run_id}"


def test_nothing_is_printed(results: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    project(folder)

    assert capfd.readouterr() == ("", "")


def test_a_folder_of_files_is_refused_with_what_to_do(results: Path) -> None:
    folder = record(results, new_plan(1))
    for uri in ("./mlruns", "file:///tmp/mlruns"):
        with pytest.raises(KoderzError, match="sqlite:///"):
            open_sink(folder, {"MLFLOW_TRACKING_URI": uri})


def test_a_server_that_is_not_there_is_a_sink_that_is_down(results: Path) -> None:
    folder = record(results, new_plan(1))
    with pytest.raises(SinkDown, match="doesn't answer"):
        open_sink(folder, {"MLFLOW_TRACKING_URI": "http://user:secret@127.0.0.1:9"})
    with pytest.raises(SinkDown) as caught:
        open_sink(folder, {"MLFLOW_TRACKING_URI": "postgresql+psycopg2://user:secret@127.0.0.1:9/db"})
    assert "secret" not in str(caught.value)
    with pytest.raises(SinkDown, match="nosuchdriver"):
        open_sink(folder, {"MLFLOW_TRACKING_URI": "postgresql+nosuchdriver://127.0.0.1:9/db"})


def test_the_experiment_may_be_named(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    project(folder, environ={"MLFLOW_EXPERIMENT_NAME": "team/ours"})

    assert len(seen(folder, experiment="team/ours").children) == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("HTTPConnectionPool(host='127.0.0.1', port=40391): Connection refused", "doesn't answer"),
        ("API request failed with error code 403 != 200", "refuses the credentials"),
        ("401 Client Error: UNAUTHORIZED", "refuses the credentials"),
    ],
)
def test_credentials_are_blamed_for_the_answers_code_and_not_for_a_port_that_holds_it(said: str, told: str) -> None:
    with pytest.raises(SinkDown, match=told), border("http://127.0.0.1:40391"):
        raise OSError(said)
