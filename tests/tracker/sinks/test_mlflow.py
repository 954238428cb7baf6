"""A run in MLflow: what its pages say, and that nothing is there twice."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
import threading
from contextlib import closing
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koderz_tracker.basis import TIMES
from koderz_tracker.errors import KoderzError
from koderz_tracker.records import Finished, Headline, Measure, Record, Resumed
from koderz_tracker.runs import lock_run
from koderz_tracker.sinks import SinkDown
from koderz_tracker.sinks.feeder import Projection, start_again
from koderz_tracker.sinks.mlflow.page import milliseconds
from koderz_tracker.sinks.mlflow.sink import file_name
from koderz_tracker.sinks.mlflow.target import border, log_ahead, page_of, put_aside
from koderz_tracker.sinks.standing import standing_of
from tests.tracker.builders import attempt, call, experiment_id, fault, judged
from tests.tracker.sinks.mlflow_world import (
    SHARED,
    add,
    client,
    experiment,
    experiments,
    lines,
    new_plan,
    open_sink,
    project,
    record,
    scores,
    seen,
)

BOTH = ("zero-shot", "iterative")
BESIDE = ("cost", "tokens", "latency", "iterations")
"""Metrics that are no average of a score."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One results folder, so that the store is made once."""
    return tmp_path_factory.mktemp("results")


@pytest.mark.slow
def test_mlflow_run_has_a_trace_per_experiment(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0), fault(1), Finished(status="incomplete"))
    project(folder)
    found = seen(folder)

    assert found.counts == (1, 0, 2)
    assert found.run.info.run_name == f"m · zero-shot · {folder.name}"
    assert found.run.info.status == "FAILED"
    tags = {
        "mlflow.runType": "genai_evaluate",
        "benchmark_run_id": folder.name,
        "koderz.simulated": "false",
        "mlflow.source.git.commit": "c0ffee",
        "mlflow.source.type": "LOCAL",
    }
    assert found.run.data.tags.items() >= tags.items()
    mlflow = client(folder)
    place = mlflow.get_experiment_by_name("koderz/humaneval")
    assert place.tags["mlflow.experimentKind"] == "genai_development"
    of_run = mlflow.search_traces(locations=[place.experiment_id], run_id=found.run.info.run_id)
    assert {trace.info.trace_id for trace in of_run} == {trace.info.trace_id for trace in found.traces}


def test_detail_runs_adds_a_nested_run_an_experiment(results: Path) -> None:
    folder = record(
        results, new_plan(2), *experiments(0), fault(1, reason="server gone"), Finished(status="incomplete")
    )
    project(folder, detail="runs")
    found = seen(folder)

    assert found.counts == (1, 2, 2)
    good, bad = found.nested_run("T/0 · zero-shot"), found.nested_run("T/1 · zero-shot")
    assert (good.info.status, bad.info.status) == ("FINISHED", "FAILED")
    assert (bad.data.tags["koderz.fault"], bad.data.tags["koderz.cause"]) == ("server gone", "unreachable")
    tags = {
        "benchmark_run_id": folder.name,
        "koderz.experiment_id": experiment_id(0),
        "problem_id": "T/0",
        "mlflow.parentRunId": found.run.info.run_id,
    }
    assert good.data.tags.items() >= tags.items()
    assert "mlflow.runType" not in good.data.tags
    assert good.data.params.items() >= {"model": "m", "mode": "zero-shot", "seed": "7"}.items()
    assert good.data.metrics.items() >= {"passed": 1.0, "iterations": 2.0, "cost": 0.5, "tokens_in": 14.0}.items()
    assert {trace.info.trace_metadata["mlflow.sourceRun"] for trace in found.traces} == {found.run.info.run_id}


def test_times_are_the_journals_and_not_the_uploads(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0), Finished(status="complete"))
    project(folder, detail="runs")
    written, found = lines(folder), seen(folder)

    assert found.run.info.start_time == milliseconds(written[0].time)
    assert found.run.info.end_time == milliseconds(written[-1].time)
    assert found.nested[0].info.end_time == milliseconds(written[-2].time)
    assert found.traces[0].info.request_time == milliseconds(written[1].time)


def test_span_of_an_attempt_has_its_call_and_judging(results: Path) -> None:
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
    assert trace.info.response_preview == "def f(x): return x + 1"


