"""Evals of skills as tasks: how they are read, who judges them, and what is said of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, KoderzError
from koderz.suites.suite import SuiteSource
from koderz.systems.rollouts.additions import read_additions
from koderz.systems.rollouts.grading.scores import opinions
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.suite import RolloutsSuite
from koderz.systems.rollouts.task import Rollout, SkillEval
from koderz.systems.rollouts.tasks.datasets import Dataset, read_dataset, skill_problems
from koderz.systems.rollouts.tasks.formats import require_work
from koderz.types import Message
from tests.conftest import Shell

TEST = "import pathlib\ndef test_it():\n    assert pathlib.Path('code.txt').read_text().strip() == '42'\n"
EVALS: list[dict[str, Any]] = [
    {"id": 1, "prompt": "Write 42.", "expected_output": "42", "expectations": ["It holds 42", "Nothing else"]},
    {"id": "two", "prompt": "Sum it.", "files": ["evals/files/a.csv", "notes.md"], "assertions": ["It is 3"]},
    {"prompt": "Write it.", "expected_output": "A file."},
    {"id": 4, "prompt": "Write 42 to code.txt.", "tests": ["evals/tests/test_code.py"], "colour": "red"},
]


def skill(folder: Path, *evals: Any, name: str = "codes") -> Path:
    (folder / "evals/files").mkdir(parents=True)
    (folder / "evals/tests").mkdir()
    (folder / "evals/files/a.csv").write_text("1\n2\n")
    (folder / "evals/tests/test_code.py").write_text(TEST)
    (folder / "notes.md").write_text("Add them.\n")
    (folder / "evals/a.csv").write_text("1\n")
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: How to.\n---\nThe answer is 42.\n")
    (folder / "evals/evals.json").write_text(json.dumps({"skill_name": name, "evals": evals or EVALS}))
    return folder


def found(place: Path) -> Dataset:
    return read_dataset(place, None, {})


def test_evals_are_read_with_either_key_and_any_id(tmp_path: Path) -> None:
    first, second, third, fourth = found(skill(tmp_path / "codes")).tasks
    assert [task.id for task in (first, second, third, fourth)] == ["codes/1", "codes/two", "codes/3", "codes/4"]
    assert first.skill_eval == SkillEval("codes", "42", ("It holds 42", "Nothing else"))
    assert first.instructions == "Write 42."
    assert second.instructions == "Sum it.\n\nInput files: a.csv, notes.md"
    assert {path: Path(source).name for path, source in second.files.items()} == {
        "a.csv": "a.csv",
        "notes.md": "notes.md",
    }
    assert second.skill_eval
    assert second.skill_eval.expectations == ("It is 3",)
    assert third.skill_eval
    assert third.skill_eval.expectations == ("The result is as expected: A file.",)
    assert (fourth.scripts[0].path, fourth.scripts[0].content) == ("tests/test_code.py", TEST)
    assert fourth.ignored_keys == ("evals.json: colour",)


def test_evals_are_told_by_content_wherever_a_dataset_is_named(tmp_path: Path) -> None:
    one, two = skill(tmp_path / "all/one", name="one"), skill(tmp_path / "all/two", name="two")
    moved = (one / "evals/evals.json").rename(one / "my.json")
    assert [task.id for task in found(moved).tasks] == [f"one/{name}" for name in ("1", "two", "3", "4")]
    assert len(found(two).tasks) == len(found(tmp_path / "all").tasks) == 4
    (tmp_path / "rows.json").write_text('{"eval": []}')
    with pytest.raises(KoderzError, match="is no row of SWE-bench"):
        found(tmp_path / "rows.json")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"expectations": "It holds 42"}, "'expectations' has to be a list"),
        ({"files": ["../../etc/passwd"]}, "there is no file ../../etc/passwd"),
        ({"files": ["absent.csv"]}, "there is no file absent.csv"),
        ({"files": ["evals/files/a.csv", "evals/a.csv"]}, "two files have the name a.csv"),
        ({"files": ["out"]}, "there is no file out"),
        ({"prompt": None}, "'prompt'"),
        ({"expectations": [], "expected_output": ""}, "nothing could judge it"),
        ({"id": "two"}, "another eval has the id codes/two"),
    ],
)
def test_broken_eval_is_refused_alone_and_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    folder = skill(tmp_path / "codes", EVALS[1], {**EVALS[0], **change})
    (folder / "out").symlink_to("/etc/hostname")
    read = found(folder)
    assert [task.id for task in read.tasks] == ["codes/two"]
    assert [why in each.why and "evals.json, eval 2" in each.why for each in read.refused] == [True]


def test_digest_of_an_eval_is_of_what_it_shows_and_not_of_its_skill(tmp_path: Path) -> None:
    folder = skill(tmp_path / "codes")
    before = {task.id: task.digest for task in found(folder).tasks}
    (folder / "SKILL.md").write_text("---\nname: codes\ndescription: Anew.\n---\n")
    assert {task.id: task.digest for task in found(folder).tasks} == before
    (folder / "evals/files/a.csv").write_text("5\n")
    changed = {task.id: task.digest for task in found(folder).tasks}
    assert [name for name in before if before[name] != changed[name]] == ["codes/two"]


def test_eval_without_tests_needs_a_judge(tmp_path: Path) -> None:
    first, *_, fourth = found(skill(tmp_path / "codes")).tasks
    require_work(fourth, judged=False)
    with pytest.raises(KoderzError, match="add tests to the eval, or name a model with --judge-model"):
        require_work(first, judged=False)


def test_suite_says_who_judges_and_what_is_wrong_with_the_skill(tmp_path: Path) -> None:
    pytest.importorskip("skills_ref")
    folder = skill(tmp_path / "codes", name="Codes")
    suite = RolloutsSuite.load(SuiteSource(folder, RolloutsOptions(judge_model="simulated"), sandbox="local"))
    told = "\n".join(suite.notices)
    assert "3 by the role judge, 1 by their tests" in told
    assert "not as agentskills.io specifies: Skill name 'Codes' must be lowercase" in told
    assert [*skill_problems(skill(tmp_path / "good/codes"))] == []
    (folder / "SKILL.md").write_bytes(b"\xff")
    assert "can't decode byte 0xff" in next(skill_problems(folder))


def judged(*replies: str) -> tuple[dict[str, Any], list[str]]:
    task = Rollout(Path(), "evals", "c/1", "c", "Write 42.", skill_eval=SkillEval("c", "42", ("It is 42", "Alone")))
    left, asked = [*replies], list[str]()

    async def ask(messages: list[Message], **_: Any) -> Any:
        asked.append("\n".join(str(each["content"]) for each in messages))

        class Said:
            text = left.pop(0)

        return Said

    return asyncio.run(opinions(task, "+42", ask, "I wrote it.")), asked


def test_judge_sees_changes_and_message_and_says_what_holds() -> None:
    said, asked = judged('{"passed": true, "evidence": "+42"}', '{"passed": false, "evidence": ""}')
    assert said["weighted_score"] == 0.5
    assert [each["score"] for each in said["rubric_scores"]] == [1.0, 0.0]
    assert said["rubric_scores"][0]["evidence"] == "+42"
    assert all(text in asked[0] for text in ("It is 42", "+42", "I wrote it."))
    assert "Alone" in asked[1]


@pytest.mark.parametrize("reply", ["no JSON", '{"passed": "yes"}', '{"passed": 1}'])
def test_expectation_without_a_verdict_is_no_failure(reply: str) -> None:
    said, _ = judged('{"passed": true, "evidence": ""}', reply)
    assert [each["score"] for each in said["rubric_scores"]] == [1.0, None]


@pytest.mark.slow
def test_run_of_evals_says_which_verdicts_a_model_made(koderz: Shell) -> None:
    folder = skill(koderz.folder / "codes")
    script = koderz.folder / "agent.sh"
    script.write_text("echo 42 > code.txt\n")
    common = ("--agent", "scripted", "--sandbox", "local", "--json")
    (koderz.folder / "run.toml").write_text(f'dataset = "{folder}"\nagent = "scripted"\nscript = "agent.sh"\n')
    run = json.loads(koderz("rollouts", "run", "run.toml", "--judge-model", "simulated", *common).out)
    found = {each["problem_id"]: each for each in run["results"]}
    assert {name: each.get("judged_by") for name, each in found.items()} == {
        **dict.fromkeys(("codes/1", "codes/two", "codes/3"), "model"),
        "codes/4": None,
    }
    assert all(each["success"] for each in found.values())
    (figures,) = run["rollouts"].values()
    assert figures["judged_by_model"] == 3
    koderz("benchmark", "calibrate", "latest", "--draw", "4", "-o", "labels.jsonl")
    rows = {each["task"]: each for each in map(json.loads, (koderz.folder / "labels.jsonl").read_text().splitlines())}
    assert "- It holds 42" in rows["codes/1"]["answer"]
    assert "+42" in rows["codes/1"]["answer"]
    assert "holds: " not in rows["codes/1"]["answer"]


def test_fault_names_the_expectation_that_the_judge_is_silent_on(tmp_path: Path) -> None:
    suite = RolloutsSuite.load(SuiteSource(skill(tmp_path / "codes"), RolloutsOptions(judge_model="simulated")))

    async def ask(*_: Any, **__: Any) -> Any:
        class Said:
            text = "hm"

        return Said

    class Context:
        def __init__(self, ask: Any) -> None:
            self.ask, self.workspace = ask, None

    with pytest.raises(Fault, match="no verdict of the judge on 'It holds 42'"):
        asyncio.run(suite.judge(suite.tasks[0], "+42", Context(ask)))  # type: ignore[arg-type]
    with pytest.raises(Fault, match="name one with --judge-model"):
        asyncio.run(suite.judge(suite.tasks[0], "+42", Context(None)))  # type: ignore[arg-type]


def test_skill_of_an_arm_comes_without_its_evals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (addition,) = read_additions("skill", str(skill(tmp_path / "codes")), tmp_path)
    kept = sorted(path.name for path in Path(addition.path).rglob("*") if path.is_file())
    assert kept == ["SKILL.md", "notes.md"]


def test_skill_of_an_arm_is_validated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skills_ref")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    skill(tmp_path / "codes", name="Other")
    dataset = f'dataset = "{skill(tmp_path / "evals/good", name="good")}"'
    text = f'{dataset}\nmodel = "m"\n[[arms]]\nname = "a"\nskills = ["codes"]\n'
    (tmp_path / "c.toml").write_text(text)
    suite = RolloutsSuite.load(
        SuiteSource(tmp_path / "c.toml", RolloutsOptions(judge_model="simulated"), sandbox="local")
    )
    assert any("skill codes: not as agentskills.io specifies: Skill name 'Other'" in each for each in suite.notices)
