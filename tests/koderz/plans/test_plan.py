"""A plan says everything that a run will do, and tells when the world is no longer what it was."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koderz.engines.sources import restored_settings, schema_of
from koderz.errors import KoderzError
from koderz.plans.arms import make_arms
from koderz.plans.plan import Plan, _decisive, load_subject, make_plan, restore_plan
from koderz.prompts import PLACEHOLDERS
from koderz.runs.prepare import prepare
from koderz.settings.layers import replaced
from koderz.settings.requests import OF_REQUESTS
from koderz.types import Measure
from koderz_tracker import records
from koderz_tracker.records import decode, encode
from tests.koderz.systems.questions.sets import write_rows
from tests.koderz.world import Words, planned


def plan(folder: Path, n: int = 3, **settings: Any) -> Plan:
    return asyncio.run(planned(folder, n, **settings))


def through_a_file(record: records.Plan) -> records.Plan:
    found = decode(encode(record))
    assert isinstance(found, records.Plan)
    return found


def restored(made: Plan, *, accept_changes: bool = False, **overrides: Any) -> Plan:
    record = through_a_file(made.record)
    return restore_plan(record, replaced(restored_settings(record), overrides), accept_changes=accept_changes)


# What is written down


def test_plan_records_prompts_and_references_that_the_run_may_use(tmp_path: Path) -> None:
    zero_shot, iterative = (plan(tmp_path, mode=mode).record.details for mode in ("zero-shot", "iterative"))

    assert set(zero_shot["prompts"]) == {"system", "task", "reasoning"}
    assert set(iterative["prompts"]) == {*zero_shot["prompts"], "feedback"}
    assert "${prompt}" in iterative["prompts"]["task"]
    assert set(iterative["expectations"]) == {"T/0", "T/1", "T/2"}
    assert "return" in iterative["expectations"]["T/0"]["expected_response"]
    assert set(iterative["questions"]) == set(iterative["expectations"])
    assert all(len(text) <= 240 and "\n" not in text for text in iterative["questions"].values())


@pytest.mark.parametrize(("mode", "changed"), [("zero-shot", "feedback"), ("iterative", "rlm-system")])
def test_resume_ignores_a_changed_prompt_that_the_run_does_not_use(tmp_path: Path, mode: str, changed: str) -> None:
    made = plan(tmp_path, mode=mode, prompt_dir=own_prompts(tmp_path)["prompt_dir"])
    (tmp_path / "prompts" / f"{changed}.md").write_text("Something else.\n")

    assert restored(made).tasks == made.tasks
    assert changed not in made.record.details["matches"]["prompt"]


def test_solver_without_declared_prompts_may_use_any(tmp_path: Path) -> None:
    source = "async def solve(task, ask, judge, prompts):\n    ...\n"
    (tmp_path / "own.py").write_text(source)
    made = plan(tmp_path, solver=f"{tmp_path}/own.py:solve")

    assert set(made.record.details["prompts"]) == set(PLACEHOLDERS)


def with_measures(folder: Path, *measures: Measure) -> Plan:
    settings = plan(folder).settings
    subject = load_subject(settings, list)
    suite = Words(subject.tasks, measures=measures)
    return make_plan(settings, subject._replace(suite=suite), make_arms(settings, {}))


def test_plan_records_the_measures_of_the_suite(tmp_path: Path) -> None:
    made = with_measures(tmp_path, Measure("seconds", "lower", "s"), Measure("exact", "higher", two_valued=True))

    assert through_a_file(made.record).measures == [
        records.Measure(name="seconds", direction="lower", unit="s"),
        records.Measure(name="exact", direction="higher", two_valued=True),
    ]
    assert b'"measures"' not in encode(plan(tmp_path).record)


@pytest.mark.parametrize(
    ("measures", "told"),
    [
        ((Measure("seconds", "down"),), "the measure 'seconds': its direction has to be higher or lower"),  # type: ignore[arg-type]
        ((Measure("a", "lower"), Measure("a", "higher")), "two measures have one name"),
    ],
)
def test_measure_that_is_invalid_is_refused(tmp_path: Path, measures: tuple[Measure, ...], told: str) -> None:
    with pytest.raises(KoderzError, match=told):
        with_measures(tmp_path, *measures)


def test_run_id_has_its_time(tmp_path: Path) -> None:
    assert re.fullmatch(r"bench_[0-9a-f]{8}_\d{8}_\d{6}", plan(tmp_path).name)


def test_run_ids_differ_between_plans(tmp_path: Path) -> None:
    assert plan(tmp_path).name != plan(tmp_path).name


def test_config_holds_every_setting_and_the_selection(tmp_path: Path) -> None:
    config = plan(tmp_path, 2, samples=3, seed=5).record.config

    assert config.keys() >= schema_of().fields.keys()
    expected = {"local_model": "scripted", "problem_range": "0-2", "problems": ["T/0", "T/1"], "temperature": 0.8}
    assert config.items() >= expected.items()
    assert json.loads(json.dumps(config)) == config


def test_environment_is_recorded(tmp_path: Path) -> None:
    environment = plan(tmp_path).record.environment

    assert environment.keys() >= {"koderz", "python", "platform", "git_commit", "dataset_digest"}
    assert environment["dataset_digest"] != plan(tmp_path, 4).record.environment["dataset_digest"]


@pytest.mark.parametrize(("model", "simulated"), [("simulated", True), ("scripted", False)])
def test_simulated_model_is_on_record_as_such(tmp_path: Path, model: str, simulated: bool) -> None:
    assert plan(tmp_path, local_model=model).record.simulated is simulated


@pytest.mark.parametrize(
    ("settings", "mode", "solvers", "count"),
    [
        ({"mode": "zero-shot"}, "zero-shot", ["zero-shot"], 3),
        ({"mode": "iterative"}, "iterative", ["iterative"], 3),
        ({"mode": "comparative"}, "comparative", ["zero-shot", "iterative"], 6),
        ({"mode": "comparative", "samples": 4}, "comparative", ["zero-shot", "iterative"], 24),
        ({"solver": "zero-shot"}, "zero-shot", ["zero-shot"], 3),
    ],
)
def test_mode_determines_its_solvers(
    tmp_path: Path, settings: dict[str, Any], mode: str, solvers: list[str], count: int
) -> None:
    made = plan(tmp_path, **settings)

    assert (made.record.mode, [arm.name for arm in made.record.arms]) == (mode, solvers)
    assert made.record.planned == len(list(made.experiments())) == count


def test_mode_of_a_users_solver_is_its_name(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("async def my_solver(task, ask, judge):\n    ...\n")
    made = plan(tmp_path, solver=f"{tmp_path}/own.py:my_solver")

    assert (made.record.mode, [arm.name for arm in made.record.arms]) == ("my-solver", ["my-solver"])
    assert restored(made).record.mode == "my-solver"


# Experiments


def test_arms_of_a_task_stand_beside_each_other(tmp_path: Path) -> None:
    made = plan(tmp_path, 2, mode="comparative", samples=2)

    order = [(e.sample, e.task.id, e.arm.name) for e in made.experiments()]
    assert order == [
        (sample, f"T/{task}", solver)
        for sample in range(2)
        for task in range(2)
        for solver in ("zero-shot", "iterative")
    ]


def test_experiment_ids_are_unique_and_found_again_on_resume(tmp_path: Path) -> None:
    made = plan(tmp_path, mode="comparative", samples=2)
    ids = [experiment.experiment_id for experiment in made.experiments()]

    assert all(re.fullmatch(r"exp_[0-9a-f]{16}", one) for one in ids)
    assert len(set(ids)) == 12
    assert [experiment.experiment_id for experiment in restored(made, concurrency=2).experiments()] == ids


def test_experiment_ids_depend_on_settings_and_run(tmp_path: Path) -> None:
    def first(made: Plan) -> str:
        return next(made.experiments()).experiment_id

    one = plan(tmp_path)
    same_run = replace(
        plan(tmp_path, seed=1), record=msgspec.structs.replace(plan(tmp_path, seed=1).record, run_id=one.record.run_id)
    )
    assert first(one) != first(same_run)
    assert first(one) != first(plan(tmp_path))


def test_task_digest_changes_with_its_words(tmp_path: Path) -> None:
    (task, *_) = plan(tmp_path, cot=False).tasks

    assert [message["role"] for message in task.messages] == ["system", "user"]
    assert "def f0():" in task.messages[1]["content"]
    assert "step by step" not in task.messages[1]["content"]


# Picked up again


def test_restore_returns_a_matching_plan_unchanged(tmp_path: Path) -> None:
    made = plan(tmp_path, mode="comparative", samples=2, max_iterations=4, seed=9)
    again = restored(made)

    assert again.settings == replace(made.settings, temperature=0.8, problems=("T/0", "T/1", "T/2"))
    assert again.tasks == made.tasks
    assert [arm.solver.parameters for arm in again.arms] == [arm.solver.parameters for arm in made.arms]


def test_restore_lets_few_settings_differ(tmp_path: Path) -> None:
    again = restored(plan(tmp_path), concurrency=2, max_cost=3.0)

    assert (again.settings.concurrency, again.settings.max_cost) == (2, 3.0)


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def own_solver(folder: Path) -> dict[str, Any]:
    (folder / "own.py").write_text("async def solve(task, ask, judge):\n    ...\n")
    return {"solver": f"{folder}/own.py:solve"}


def own_prompts(folder: Path) -> dict[str, Any]:
    (folder / "prompts").mkdir()
    (folder / "prompts" / "system.md").write_text("Be brief.\n")
    return {"prompt_dir": folder / "prompts"}


CHANGES: dict[str, tuple[Callable[[Path], dict[str, Any]], tuple[str, str, str], str]] = {
    "a task": (lambda folder: {}, ("tasks.jsonl", "Return 1.", "Return one."), "task T/1"),
    "a test": (lambda folder: {}, ("tasks.jsonl", "== 1", "== 11"), "task T/1"),
    "a prompt": (own_prompts, ("prompts/system.md", "brief", "long"), "prompt system"),
    "a solver": (own_solver, ("own.py", "...", "return None"), "solver solve"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_restore_names_changes_that_have_to_be_accepted(tmp_path: Path, case: str) -> None:
    arrange, (file, before, after), named = CHANGES[case]
    made = plan(tmp_path, **arrange(tmp_path))
    edit(tmp_path / file, before, after)

    with pytest.raises(KoderzError, match=f"{made.name}: not what it was when the run began: {named}"):
        restored(made)
    assert restored(made, accept_changes=True).tasks


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "--scorer own.py:f": ("own.py", {"suite": "qa", "scorer": "own.py:f"}),
    "--rubric rubric.txt": (
        "rubric.txt",
        {"suite": "qa", "scorer": "judge", "rubric": "rubric.txt", "roles": ("judge=simulated",)},
    ),
    "--template template.txt": ("template.txt", {"suite": "qa", "template": "template.txt"}),
    "--metric own.py:f": (
        "own.py",
        {
            "suite": "datasets",
            "dataset": ("own=rows.jsonl",),
            "demo_datasets": ("own",),
            "metric": "own.py:f",
            "input_columns": ("input",),
            "output_column": "target",
            "solver": "none",
            **dict.fromkeys(("train_items", "validation_items", "test_items"), 3),
        },
    ),
}


@pytest.mark.parametrize("named", OPTIONS)
def test_restore_names_the_option_of_a_changed_file_in_place_of_the_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file, settings = OPTIONS[named]
    write_rows(tmp_path / "rows.jsonl", *({"input": f"What is {n} and {n}?", "target": str(2 * n)} for n in range(9)))
    Path(file).write_text("def f(item, reply):\n    return 0\n" if file.endswith(".py") else "Is it {input}?")
    given = {"dataset": Path("rows.jsonl"), "local_model": "simulated", **settings}
    made = asyncio.run(prepare({**given, "results": tmp_path / "results"}, None, environ={"XDG_STATE_HOME": "."}))
    edit(Path(file), "return 0" if file.endswith(".py") else "Is it", "return 1" if file.endswith(".py") else "Was it")

    with pytest.raises(
        KoderzError, match=rf"began: {named}\. .* koderz benchmark rescore {made.name} --accept-changes"
    ):
        restored(made)
    assert restored(made, accept_changes=True).tasks


def test_restore_refuses_a_task_that_is_gone(tmp_path: Path) -> None:
    made = plan(tmp_path)
    edit(tmp_path / "tasks.jsonl", '"T/2"', '"T/3"')

    with pytest.raises(KoderzError, match="no task 'T/2' any more"):
        restored(made, accept_changes=True)


def test_tasks_that_were_added_since_do_not_matter(tmp_path: Path) -> None:
    made = plan(tmp_path, 2)
    plan(tmp_path, 5)  # writes more tasks into the same file

    assert [task.id for task in restored(made).tasks] == ["T/0", "T/1"]


def test_restore_accepts_koderz_own_solver_of_another_version(tmp_path: Path) -> None:
    assert plan(tmp_path).record.details["matches"]["solver"] == {}


def test_plan_of_a_later_version_is_read_as_far_as_known(tmp_path: Path) -> None:
    record = through_a_file(plan(tmp_path).record)
    later = msgspec.structs.replace(
        record, config={**record.config, "colour": "red"}, details={**record.details, "more": 1}
    )

    assert restored_settings(later) == schema_of().from_config(record.config)


def test_single_experiment_has_no_run_and_a_new_id_each_time(tmp_path: Path) -> None:
    from tests.koderz.world import write_tasks

    async def single() -> Plan:
        given = {"local_model": "scripted", "dataset": write_tasks(tmp_path, 3), "problems": ("T/1",)}
        return await prepare(given, None, single=True, environ={"XDG_STATE_HOME": str(tmp_path)})

    one, two = asyncio.run(single()), asyncio.run(single())
    assert one.record.run_id is None
    assert one.name.startswith("exp_")
    assert one.name != two.name


def test_digest_is_as_before_there_were_settings_of_requests(tmp_path: Path) -> None:
    config = plan(tmp_path).record.config
    said = {**config, "stop": ["END"], "reasoning_effort": "low", "extra_headers": ["X-Team"]}

    assert not _decisive(config).keys() & {*OF_REQUESTS}
    assert _decisive(said).keys() - _decisive(config).keys() == {"stop", "reasoning_effort", "extra_headers"}


# What tasks have in common


def asking(folder: Path, rows: Sequence[Mapping[str, Any]], **settings: Any) -> records.Plan:
    """The record of a plan that asks these questions."""
    path = write_rows(folder / "rows.jsonl", *({"target": "4", **row} for row in rows))
    given = {"suite": "qa", "dataset": path, "local_model": "simulated", "results": folder / "results", **settings}
    made = asyncio.run(prepare(given, None, environ={"XDG_STATE_HOME": str(folder)}))
    return through_a_file(made.record)


def test_equal_prompts_are_one_cluster_with_a_note(tmp_path: Path) -> None:
    rows = [{"id": f"q{n}-{copy}", "input": f"{n}?"} for copy in range(3) for n in range(4)]
    record = asking(tmp_path, [*rows, {"id": "alone", "input": "alone?"}])

    assert record.clusters == [*[f"prompt of q{n}-0" for n in range(4)] * 3, ""]
    (note,) = record.notes
    assert note.startswith("12 of 13 tasks have a prompt that others have, too")
    assert note.endswith("count as 4")
    assert record.asked[0] == record.asked[4] != record.asked[1]


def test_what_a_task_asks_is_the_same_in_another_template(tmp_path: Path) -> None:
    (tmp_path / "template.txt").write_text("Tell me: {input}")
    rows = [{"input": f"{n}?", "choices": ["1", "4"]} for n in range(2)]
    plain, told = asking(tmp_path, rows), asking(tmp_path, rows, template=tmp_path / "template.txt")
    other = asking(tmp_path, [{**row, "choices": ["3", "4"]} for row in rows])

    assert plain.asked == told.asked
    assert len({*plain.asked, *other.asked}) == 4


def test_equal_prompts_join_the_clusters_of_their_rows(tmp_path: Path) -> None:
    inputs = [("a?", "one"), ("b?", "one"), ("b?", "two"), ("c?", "two"), ("d?", "three"), ("e?", None)]
    rows = [{"input": text, "cluster": cluster} for text, cluster in inputs]

    assert asking(tmp_path, rows).clusters == ["two"] * 4 + ["three", ""]
    assert asking(tmp_path, rows, few_shot=1).clusters == ["two"] * 4 + ["three", ""]


def test_prompts_with_other_options_or_system_messages_are_not_equal(tmp_path: Path) -> None:
    rows = [{"input": "Which?", "choices": ["1", "4", str(n)]} for n in (7, 8)]
    record = asking(
        tmp_path,
        [*rows, {"input": "Bonjour", "system": "s"}, {"input": "Bonjour", "system": "t"}],
        scorer="judge",
        roles=("judge=simulated",),
    )

    assert not record.clusters
    assert not record.notes


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        ({"samples": 4, "temperature": 0.0}, True),
        ({"samples": 4, "temperature": 0.0, "seed": 7}, False),
        ({"samples": 4}, False),
        ({"temperature": 0.0}, False),
    ],
)
def test_samples_at_temperature_0_may_be_copies(tmp_path: Path, settings: dict[str, Any], *, noted: bool) -> None:
    notes = plan(tmp_path, **settings).record.notes

    assert [note.partition(" which")[0] for note in notes] == [
        "4 samples a task at temperature 0 without a --seed may be copies of each other,"
    ] * noted


def test_digest_is_as_before_there_were_columns_of_clusters(tmp_path: Path) -> None:
    config = plan(tmp_path).record.config

    assert "cluster_column" in config
    assert "cluster_column" not in _decisive(config)
    assert "cluster_column" in _decisive({**config, "suite": "datasets"})  # whose digests have always had it
    assert "cluster_column" in _decisive({**config, "cluster_column": "text"})