def test_calls_of_a_recursion_are_spans_nested_by_depth(results: Path) -> None:
    made = [("root", 0, None), ("sub", 1, 1), ("child", 1, 1), ("sub", 2, 3), ("root", 0, None)]
    calls = [
        replace(call(0, number), purpose=purpose, depth=depth, parent=parent)
        for number, (purpose, depth, parent) in enumerate(made, 1)
    ]
    ended = judged(0, calls=len(calls), tokens_in=35, tokens_out=15)
    folder = record(results, new_plan(1), *calls, attempt(0, verdict="passed", call=5), ended)
    project(folder)
    (trace,) = seen(folder).traces

    spans = {span.span_id: span for span in trace.data.spans}
    assert [
        (span.name, spans[span.parent_id].name, span.attributes.get("koderz.depth", 0))
        for span in spans.values()
        if span.span_type == "CHAT_MODEL"
    ] == [
        ("m · root", "attempt 1", 0),
        ("m · sub", "m · root", 1),
        ("m · child", "m · root", 1),
        ("m · sub", "m · child", 2),
        ("m · root", "attempt 1", 0),
    ]


def test_assessments_are_scores_by_judge_and_version(results: Path) -> None:
    folder = record(
        results, new_plan(1, **SHARED), *experiment(0)[:-1], judged(0, iterations=2, score=0.75, metrics={"bleu": 0.5})
    )
    project(folder)
    found = seen(folder)
    (trace,) = found.traces

    assert scores(trace) == {"passed": True, "score": 0.75, "bleu": 0.5, "expected_response": "x"}
    sources = {(given.name, given.source.source_type, given.source.source_id) for given in trace.info.assessments}
    judge = ("CODE", "koderz humaneval judge 0.1.0")
    assert sources == {
        ("expected_response", "HUMAN", "humaneval"),
        *((name, *judge) for name in ("passed", "score", "bleu")),
    }
    runs = {given.metadata["mlflow.assessment.sourceRunId"] for given in trace.info.assessments}
    assert runs == {found.run.info.run_id}
    mlflow = client(folder)
    place = [found.run.info.experiment_id]
    query = f"feedback.passed = 'true' AND tags.benchmark_run_id = '{folder.name}'"
    assert len(mlflow.search_traces(locations=place, filter_string=query)) == 1


def test_assessment_explains_a_failed_answer(results: Path) -> None:
    story = experiment(0)[:2]
    folder = record(results, new_plan(1), *story, judged(0, False))
    project(folder)
    passed = next(found for found in seen(folder).traces[0].info.assessments if found.name == "passed")

    assert passed.feedback.value is False
    assert "assertion" in passed.rationale
    assert "f(1) should be 2" in passed.rationale


def test_fault_has_no_assessment_and_no_quality_measure(results: Path) -> None:
    folder = record(
        results, new_plan(2), *experiments(0), fault(1, reason="server gone"), Finished(status="incomplete")
    )
    project(folder)
    found = seen(folder)

    trace = found.trace("T/1")
    assert (trace.info.state, scores(trace)) == ("ERROR", {})
    assert trace.info.tags["koderz.outcome"] == "fault"
    assert trace.info.response_preview == "fault: server gone"
    assert means(found.run) == {"passed/mean": 1.0}
    assert trace.info.tags["koderz.cause"] == "unreachable"
    assert found.run.data.tags.items() >= {"koderz.problems": "1", "koderz.faults": "1"}.items()
    assert found.run.data.tags["koderz.fault_causes"] == "unreachable 1"


def test_traces_differ_by_their_request_alone(results: Path) -> None:
    """MLflow lays two runs side by side by the previews of their requests."""
    both = record(results, new_plan(1, arms=BOTH), *experiments(0), *experiments(0, solver="iterative"))
    one = record(results, new_plan(1), *experiments(0))
    for folder in (both, one):
        project(folder)

    assert seen(one).traces[0].info.request_preview == '{"problem_id":"T/0"}'  # its plan has no question
    assert [trace.info.request_preview for trace in seen(both).traces] == [
        '{"problem_id":"T/0"}'
    ] * 2  # one of each arm


def test_trace_shows_the_question_where_the_plan_has_it(results: Path) -> None:
    asked = {"details": {"questions": {"T/0": "Is it\0 so?"}}}
    folder = record(results, new_plan(1, arms=BOTH, **asked), judged(0), judged(0, solver="iterative"))
    twice = record(results, new_plan(1, samples=2, **asked), judged(0), judged(0, sample=1))
    for each in (folder, twice):
        project(each)

    assert [trace.info.request_preview for trace in seen(folder).traces] == ["T/0: Is it\ufffd so?"] * 2
    shown = {trace.info.request_preview for trace in seen(twice).traces}
    assert shown == {f"T/0 · sample {n}: Is it\ufffd so?" for n in range(2)}


