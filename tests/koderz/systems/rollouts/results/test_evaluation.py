"""The results of tests, in an attempt's record and in a rollout's files, to the byte: other programs read both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from koderz.systems.rollouts.grading import Graded, Published
from koderz.systems.rollouts.grading.scores import MetricValues, expected, rewarded, scored
from koderz.systems.rollouts.results import RolloutRow, find_rollouts, table_lines
from koderz.systems.rollouts.results.files import RolloutFiles
from koderz.systems.rollouts.suite import _verdict
from koderz.systems.rollouts.task import Rollout, Rubric, SkillEval
from koderz.systems.workspaces.scripts import Script, ScriptResult
from koderz_tracker import records
from koderz_tracker.summary import Summary
from koderz_tracker.tracker import Tracker
from tests.koderz.systems.rollouts.results.test_files import NAME, RUNS, STAMP, about_files, ended

ARTIFACT = "evaluation_results.json"
RESOURCES = {"memory_mb": 512}
TASK = Rollout(
    Path("one"),
    "tb",
    "one",
    "One",
    "Do it.",
    rubrics=(Rubric("sums", "It sums.", 2.0),),
    scripts=(Script("tests/test_it.py", "sums", ""),),
)
REWARDS = {"resolved": 1.0}
SAID = {"weighted_score": 0.5, "rubric_scores": [], "summary": "", "metadata": {}}


def told_of(score: float, tests: int, results: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What is told of a graded task, with None for what isn't told of every one."""
    rubric = {"criterion": "It sums.", "weight": 2.0, "score": score, "max_score": 1.0, "weighted_score": 2 * score}
    rubrics = {"sums": {**rubric, "test_count": tests, "tests_passed": tests}}
    return {
        "task_id": "one",
        "total_score": score,
        "score_of_graded": score,
        "evaluation": {"rubrics": rubrics, "total_score": score, "max_score": 1.0},
        "test_results": results,
        "diff_lines": 2,
        "tampering": [],
        "graded": "fresh",
        "rewards": {},
        "steps": [],
        "published": None,
        "isolation": "in-process",
        "carried": "workdir",
        "lifted": [],
        "environment": ...,
        "prompt": ...,
        "verifier_tools": "own",
        "verifier_environment_mode": "shared",
        "standard_metrics": None,
        "custom_metrics": None,
        "lm_evaluation": None,
        "resources": RESOURCES,
    } | more


def by_scripts() -> tuple[str, dict[str, Any]]:
    results = (ScriptResult("tests/test_it.py", True, "é\ud800\n", ""),)
    measured = MetricValues({"lines": 3})
    graded = Graded(scored(TASK, results), results, ("a.py: why",), measured)
    told = told_of(1.0, 1, {"tests/test_it.py": {"success": True, "output": "é\ud800\n"}})
    told |= {"tampering": ["a.py: why"], "standard_metrics": {"lines": 3}, "lm_evaluation": SAID}
    return _artifact(TASK, graded, SAID), told


def by_swebench() -> tuple[str, dict[str, Any]]:
    graded = Graded(
        rewarded(TASK, REWARDS),
        (ScriptResult("eval.sh", True, "", ""),),
        graded="both",
        rewards=REWARDS,
        published=Published(True, REWARDS),
        lifted=("settings",),
        environment="substitute",
    )
    told = told_of(1.0, 1, {"eval.sh": {"success": True, "output": ""}}, graded="both", rewards=REWARDS)
    published = {"success": True, "rewards": REWARDS, "cut": False}
    return _artifact(TASK, graded), told | {
        "published": published,
        "lifted": ["settings"],
        "environment": "substitute",
    }


def by_expectations() -> tuple[str, dict[str, Any]]:
    task = replace(TASK, skill_eval=SkillEval("skill", "42", ("It sums.",)))
    graded = Graded(expected(task, [False]), (), graded="judge")
    return _artifact(task, graded), told_of(0.0, 0, {}, graded="judge", prompt="Do it.")


def _artifact(task: Rollout, graded: Graded, said: Mapping[str, Any] | None = None) -> str:
    return str(_verdict(task, "+1\n+2", graded, "namespaces", said, RESOURCES).artifacts[ARTIFACT])


@pytest.mark.parametrize("graded", [by_scripts, by_swebench, by_expectations])
def test_evaluation_is_recorded_in_its_order(graded: Callable[[], tuple[str, dict[str, Any]]]) -> None:
    recorded, told = graded()
    assert recorded == json.dumps({name: value for name, value in told.items() if value is not ...}, indent=2)


