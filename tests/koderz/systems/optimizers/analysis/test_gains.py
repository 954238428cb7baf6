"""Whether an optimizer helps is said as surely as its test items allow, and no more surely."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from koderz.analysis.blocks import Table, Text
from koderz.analysis.runs import load_run
from koderz.analysis.sections import Curves, SideBySide, sections_of
from koderz.analysis.statistics import score_test
from koderz.errors import KoderzError
from koderz.systems.optimizers.analysis import report as optimizer_report
from koderz.systems.optimizers.analysis.gains import GainRow, gain_of, rows_of, searches_of
from koderz.systems.optimizers.analysis.part import OPTIMIZE
from koderz.systems.optimizers.analysis.report import compare_optimizers, section_of
from koderz.systems.optimizers.analysis.trials import Trial
from koderz.systems.reports.page import write_report
from koderz.testing import a_journal, a_model
from koderz_tracker.journal import NAME
from koderz_tracker.memory import Memory
from koderz_tracker.memory.store import Filter, Store
from koderz_tracker.records import Once, Plan, encode
from koderz_tracker.runs import read_plan
from koderz_tracker.sinks import Source
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.sinks.memory import MemorySink
from koderz_tracker.stories import Stories
from tests.koderz.systems.optimizers.solvers.worlds import World, gain, searched
from tests.koderz.world import Run
from tests.tracker.sinks.mlflow_world import client, project, seen

pytestmark = pytest.mark.slow

BUDGET = 300  # metric calls of a search, unless a test says otherwise


def helped(folder: Path) -> Run:
    """A run in a world in which rules help: the rules' writer finds them, and examples are of no use."""
    optimizers = ("none", "few_shot", "meta_prompt", "random_search")
    return searched(folder, World("rule", 1), *optimizers, seeds=5, budget_calls=250)


def short(folder: Path) -> Run:
    """A run in that world, with fewer optimizers and seeds."""
    return searched(folder, World("rule", 1), "none", "meta_prompt", "random_search", seeds=2, budget_calls=BUDGET)


def rows(run: Run, **changes: Any) -> dict[str, GainRow]:
    plan = run.lines[0]
    assert isinstance(plan, Plan)
    return {row.optimizer: row for row in rows_of(with_fields(plan, **changes), searches_of(run.folder))}


def remembered(folder: Path) -> dict[str, Memory]:
    """The memories of a run's experiments by arm, once a sink was handed its records one by one."""
    stories = Stories(folder)
    records = list(stories.records([entry.span for entry in stories.refresh()]))
    sink = MemorySink(Source(folder, stories.plan, stories, {}))
    for record in records:
        sink.take([record])
    sink.close()
    with Store(folder.parent / "memory.db") as store:
        return {str(each.metadata["arm"]): each for each in store.select(Filter(tags=("result",)))}


def test_gains_tell_help_from_none_and_from_random_search(tmp_path: Path) -> None:
    run = helped(tmp_path)
    found = rows(run)

    assert (found["meta_prompt"].verdict, found["meta_prompt"].about) == ("helps", "optimizer")
    assert found["meta_prompt"].vs_random
    assert found["meta_prompt"].vs_random["beats"]
    assert found["random_search"].vs_random is None
    few = found["few_shot"]
    assert few.verdict == "no evidence"
    assert few.detectable
    assert 0 < few.detectable < 0.3
    assert few.gain is not None
    assert few.interval
    assert few.interval[0] < few.gain < few.interval[1]
    assert [seed["seed"] for seed in few.seeds] == [42, 43, 44, 45, 46]
    assert {row.n for row in found.values()} == {100}
    assert few.p_adjusted is not None
    assert few.p is not None
    assert few.p_adjusted >= few.p


def test_gain_of_the_initial_prompt_is_exactly_zero(tmp_path: Path) -> None:
    run = searched(
        tmp_path, World("rule"), "none", "random_search", model=a_model(lambda *_: "wrong"), budget_calls=150
    )
    (row,) = rows(run).values()
    assert (row.gain, row.interval, row.p, row.verdict) == (0.0, (0.0, 0.0), 1.0, "no evidence")
    assert row.seeds[0]["kept_initial"]