def test_arm_has_figures_with_intervals_of_parts(results: Path) -> None:
    records = [judged(n, metrics={"speedup_base": 2.0}, facts={"status": "passed"}) for n in range(3)]
    folder = record(results, new_plan(3, parts=("perf",)), *records, Finished(status="complete"))
    project(folder)
    figures = file_of(seen(folder).run, "figures.json")["arms"]["zero-shot"]
    assert figures["tasks/speedup_base"] == pytest.approx(2.0)
    assert figures["tasks/opt_at_k/1"] == 1.0
    assert figures["tasks/passed_low"] < figures["tasks/passed_high"] == 1.0


def test_mlflow_run_has_curves_figures_table_and_files(results: Path) -> None:
    records = [judged(0, True, cost=0.25), judged(1, False, cost=0.75), judged(2, True, cost=0.5)]
    folder = record(results, new_plan(3), *records, Finished(status="complete"))
    (results / f"{folder.name}.html").write_text("<p>the report</p>")
    project(folder)
    run, mlflow = seen(folder).run, client(folder)

    history = mlflow.get_metric_history(run.info.run_id, "passed/mean")
    assert [(point.step, point.value) for point in history] == [(1, 1), (2, 0.5), (3, pytest.approx(2 / 3))]
    assert [*run.data.metrics] == ["passed/mean", *BESIDE]  # the order of the columns
    tags = {"koderz.cost": "1.5", "koderz.successes": "2", "koderz.pass_at_1": "0.6666666667"}
    assert run.data.tags.items() >= tags.items()
    files = {file.path for file in mlflow.list_artifacts(run.info.run_id)}
    assert files >= {"summary.json", "plan.json", "results.json", "report.html"}
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "results.json", "type": "table"}]
    table = file_of(run, "results.json")
    assert [row[0] for row in table["data"]] == [f"T/{n} · zero-shot" for n in range(3)]


def test_artifacts_of_attempts_are_files(results: Path) -> None:
    left = {"diff.patch": "+x\n", "logs/eval.log": "1 passed\n"}
    first, second = attempt(0, artifacts={"diff.patch": "-x\n"}), attempt(0, 2, verdict="passed", artifacts=left)
    folder = record(results, new_plan(1), first, second, judged(0, iterations=2), Finished(status="complete"))
    project(folder)
    place = Path(seen(folder).run.info.artifact_uri.removeprefix("file://")) / "experiments" / experiment_id(0)
    assert {path.name: path.read_text() for path in place.iterdir()} == {
        "diff.patch": "+x\n",
        "logs_eval.log": "1 passed\n",
    }


def file_of(run: Any, name: str) -> Any:
    """A JSON file among the artifacts of a run."""
    return json.loads((Path(run.info.artifact_uri.removeprefix("file://")) / name).read_bytes())


def test_arms_are_evaluation_runs_below_the_run(results: Path) -> None:
    plan = new_plan(2, arms=BOTH, **SHARED)
    ended: list[Record] = [
        judged(0, False),
        fault(1),
        judged(0, True, solver="iterative"),
        judged(1, False, solver="iterative"),
    ]
    folder = record(results, plan, *ended, Finished(status="incomplete"))
    project(folder)
    found = seen(folder)

    assert found.counts == (1, 2, 4)
    assert found.run.data.metrics == {}  # no average is over arms
    assert "mlflow.runType" not in found.run.data.tags
    assert found.run.data.tags["koderz.comparison.passed_difference"] == "1"
    arms = {run.data.tags["koderz.arm"]: run for run in found.nested}
    assert {name: means(run) for name, run in arms.items()} == {
        "zero-shot": {"passed/mean": 0.0},
        "iterative": {"passed/mean": 0.5},
    }
    for name, run in arms.items():
        tags = {"mlflow.runType": "genai_evaluate", "mlflow.parentRunId": found.run.info.run_id}
        assert run.data.tags.items() >= {**tags, "benchmark_run_id": folder.name, "koderz.kind": "arm"}.items()
        assert run.data.params.items() >= {"model": "m", "arm": name, "solver": name}.items()
        assert run.info.run_name == f"m · {name} · {folder.name}"
        assert [each.dataset.name for each in run.inputs.dataset_inputs] == ["humaneval-abababab"]
        assert {row[0].partition(" · ")[2] for row in file_of(run, "results.json")["data"]} == {name}
        mine = [trace for trace in found.traces if trace.info.tags["arm"] == name]
        assert {trace.info.trace_metadata["mlflow.sourceRun"] for trace in mine} == {run.info.run_id}
        assert {
            each.metadata["mlflow.assessment.sourceRunId"] for trace in mine for each in trace.info.assessments
        } == {run.info.run_id}
    faults = {name: run.data.tags["koderz.faults"] for name, run in arms.items()}
    assert faults == {"zero-shot": "1", "iterative": "0"}


