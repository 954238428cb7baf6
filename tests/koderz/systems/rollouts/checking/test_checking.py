"""Whether tasks are fit to be used."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from koderz.cli import app
from koderz.errors import Unreachable
from koderz.systems.rollouts import checking
from koderz.systems.rollouts.suite import SAMPLE
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.rollouts.tasks.test_harbor import written


def _checked(times: int) -> checking.Checked:
    try:
        (found,) = asyncio.run(checking.check_tasks([load_task(SAMPLE / "greeting")], Local(), times=times))
    except Unreachable as error:
        pytest.skip(str(error))
    return found


@pytest.mark.slow
def test_check_finds_a_flaky_task_at_the_third_try(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tried = checking._graded, list[bool]()

    async def graded(task: Any, stores: Any, *, solve: bool) -> Any:
        """The third solution isn't carried out."""
        tried.append(solve)
        return await real(task, stores, solve=solve and tried.count(True) < 3)

    monkeypatch.setattr(checking, "_graded", graded)
    assert _checked(1) == checking.Checked("sample/greeting")
    tried.clear()
    assert "its own solution doesn't pass" in _checked(3).wrong
    assert tried == [True, False, True, False, True, False]


def test_check_names_a_task_without_a_solution(tmp_path: Path) -> None:
    (tmp_path / "tb_meta.json").write_text('{"task_id": "bare", "lm": {"instructions": "Do it."}}')
    try:
        (found,) = asyncio.run(checking.check_tasks([load_task(tmp_path)], Local()))
    except Unreachable as error:
        pytest.skip(str(error))
    assert "has no solution" in found.wrong


class Collection:
    """A folder of tasks whose checks are made up, and `koderz rollouts check` of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.checked = folder / "all", list[str]()
        self.stops_at = ""
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setattr(checking, "check", self._check)
        for name in ("sound", "unsound", "unprepared"):
            written(self.folder / name)
        (self.folder / "torn").mkdir()
        (self.folder / "torn/task.toml").write_text("[verifier\n")

    async def _check(self, task: Rollout, stores: object, times: int) -> checking.Checked:
        if task.id == self.stops_at:
            raise KeyboardInterrupt
        self.checked.append(task.id)
        wrong = "" if task.id == "sound" else f"{task.id} isn't"
        return checking.Checked(task.id, wrong, is_prepared=task.id != "unprepared")

    def __call__(self, *words: str, code: int = 1) -> Result:
        self.checked.clear()
        done = CliRunner().invoke(app, ["rollouts", "check", str(self.folder), "--sandbox", "uncontained", *words])
        assert done.exit_code == code, done.output
        return done


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    return Collection(tmp_path, monkeypatch)


def test_check_tells_what_became_of_each_task(collection: Collection) -> None:
    done = collection()
    assert done.stdout.splitlines()[1:] == [
        "ok      sound",
        "failed  unprepared: unprepared isn't",
        "failed  unsound: unsound isn't",
    ]
    assert done.stdout.startswith("refused  torn: ")
    assert "4 tasks: 3 accepted, 3 checked, 2 prepared, 1 sound\n" in done.stderr
    assert "1  refused     task.toml: not TOML" in done.stderr
    listed = [json.loads(line) for line in Path(done.stderr.rpartition("list: ")[2].strip()).read_text().splitlines()]
    assert {row["id"]: row["status"] for row in listed} == {
        **{name: name for name in ("sound", "unsound", "unprepared")},
        "torn": "refused",
    }


def test_check_resumes_and_says_it_as_json(collection: Collection) -> None:
    collection("--limit", "1", "--json", "--skip-unrunnable", code=0)
    assert collection.checked == ["sound"]
    (collection.folder / "unsound/instruction.md").write_text("Another.\n")

    found = json.loads(collection("--resume", "--json").stdout)

    assert collection.checked == ["unprepared", "unsound"]
    assert {name: found[name] for name in ("tasks", "refused", "accepted", "checked", "prepared", "sound")} == {
        "tasks": 4,
        "refused": 1,
        "accepted": 3,
        "checked": 3,
        "prepared": 2,
        "sound": 1,
    }
    assert [(each["status"], each["number"], each["example"]) for each in found["reasons"]] == [
        ("refused", 1, "torn"),
        ("unprepared", 1, "unprepared"),
        ("unsound", 1, "unsound"),
    ]
    collection()
    assert len(collection.checked) == 3


def test_check_that_is_stopped_keeps_what_is_done(collection: Collection) -> None:
    collection.stops_at = "unsound"
    done = collection(code=130)
    assert "3 checked" not in done.stderr
    assert "2 checked" in done.stderr
    assert "--resume goes on" in done.stderr

    collection.stops_at = ""
    collection("--resume")
    assert collection.checked == ["unsound"]
