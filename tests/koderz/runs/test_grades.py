"""Many small scores within one experiment: recorded, folded into its outcome, told, and graded anew."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.analysis.story import Experiments
from koderz.cli.show import tell
from koderz.experiments.replay import Replaying
from koderz.testing import a_model
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.stories import Stories
from tests.koderz.world import Run, begun, planned, resumed

SOURCE = """
from koderz.types import Verdict

async def solve(task, ask, grade):
    for item in range(30):
        reply = await ask([{"role": "user", "content": f"item {item}"}])
        await grade(f"i{item}", {score}, tokens=reply.tokens_out, split="train")
    return Verdict("passed"{given})
"""


def graded(folder: Path, given: str = "") -> Run:
    (folder / "own.py").write_text(SOURCE.replace("{score}", "item % 2").replace("{given}", given))

    async def go() -> Run:
        return await begun(await planned(folder, 1, solver=f"{folder}/own.py:solve"), a_model("GOOD"))

    return asyncio.run(go())


def test_grades_are_no_iterations_and_their_mean_is_the_score(tmp_path: Path) -> None:
    run = graded(tmp_path)

    (result,) = run.summary.results
    assert (result.grades, result.score, result.iterations, result.success) == (30, 0.5, 0, True)
    path, _ = write_summary(run.folder)
    (row,) = json.loads(path.read_text())["results"]
    assert (row["grades"], row["score"]) == (30, 0.5)


def test_grades_give_way_to_a_score_of_the_verdict(tmp_path: Path) -> None:
    assert graded(tmp_path, ", score=0.75").summary.results[0].score == 0.75


def test_grades_are_told_by_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiments = Experiments(graded(tmp_path).folder)
    story = experiments.story(experiments.outcomes[0])

    tell(story, "a run")

    told = capsys.readouterr().out
    assert "30 grades, 0.5 on average" in told
    assert "i1: 1 · tokens 5 · split train" in told
    assert "… and 10 more" in told
    assert len(story.grades) == 30


def test_grades_made_anew_by_rescore_stand_in_their_place(tmp_path: Path) -> None:
    first = graded(tmp_path)
    (tmp_path / "own.py").write_text(SOURCE.replace("{score}", "item % 2 + (item == 3)").replace("{given}", ""))

    async def go() -> Run:
        plan = await planned(tmp_path, 1, solver=f"{tmp_path}/own.py:solve")
        plan = replace(plan, record=first.lines[0])  # type: ignore[arg-type]
        how = Replaying(rescore=True, calls_allowed=False)
        return await resumed(first.folder, plan, a_model("GOOD"), how, faults=True, judged=True)

    run = asyncio.run(go())

    assert run.summary.results[0].score == pytest.approx(16 / 30)
    assert [grade.score for grade in run.of("grade")][30:] == [2.0]
    stories = Stories(run.folder)
    stories.refresh()
    told = [record for record in stories.of(run.summary.results[0].experiment_id) if record.kind == "grade"]
    assert [(grade.item, grade.score) for grade in told[2:5]] == [("i2", 0.0), ("i3", 2.0), ("i4", 0.0)]
    assert len(told) == 30