def test_rows_say_why_they_compare_nothing(tmp_path: Path) -> None:
    run = searched(tmp_path, World("rule"), "none", "random_search", budget_calls=150)
    plan = run.lines[0]
    assert isinstance(plan, Plan)
    (tested,) = rows(run, config={**plan.config, "test_mode": True}).values()
    assert (tested.verdict, tested.reasons) == ("not comparable", ("test mode (5 items a split)",))
    leaks = {"world": {"leakage": {"policy": "keep", "exact": 1, "near": 0}}}
    (leaking,) = rows(run, details={**plan.details, "suite": leaks}).values()
    assert leaking.verdict == "not comparable"
    assert "leak" in leaking.reasons[0]
    alone = searched(tmp_path / "alone", World("rule"), "random_search", budget_calls=150)
    (without,) = rows(alone).values()
    assert without.gain is None
    assert "no baseline" in without.reasons[0]


def test_gain_on_fewer_than_20_items_is_no_evidence() -> None:
    items = [str(n) for n in range(19)]
    found = gain_of([dict.fromkeys(items, 0.0)], [dict.fromkeys(items, 1.0)])
    assert found
    assert found.interval is None
    assert found.gain == 1.0


def test_single_seed_of_rights_and_wrongs_is_tested_as_two_rates() -> None:
    items = [str(n) for n in range(30)]
    found = gain_of(
        [{item: float(int(item) < 3) for item in items}], [{item: float(int(item) >= 22) for item in items}]
    )
    assert found
    assert found.p == pytest.approx(score_test(3, 8, 30))
    assert "McNemar" in found.method


def test_result_has_its_baseline_and_succeeds_by_its_interval(tmp_path: Path) -> None:
    run = helped(tmp_path)
    plan = run.lines[0]
    assert isinstance(plan, Plan)
    results = {(each.arm, each.sample): each for each in OPTIMIZE.completed(plan, run.folder, run.summary.results)}
    metrics = results["meta_prompt", 0].metrics
    assert results["meta_prompt", 0].success
    assert metrics
    assert metrics["gain"] == pytest.approx((results["meta_prompt", 0].score or 0) - (metrics["baseline"] or 0))
    assert {"baseline", "gain", "validation", "metric_calls", "reasoning_calls"} <= metrics.keys()
    assert not results["none", 0].success


def test_memories_have_the_gain_and_the_start_of_the_prompt(tmp_path: Path) -> None:
    run = searched(tmp_path, World("example"), "none", "random_search", budget_calls=300)
    (end,) = [line for line in run.of("experiment") if line.arm == "random_search"]
    kept = Trial()
    for line in run.lines:
        if getattr(line, "experiment_id", "") == end.experiment_id:
            kept.fold(line)
    memories = remembered(run.folder)

    found = memories["random_search"]
    assert found.metadata["metrics"]["gain"] == pytest.approx(gain(run, "random_search"))
    assert found.metadata["score"] == pytest.approx(found.metadata["metrics"]["baseline"] + gain(run, "random_search"))
    assert "gain" not in memories["none"].metadata.get("metrics", {})
    prompt = "\n".join(f"{message['role']}: {message['content']}" for message in kept.prompt)
    assert len(kept.prompt) > 2
    assert prompt[:2048] in found.content
    assert f"gain {gain(run, 'random_search'):.4g}" in found.content


def test_memory_of_a_gain_is_kept_where_the_baseline_ends_last(tmp_path: Path) -> None:
    run = searched(tmp_path, World("rule", 1), "none", "meta_prompt", budget_calls=200)
    ends = {line.arm: line for line in run.of("experiment")}
    rest = [line for line in run.lines[1:] if line not in ends.values() and line.kind != "finished"]
    lines = [*rest, ends["meta_prompt"], ends["none"], *run.of("finished")]

    folder = a_journal(tmp_path / "again", plan=read_plan(run.folder))
    with (folder / NAME).open("ab") as file:
        file.writelines(map(encode, lines))
    found = remembered(folder)["meta_prompt"]

    assert found.metadata["metrics"]["gain"] == pytest.approx(gain(run, "meta_prompt"))