def means(run: Any) -> dict[str, float]:
    """The metrics of a run that are averages of scores."""
    return {name: value for name, value in run.data.metrics.items() if name not in BESIDE}


def test_metrics_beside_scores_are_figures_of_the_arm(results: Path) -> None:
    ended: list[Record] = [judged(0, cost=0.25, iterations=3), judged(1, cost=0.75, iterations=1), fault(2)]
    folder = record(results, new_plan(3), *ended, Finished(status="incomplete"))
    project(folder)
    run = seen(folder).run

    assert {name: run.data.metrics[name] for name in BESIDE} == {
        "cost": 1.0,
        "tokens": 20.0,
        "latency": 0.5,
        "iterations": 2.0,
    }
    assert float(run.data.tags["koderz.cost"]) == 1.0  # where it stood before


def test_metrics_are_no_more_than_eight_if_scores_are_many(results: Path) -> None:
    measures = tuple(Measure(f"grade{n}", "higher", "share") for n in range(5))
    ended = judged(0, metrics={measure.name: 0.5 for measure in measures})
    folder = record(results, new_plan(1, measures=measures), ended, Finished(status="complete"))
    project(folder)

    assert [*seen(folder).run.data.metrics][-2:] == ["cost", "tokens"]
    assert len(seen(folder).run.data.metrics) == 8


def test_cost_of_unknown_price_is_no_metric(results: Path) -> None:
    folder = record(results, new_plan(1), judged(0, cost=0.0, cost_known=False), Finished(status="complete"))
    project(folder)

    assert "cost" not in seen(folder).run.data.metrics


def test_run_of_several_models_is_named_by_them(results: Path) -> None:
    plans = [
        new_plan(1, arms=BOTH, config={"local_model": "openai/a-1:7b", "suite": "humaneval"}),
        new_plan(1, config={"local_model": "", "suite": "humaneval"}),
    ]
    arms = [replace(plans[0].arms[0], name=f"zero-shot · p/{model}", models={"main": f"p/{model}"}) for model in "xyz"]
    plans.append(replace(new_plan(1), arms=arms))
    folders = [record(results, plan) for plan in plans]
    for folder in folders:
        project(folder)

    one, none, three = folders
    assert seen(one).run.info.run_name == f"a-1:7b · {plans[0].mode} · {one.name}"
    assert seen(none).run.info.run_name == f"zero-shot · {none.name}"
    assert seen(three).run.info.run_name == f"x, y and 1 more · zero-shot · {three.name}"
    assert {run.info.run_name for run in seen(three).nested} == {f"{m} · zero-shot · {three.name}" for m in "xyz"}


def test_metrics_that_average_are_scores_alone(results: Path) -> None:
    measures = (Measure("score", "higher", "share"), Measure("times", "higher", TIMES))
    metrics = [{"times": 2.0, "lines": 5.0}, {"times": 8.0, "lines": 7.0}]
    ended = [judged(n, True, score=0.5, metrics=own) for n, own in enumerate(metrics)]
    folder = record(results, new_plan(2, measures=measures), *ended, Finished(status="complete"))
    project(folder)
    found = seen(folder)

    assert means(found.run) == pytest.approx({"passed/mean": 1.0, "score/mean": 0.5, "times/geometric_mean": 4.0})
    assert scores(found.trace("T/1")) == {"passed": True, "score": 0.5, "times": 8.0}
    assert file_of(found.run, "figures.json")["arms"]["zero-shot"]["mean/lines"] == 6.0


