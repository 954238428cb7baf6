"""Tasks: the embedded repositories, a tasks.toml, and how one is chosen."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.sandbox.workspace import git
from koderz.suites.performance.mini import KINDS, commit_of, mini_tasks
from koderz.suites.performance.tasks import chosen, read_tasks
from tests.conftest import Shell

_WORKLOAD = "def inputs(rng, i):\n    return i\n\n\ndef call(x):\n    return x\n"
_ROW = """
[[tasks]]
repo = "repo"
base_commit = "0000000"
human_patch = "human.diff"
workloads = ["work.py"]
"""


def _written(folder: Path, text: str = _ROW, workload: str = _WORKLOAD) -> Path:
    (folder / "work.py").write_text(workload)
    (folder / "human.diff").write_text("")
    (folder / "tasks.toml").write_text(text)
    return folder / "tasks.toml"


def test_the_embedded_repositories_have_the_commits_that_git_gives_them(tmp_path: Path) -> None:
    async def committed(task_number: int) -> str:
        tree = tmp_path / f"tree-{task_number}"
        tree.mkdir()
        for path, text in mini_tasks()[task_number].files.items():
            git.write(tree, path, text.encode())
        return (await git.stored(tree, tmp_path / f"store-{task_number}")).commit

    assert asyncio.run(committed(0)) == mini_tasks()[0].base_commit
    assert mini_tasks()[0].base_commit.startswith("28eda5c"), "what a hash names doesn't change"
    assert commit_of({"a/b": "1", "a.c": "2"}, "x") != commit_of({"a/b": "1", "a.c": "3"}, "x")


def test_each_embedded_task_has_patches_of_nine_kinds_and_begins_with_another() -> None:
    tasks = mini_tasks()
    assert len({task.id for task in tasks}) == 9
    assert [task.canned[0].kind for task in tasks] == [*KINDS]
    assert all({canned.kind for canned in task.canned} == {*KINDS} for task in tasks)


def test_tasks_are_listed_with_their_commits_and_needs(koderz: Shell) -> None:
    (first, *others) = json.loads(koderz("perf", "tasks", "--json").out)
    assert len(others) == 8
    assert first["id"] == "koderz-mini__dedupe"
    assert first["kind"] == "workload"
    assert first["needs"] == {"cores": 1, "minutes": 1.0, "processes": False}
    assert len(first["base_commit"]) == len(first["human_commit"]) == 40
    assert first["human_commit"][:7] in koderz("perf", "tasks").out


def test_a_file_of_tasks_is_read_with_what_lies_beside_it(tmp_path: Path) -> None:
    (task,) = read_tasks(_written(tmp_path))
    assert task.id.startswith("repo-")
    assert task.repo == str(tmp_path / "repo")
    assert task.workloads == {"work": _WORKLOAD}


@pytest.mark.parametrize(
    ("text", "workload", "said"),
    [
        ("", _WORKLOAD, "[[tasks]]"),
        (_ROW + "color = 1\n", _WORKLOAD, "there is no color"),
        (_ROW.replace('human_patch = "human.diff"', ""), _WORKLOAD, "human_commit or human_patch"),
        (_ROW, "def inputs(rng, i):\n    return 1\n", "call(x)"),
        (_ROW, "def inputs(\n", "no Python"),
        (_ROW + 'tests = ["../tests.py"]\n', _WORKLOAD, "leads out of the repository"),
        (_ROW.replace("work.py", "gone.py"), _WORKLOAD, "can't be read"),
        (_ROW + _ROW, _WORKLOAD, "two tasks have the id"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, workload: str, said: str) -> None:
    with pytest.raises(KoderzError) as error:
        read_tasks(_written(tmp_path, text, workload))
    assert said in str(error.value)


def test_a_task_is_chosen_by_its_id_or_by_seven_digits_of_its_commit() -> None:
    tasks = mini_tasks()
    assert chosen(tasks, [tasks[3].human_commit[:7], tasks[1].id, tasks[3].id]) == [tasks[3].id, tasks[1].id]
    for unknown in ("0000000", tasks[0].human_commit[:6], "dedupe"):
        with pytest.raises(KoderzError, match="there is no task or human commit"):
            chosen(tasks, [unknown])