def test_memory_marks_a_shortened_prompt() -> None:
    candidate = {"digest": "d", "messages": [{"role": "user", "content": "ä" * 3000}]}
    long = Once(experiment_id="e", name="candidate/d", value=candidate, key="1")
    told = OPTIMIZE.excerpt([long, Once(experiment_id="e", name="result", value={"winner": "d"}, key="2")])

    assert told.endswith("ä …")
    assert 2040 < len(told.encode()) < 2080
    assert not OPTIMIZE.excerpt([long])


def test_report_tells_gains_searches_prompts_and_spending(tmp_path: Path) -> None:
    run = short(tmp_path)
    found = section_of(read_plan(run.folder), run.folder)
    assert found is not None

    (drawn,) = [content for content in found.contents if isinstance(content, Curves)]
    assert {curve.label for curve in drawn.curves} == {
        f"{name}, seed {seed}" for name in ("meta_prompt", "random_search") for seed in (42, 43)
    }
    for curve in drawn.curves:
        assert [*curve.points] == sorted(curve.points)
        assert [y for _, y in curve.points] == sorted(y for _, y in curve.points)
        assert curve.points[-1][0] <= BUDGET
    results, promises, spend = [content for content in found.contents if isinstance(content, Table)]
    assert [row[2] for row in results.rows] == ["meta_prompt", "random_search"]
    assert len(promises.rows) == 4
    for row in promises.rows:
        assert float(row[7]) == pytest.approx(float(row[6]) - float(row[5]), abs=0.0015)
    purposes = [each.purpose for each in run.of("call")]
    for purpose in ("item", "propose", "test"):
        column = [row[spend.header.index(purpose)] for row in spend.rows]
        assert sum(int(cell.partition(" ")[0]) for cell in column if cell != "-") == purposes.count(purpose)
    beside = [content for content in found.contents if isinstance(content, SideBySide)]
    assert [each.title for each in beside] == ["world, scripted, meta_prompt", "world, scripted, random_search"]
    assert len(set(beside[0].texts.values())) == 2