def test_averages_follow_measures_without_rate_where_nothing_passes(results: Path) -> None:
    measures = (Measure("ms", "lower", average="median"), Measure("rate", "higher"))
    ended = [judged(n, metrics={"ms": ms, "rate": ms, "other": ms}) for n, ms in enumerate((1.0, 2.0, 9.0))]
    plan = new_plan(3, measures=measures, headline=Headline("ms", passed=""))
    folder = record(results, plan, *ended, Finished(status="complete"))
    project(folder)

    assert means(seen(folder).run) == {"ms/median": 2.0, "rate/mean": 4.0}


@pytest.mark.slow
def test_nested_runs_of_experiments_are_below_the_runs_of_their_arms(results: Path) -> None:
    folder = record(results, new_plan(1, arms=BOTH), judged(0), judged(0, solver="iterative"))
    for _ in range(2):
        project(folder, detail="runs")
        for path in folder.glob("mlflow_outbox*"):
            path.unlink()
    found = seen(folder)

    assert found.counts == (1, 4, 2)
    arms = {
        run.info.run_id: run.data.tags["koderz.arm"] for run in found.nested if run.data.tags["koderz.kind"] == "arm"
    }
    experiments = [run.data.tags for run in found.nested if run.data.tags["koderz.kind"] == "experiment"]
    assert {arms[tags["mlflow.parentRunId"]] for tags in experiments} == {*BOTH}
    assert all(arms[tags["mlflow.parentRunId"]] == tags["koderz.arm"] for tags in experiments)


@pytest.mark.slow
def test_arm_run_deleted_in_mlflow_comes_back(results: Path) -> None:
    folder = record(results, new_plan(1, arms=BOTH), *experiments(0), *experiments(0, solver="iterative"))
    project(folder)
    before = seen(folder).facts()
    client(folder).delete_run(seen(folder).nested[0].info.run_id)
    project(folder, [])

    assert seen(folder).facts() == before


@pytest.mark.slow
def test_mlflow_run_of_an_earlier_version_is_rebuilt_without_doubles(results: Path) -> None:
    """It was one evaluation run for all arms, with all figures as metrics, and attempts as assessments."""
    folder = record(results, new_plan(1, arms=BOTH), *experiments(0), *experiments(0, solver="iterative"))
    project(folder)
    good, mlflow = seen(folder), client(folder)
    for run in good.nested:
        mlflow.delete_run(run.info.run_id)
    old = good.run.info.run_id
    mlflow.delete_tag(old, "koderz.layout")
    mlflow.log_metric(old, "passed/iterative", 1.0)
    from mlflow.entities import AssessmentSource, Feedback
    from mlflow.tracing.client import TracingClient

    for trace in good.traces:
        info = trace.info
        told = Feedback("iterations", 2, source=AssessmentSource("CODE", "koderz"), trace_id=info.trace_id)
        told.assessment_id = f"a-{blake2b(f'{info.trace_id}/iterations'.encode(), digest_size=16).hexdigest()}"
        earlier = dataclasses.replace(info, assessments=[*info.assessments, told])
        TracingClient(f"sqlite:///{results.resolve() / 'mlflow.db'}").start_trace(earlier)
    assert all("iterations" in scores(trace) for trace in seen(folder).traces)
    for lost in (False, True):
        if lost:
            for path in folder.glob("mlflow_outbox*"):
                path.unlink()
        project(folder)

        assert seen(folder).facts() == good.facts()
        assert mlflow.get_run(old).info.lifecycle_stage == "deleted"


def test_tags_of_a_run_are_tags_there(results: Path) -> None:
    tags = ["team=blue", "nightly", "a//b:c=d=e", "mlflow.runType=other"]
    folder = record(results, new_plan(1, config={"local_model": "m", "suite": "humaneval", "tags": tags}))
    project(folder)

    told = {"team": "blue", "nightly": "true", "a/b:c": "d=e", "mlflow.runType": "genai_evaluate"}
    assert seen(folder).run.data.tags.items() >= told.items()


@pytest.mark.slow
def test_dataset_of_a_suite_is_shared_and_grows(tmp_path: Path) -> None:
    folders = [record(tmp_path, new_plan(tasks, **SHARED), *experiments(0)) for tasks in (1, 3, 3)]
    for folder in [*folders, *folders]:
        project(folder)
    mlflow, run = client(folders[0]), seen(folders[0]).run
    (dataset,) = mlflow.search_datasets([run.info.experiment_id])

    assert dataset.name == "humaneval-abababab"
    asked = {found.inputs["problem_id"]: found.expectations for found in dataset.records}
    assert asked == {"T/0": {"expected_response": "x"}, "T/1": {}, "T/2": {}}
    for folder in folders:
        (given,) = seen(folder).run.inputs.dataset_inputs
        assert (given.dataset.name, given.dataset.digest) == (dataset.name, ("ab" * 32)[:36])
        assert json.loads(given.dataset.source) == {"dataset_id": dataset.dataset_id}