def evaluated(folder: Path, *story: records.Record) -> str:
    """The file of a rollout's evaluation that is written from these records."""
    plan = records.Plan(
        run_id=NAME,
        mode="rollouts",
        arms=[records.Arm(name="nop", solver="nop", models={})],
        tasks=["one"],
        samples=1,
        config={},
        environment={},
    )

    async def write() -> None:
        with Tracker.create(folder, NAME, plan) as tracker:
            for record in (*story, ended(RUNS[0])):
                await tracker.record(record)
            RolloutFiles(folder / NAME, about_files(folder)).write(cast("Summary", None))

    asyncio.run(write())
    return (folder / f"data/runs/{STAMP}-0/evaluation_results.json").read_text()


def test_files_of_a_rollout_are_read_back(tmp_path: Path) -> None:
    recorded, _ = by_scripts()
    written = json.loads(evaluated(tmp_path, judged(**{ARTIFACT: recorded})))
    place = tmp_path / f"data/rollouts/nightly/{STAMP}"
    found = find_rollouts(tmp_path / "data", "nightly")
    assert found.results == [{**written, "task_dir": "tasks/one"}]
    assert found.rows == [RolloutRow("one", f"{STAMP}-0", 0.0, 0.5, 0, 0, "nop")]
    shown = f"data/rollouts/nightly/{STAMP}"
    assert (place / "summary.md").read_text().splitlines() == [*table_lines(found.rows, shown)]


def judged(**artifacts: records.Text) -> records.Attempt:
    return records.Attempt(
        experiment_id=RUNS[0],
        problem_id="one",
        solver="nop",
        arm="nop",
        sample=0,
        number=1,
        verdict="passed",
        artifacts=artifacts,
    )


WITHOUT = {
    "task_id": "one",
    "run_id": f"{STAMP}-0",
    "total_score": 0.0,
    "score_of_graded": None,
    "evaluation": {"rubrics": {}, "total_score": 0.0, "max_score": 1.0},
    "test_results": {},
    "diff_lines": 0,
    "agent_metrics": {
        "tokens_total": 0,
        "tokens_events": 0,
        "tool_calls_codex_log": 0,
        "tool_calls_sessions": 0,
        "tool_calls_total": 0,
        "time_taken_seconds": 0.0,
        "money_spent_usd": 0.0,
        "reused": 0,
    },
    "lm_evaluation": None,
    "standard_metrics": None,
    "custom_metrics": None,
    "tampering": [],
    "quantitative_metrics": {"time_taken_seconds": 0.0, "tokens_spent": 0, "money_spent_usd": 0.0, "tool_calls": 0},
}


def file_of(told: Mapping[str, Any], *of_verifier: str) -> str:
    """The text of the file where this is told, some of it after the signs of tampering."""
    file: dict[str, Any] = {}
    for name, value in WITHOUT.items():
        file[name] = value if name in ("diff_lines", "total_score") else told.get(name, value)
        if name == "tampering":
            file |= {each: told[each] for each in of_verifier}
    return json.dumps(file, indent=2, ensure_ascii=False) + "\n"


def test_file_of_an_evaluation_has_what_was_recorded(tmp_path: Path) -> None:
    recorded, told = by_swebench()
    how = ["graded", "rewards", "steps", "published", "isolation", "carried", "lifted"]
    how += ["verifier_tools", "verifier_environment_mode", "environment"]
    assert evaluated(tmp_path, judged(**{ARTIFACT: recorded})) == file_of(told, *how)


@pytest.mark.parametrize("recorded", [{}, {ARTIFACT: ""}, {ARTIFACT: "{"}], ids=["none", "lost", "damaged"])
def test_file_of_an_evaluation_does_without(tmp_path: Path, recorded: dict[str, str]) -> None:
    assert evaluated(tmp_path, judged(**recorded)) == file_of({})


def test_file_of_an_early_evaluation_has_no_more_than_it(tmp_path: Path) -> None:
    told = {"task_id": "1", "score_of_graded": 1.0, "test_results": {}, "graded": "both"}
    assert evaluated(tmp_path, judged(**{ARTIFACT: json.dumps(told)})) == file_of(told, "graded")


def test_file_of_an_evaluation_is_of_all_steps(tmp_path: Path) -> None:
    told = {"task_id": "one", "rewards": {"a": 1.0}, "steps": [{"name": "s", "rewards": {"a": 1.0}}]}
    steps = records.Once(experiment_id=RUNS[0], name="steps", value=told)
    last = judged(**{ARTIFACT: json.dumps({"task_id": "one/s"})})
    assert evaluated(tmp_path, last, steps) == file_of(told, "rewards", "steps")