def test_page_of_a_part_is_escaped(tmp_path: Path) -> None:
    run = short(tmp_path)
    write_summary(run.folder)
    write_report([load_run(run.folder)], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()

    assert 'href="#part-1"' in page
    assert "What validation promised" in page
    assert "Best validation score so far: world, scripted" in page
    assert '<th scope="col">VERDICT</th>' in page
    found = section_of(read_plan(run.folder), run.folder)
    assert found is not None
    texts = [text for content in found.contents if isinstance(content, SideBySide) for text in content.texts.values()]
    assert all(f'<pre tabindex="0">{escape(text)}</pre>' in page for text in texts)


def test_part_that_fails_says_so_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = searched(tmp_path, World("rule"), "none")
    monkeypatch.setattr(optimizer_report, "section_of", lambda *_: 1 / 0)
    write_summary(run.folder)

    ((_, found),) = sections_of([load_run(run.folder)])

    assert found.contents == [Text("ZeroDivisionError: division by zero")]


@pytest.mark.slow  # in moments: what MLflow is told of prompts below, and of runs in tests/tracker/sinks
def test_mlflow_has_a_span_per_candidate_and_the_winner_once(tmp_path: Path) -> None:
    run = short(tmp_path)
    found = [line.value for line in run.of("once") if line.name == "result" and line.value["validation"]]
    best = max(found, key=lambda result: result["validation"][result["winner"]])
    (messages, *_) = [line.value["messages"] for line in run.of("once") if line.name == f"candidate/{best['winner']}"]
    project(run.folder)
    store = client(run.folder)

    (version,) = store.search_prompt_versions("koderz-world-scripted")
    assert version.template[0]["content"] == messages[0]["content"]
    assert version.template[-1]["content"] == "{{question}}"
    assert version.tags["koderz.optimizer"] == "meta_prompt"
    assert version.tags["benchmark_run_id"] == run.folder.name
    assert version.tags["koderz.verdict"] == rows(run)["meta_prompt"].verdict
    runs = store.search_runs([version.tags["_mlflow_experiment_ids"].strip(",")])
    (told,) = [found for found in runs if found.data.tags.get("koderz.arm") == "meta_prompt"]
    for seed in rows(run)["meta_prompt"].seeds:
        curve = store.get_metric_history(told.info.run_id, f"best_validation/world/meta_prompt/{seed['seed']}")
        assert [point.value for point in curve] == sorted(point.value for point in curve)
        assert (curve[0].step, curve[-1].step) == (20, seed["metric_calls"])
    row = rows(run)["meta_prompt"]
    assert told.data.metrics["gain/mean"] == pytest.approx(row.gain)
    note = told.data.tags["mlflow.note.content"]
    assert ("| gain |" in note, "success rate" in note) == (True, False)
    assert {name for name in told.data.metrics if not name.startswith("best_validation/")} == {
        *("gain/mean", "passed/mean", "score/mean", "cost", "tokens", "latency")
    }
    names = {prompt.name for prompt in store.search_prompts()}
    assert {name for name in names if name.startswith("koderz.rlm")} == set()
    assert "koderz.meta_prompt-round" in names
    splits = read_plan(run.folder).details["suite"]["world"]["splits"]
    inputs = {each.dataset.name: (each.dataset.digest, each.tags[0].value) for each in told.inputs.dataset_inputs}
    assert {name: inputs[f"world_{name}"] for name in splits} == {
        name: (about["digest"], name) for name, about in splits.items()
    }
    place = f"koderz/{read_plan(run.folder).suite}"
    traces = {trace.info.client_request_id: trace for trace in seen(run.folder, experiment=place).traces}
    for end in run.of("experiment"):
        spans = traces[end.experiment_id].data.spans
        assert "passed" not in {assessment.name for assessment in traces[end.experiment_id].info.assessments}
        known = [
            line.value
            for line in run.of("once")
            if line.experiment_id == end.experiment_id and line.name.startswith("candidate/")
        ]
        assert len(spans) == 1 + len(known)
        (kept,) = [span for span in spans if (span.outputs or {}).get("kept")]
        assert kept.outputs["test"]["items"] == 100 if end.verdict == "selected" else not kept.inputs["demos"]

    (run.folder / "sinks.json").unlink(missing_ok=True)
    project(run.folder)
    assert len(store.search_prompt_versions("koderz-world-scripted")) == 1


def test_prompt_is_found_only_after_all_searches(tmp_path: Path) -> None:
    run = searched(tmp_path, World("rule", 1), "none", "meta_prompt", budget_calls=200)
    assert [*OPTIMIZE.prompts(read_plan(run.folder), run.folder)]
    folder = a_journal(tmp_path / "again", plan=read_plan(run.folder))
    with (folder / NAME).open("ab") as file:
        file.writelines(encode(line) for line in run.lines[1:] if line.kind != "experiment" or line.arm == "none")

    assert not [*OPTIMIZE.prompts(read_plan(folder), folder)]


def test_runs_are_paired_by_optimizer_and_item(tmp_path: Path) -> None:
    """Of one world, in which rules help the second run's model and not the first's."""
    a = searched(tmp_path / "a", World("nothing", 1), "none", "meta_prompt", seeds=2, budget_calls=BUDGET)
    b = short(tmp_path / "b")
    answer = compare_optimizers([a.folder, b.folder])

    (pair,) = answer.document()["pairs"]
    assert (pair.optimizer, pair.n, pair.verdict) == ("meta_prompt", 100, "prompts better")
    assert pair.difference == pytest.approx(pair.b - pair.a)
    assert any("better" in line for line in answer.markdown())


def test_gate_holds_optimizers_to_a_gain(tmp_path: Path) -> None:
    run = helped(tmp_path)

    assert not compare_optimizers([run.folder], arm="meta_prompt", min_gain=0.4).shut
    few_shot, drawn = sorted(compare_optimizers([run.folder], min_gain=0.4).shut)
    assert few_shot.startswith("few_shot on world for scripted gains ")
    assert drawn.startswith("random_search on world for scripted gains ")
    with pytest.raises(KoderzError, match="no optimizer"):
        compare_optimizers([run.folder], arm="gepa")


def test_runs_with_other_caps_or_items_are_not_comparable(tmp_path: Path) -> None:
    a = searched(tmp_path / "a", World("rule"), "none", "random_search", budget_calls=200)
    b = searched(tmp_path / "b", World("rule"), "none", "random_search", budget_calls=150)
    (pair,) = compare_optimizers([a.folder, b.folder]).document()["pairs"]
    assert (pair.verdict, pair.reasons) == ("not comparable", ["unequal caps"])