@pytest.mark.slow
def test_prompts_of_a_run_are_registered_once_a_text(tmp_path: Path) -> None:
    texts = ("Do ${what} for $$5.", "Do ${what}, please.", "Do ${what} for $$5.")
    folders = [record(tmp_path, new_plan(1, details={"prompts": {"task": text}})) for text in texts]
    for folder in folders * 2:
        project(folder)
        (folder / "mlflow_outbox.db").unlink()
    mlflow = client(folders[0])

    versions = {prompt.version: prompt.template for prompt in mlflow.search_prompt_versions("koderz.task")}
    assert versions == {1: "Do {{what}} for $5.", 2: "Do {{what}}, please."}
    linked = [json.loads(seen(folder).run.data.tags["mlflow.linkedPrompts"]) for folder in folders]
    assert linked == [[{"name": "koderz.task", "version": version}] for version in ("1", "2", "1")]
    place = seen(folders[0]).run.info.experiment_id
    assert [prompt.name for prompt in mlflow.search_prompts(f'experiment_id = "{place}"')] == ["koderz.task"]


def test_fault_retried_with_success_becomes_finished(results: Path) -> None:
    folder = record(results, new_plan(1), fault(0), Finished(status="incomplete"))
    project(folder, detail="runs")
    add(folder, Resumed(how="retry"), *experiments(0), Finished(status="complete"))
    project(folder, detail="runs")
    found = seen(folder)

    assert found.counts == (1, 1, 1)
    assert (found.run.info.status, found.nested[0].info.status) == ("FINISHED", "FINISHED")
    assert found.nested[0].data.tags["koderz.outcome"] == "passed"
    assert found.nested[0].data.tags.keys().isdisjoint({"koderz.fault", "koderz.cause"})
    (trace,) = found.traces
    assert (trace.info.state, trace.info.tags["koderz.outcome"]) == ("OK", "passed")
    assert scores(trace) == {"passed": True}
    assert trace.info.tags["koderz.iterations"] == "2"


def test_verdict_that_becomes_a_fault_is_withdrawn(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0), Finished(status="complete"))
    project(folder)
    add(folder, Resumed(how="rescore"), fault(0), Finished(status="incomplete"))
    for _ in range(2):
        project(folder)
    (trace,) = seen(folder).traces

    assert (trace.info.state, scores(trace)) == ("ERROR", {})


def test_detail_raised_later_adds_what_was_left_out(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0, 1), Finished(status="complete"))
    counts = []
    for detail in ("parent", "traces", "runs", "full", "traces", "parent"):
        project(folder, [], detail=detail)
        counts.append(seen(folder).counts)

    assert counts == [(1, 0, 0), (1, 0, 2), *[(1, 2, 2)] * 4]


@pytest.mark.slow
def test_traces_are_written_many_at_a_time(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracing.client import TracingClient

    written = []
    real = TracingClient.log_spans

    def counted(self: TracingClient, place: str, spans: list[Any]) -> object:
        written.append(len(spans))
        return real(self, place, spans)

    monkeypatch.setattr(TracingClient, "log_spans", counted)
    folder = record(results, new_plan(70), *experiments(*range(70)), Finished(status="complete"))
    project(folder)

    assert written == [64 * 7, 6 * 7]
    assert seen(folder).counts == (1, 0, 70)


@pytest.mark.slow
def test_store_of_the_folder_syncs_once_a_batch(tmp_path: Path) -> None:
    folder = record(tmp_path, new_plan(1), *experiments(0), Finished(status="complete"))
    project(folder)

    shutil.copy(tmp_path / "mlflow.db", tmp_path / "copy.db")  # without its log
    for name in ("mlflow.db", "copy.db"):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert database.execute("SELECT count(*) FROM trace_info").fetchone() == (1,)


def test_store_is_put_aside_with_its_log(tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    log_ahead(store)
    with closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE kept (value)")
        database.commit()
        put_aside(store)

    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("mlflow.db.")]
    (old,) = tmp_path.glob("*.old")
    with closing(sqlite3.connect(old)) as database:
        assert database.execute("SELECT count(*) FROM kept").fetchone() == (0,)


@pytest.mark.slow
def test_outbox_that_is_lost_is_rebuilt_from_mlflow(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0, 1), Finished(status="complete"))
    project(folder, detail="runs")
    before = seen(folder).facts()
    for path in folder.glob("mlflow_outbox*"):
        path.unlink()
    project(folder, detail="runs")

    assert seen(folder).facts() == before


def test_mlflow_run_that_was_deleted_comes_back_whole(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0), Finished(status="complete"))
    project(folder, detail="runs")
    client(folder).delete_run(seen(folder).run.info.run_id)
    project(folder, [])
    found = seen(folder)

    assert found.run.info.status == "FINISHED"
    (trace,) = found.traces
    assert trace.info.trace_metadata["mlflow.sourceRun"] == found.run.info.run_id
    assert {given.metadata["mlflow.assessment.sourceRunId"] for given in trace.info.assessments} == {
        found.run.info.run_id
    }


def test_killed_run_is_shown_as_killed(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0))
    project(folder)

    assert seen(folder).run.info.status == "KILLED"


def test_killed_run_is_shown_as_killed_after_a_complete_sync(results: Path) -> None:
    folder = record(results, new_plan(2), *experiments(0))
    sink = open_sink(folder)
    with lock_run(folder):
        sink.take(lines(folder))
        assert seen(folder).run.info.status == "RUNNING"
    sink.close()

    assert seen(folder).run.info.status == "KILLED"


def test_single_experiment_is_a_run_with_one_trace(results: Path) -> None:
    folder = record(results, replace(new_plan(1), run_id=None), *experiments(0))
    for _ in range(2):
        project(folder)
        (folder / "mlflow_outbox.db").unlink()
    mlflow = client(folder)
    place = mlflow.get_experiment_by_name("koderz/humaneval").experiment_id
    query = f"tags.`koderz.experiment_id` = '{folder.name}' AND tags.`koderz.kind` = 'run'"
    (run,) = mlflow.search_runs([place], query)

    assert run.data.metrics == {"passed/mean": 1.0, "cost": 0.5, "tokens": 20.0, "latency": 0.5, "iterations": 2.0}
    assert len(mlflow.search_traces(locations=[place], run_id=run.info.run_id)) == 1


def test_page_of_a_run_is_known_without_a_request(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    assert page_of(folder, "results koderz/humaneval") is None
    project(folder)
    info = seen(folder).run.info

    assert page_of(folder, "results koderz/humaneval") == f"#/experiments/{info.experiment_id}/runs/{info.run_id}"


def test_mlflow_sink_prints_nothing(results: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    project(folder)

    assert capfd.readouterr() == ("", "")


def test_file_store_is_refused_with_advice(results: Path) -> None:
    folder = record(results, new_plan(1))
    for uri in ("./mlruns", "file:///tmp/mlruns"):
        with pytest.raises(KoderzError, match="sqlite:///"):
            open_sink(folder, {"MLFLOW_TRACKING_URI": uri})


def test_server_that_is_unreachable_is_a_sink_that_is_down(results: Path) -> None:
    folder = record(results, new_plan(1))
    with pytest.raises(SinkDown, match="doesn't answer"):
        open_sink(folder, {"MLFLOW_TRACKING_URI": "http://user:secret@127.0.0.1:9"})
    with pytest.raises(SinkDown) as caught:
        open_sink(folder, {"MLFLOW_TRACKING_URI": "postgresql+psycopg2://user:secret@127.0.0.1:9/db"})
    assert "secret" not in str(caught.value)
    with pytest.raises(SinkDown, match="nosuchdriver"):
        open_sink(folder, {"MLFLOW_TRACKING_URI": "postgresql+nosuchdriver://127.0.0.1:9/db"})


def test_experiment_name_can_be_set(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    project(folder, environ={"MLFLOW_EXPERIMENT_NAME": "team/ours"})
    project(folder, environ={"MLFLOW_EXPERIMENT_NAME": "team/ours"}, experiment="mine")

    assert len(seen(folder, experiment="team/ours").traces) == 1
    assert len(seen(folder, experiment="mine").traces) == 1


def test_trace_that_is_refused_is_passed_over_and_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracing.client import TracingClient

    accepted = TracingClient.start_trace

    def start_trace(self: Any, info: Any) -> Any:
        if info.tags["problem_id"] == "T/1":
            raise MlflowException("API request to endpoint … failed with error code 500 != 200")
        return accepted(self, info)

    monkeypatch.setattr(TracingClient, "start_trace", start_trace)
    folder = record(results, new_plan(3), *experiments(0, 1, 2), Finished(status="complete"))
    with Projection(folder, "mlflow", {}, {}) as projection:
        projection.catch_up()
    standing = standing_of(folder)["mlflow"]
    found = seen(folder)

    assert standing.state == "up to date"
    assert standing.reason.startswith("without 1 trace that MLflow refuses: T/1 · zero-shot (API request to endpoint")
    assert (found.counts, found.run.info.status) == ((1, 0, 2), "FINISHED")

    monkeypatch.undo()
    start_again(folder, "mlflow")  # as sync --rebuild does
    with Projection(folder, "mlflow", {}, {}) as projection:
        projection.catch_up()
    assert (seen(folder).counts, str(standing_of(folder)["mlflow"])) == ((1, 0, 3), "up to date")


def test_spans_that_are_refused_cost_no_other_trace(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracing.client import TracingClient

    accepted = TracingClient.log_spans

    def log_spans(self: Any, place: str, spans: list[Any]) -> Any:
        if any("T/1" in span.name for span in spans):
            raise MlflowException("INVALID_PARAMETER_VALUE: a span is too large")
        return accepted(self, place, spans)

    monkeypatch.setattr(TracingClient, "log_spans", log_spans)
    folder = record(results, new_plan(3), *experiments(0, 1, 2))
    sink = open_sink(folder)
    sink.take(lines(folder))
    sink.close()

    assert "T/1 · zero-shot (INVALID_PARAMETER_VALUE" in sink.note
    assert [len(trace.data.spans) for trace in seen(folder).traces] == [7, 7]


def test_prompts_of_another_user_are_left_alone(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def refuse(*_: Any, **__: Any) -> Any:
        raise MlflowException("API request to endpoint … failed with error code 403 != 200")

    monkeypatch.setattr(MlflowClient, "register_prompt", refuse)
    plan = new_plan(1, details={"prompts": {"of-another-user": "Do ${what}."}})  # which no other test has registered
    folder = record(results, plan, *experiments(0))
    sink = open_sink(folder)
    sink.take(lines(folder))
    sink.close()

    assert sink.note.startswith("not linked with prompts or dataset of another user's")
    assert len(seen(folder).traces) == 1


class Forbidding(BaseHTTPRequestHandler):
    """A tracking server that knows the user, who may do nothing there."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"Permission denied")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


def test_missing_permission_is_named_with_its_experiment(results: Path) -> None:
    folder = record(results, new_plan(1), *experiments(0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(SinkDown, match=r"EDIT on the experiment theirs is missing.*--mlflow-experiment"):
            project(folder, environ={"MLFLOW_TRACKING_URI": uri}, experiment="theirs")
        server.shutdown()


@pytest.mark.parametrize("name", ["ä" * 150, "a/b\0", "..", "", "x" * 400, "\ud83d"])
def test_artifacts_have_names_that_files_can_have(name: str, tmp_path: Path) -> None:
    found = file_name(name)
    (tmp_path / f"{found}.md").write_text("there")
    assert len(found.encode()) < 200
    assert "/" not in found
    assert found.strip(".")
    assert file_name(name + "y") != found
    assert file_name("iterative-attempt") == "iterative-attempt"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("HTTPConnectionPool(host='127.0.0.1', port=40391): Connection refused", "doesn't answer"),
        ("HTTPConnectionPool(host='127.0.0.1', port=40391): Max retries exceeded", "doesn't answer"),
        ("Max retries exceeded (Caused by ResponseError('too many 500 error responses'))", "answers with an error"),
        ("API request failed with error code 403 != 200", "permission EDIT on the experiment team/ours is missing"),
        ("PERMISSION_DENIED: no", "another|--mlflow-experiment"),
        ("API request failed with error code 401 != 200", "refuses the credentials"),
        ("401 Client Error: UNAUTHORIZED", "refuses the credentials"),
    ],
)
def test_credentials_are_blamed_by_status_code_not_by_port(said: str, told: str) -> None:
    with pytest.raises(SinkDown, match=told), border("http://127.0.0.1:40391", "team/ours"):
        raise OSError(said)
