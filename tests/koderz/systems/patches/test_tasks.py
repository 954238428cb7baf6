"""Tasks: the embedded repositories, a tasks.toml, and how one is chosen."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.patches.sources import KINDS, commit_of, mini_tasks
from koderz.systems.patches.tasks import METRICS, PerfTask, chosen, read_tasks
from koderz.systems.workspaces import git
from tests.conftest import Shell

_WORKLOAD = "def inputs(rng, i):\n    return i\n\n\ndef call(x):\n    return x\n"
_ROW = """
[[tasks]]
repo = "repo"
base_commit = "0000000"
human_patch = "human.diff"
workloads = ["work.py"]
"""

_SERVED = _ROW.replace('workloads = ["work.py"]', 'serve = ["python3", "server.py", "{port}"]')


def _written(folder: Path, text: str = _ROW, workload: str = _WORKLOAD) -> Path:
    (folder / "work.py").write_text(workload)
    (folder / "human.diff").write_text("")
    (folder / "tasks.toml").write_text(text)
    return folder / "tasks.toml"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings, variables, language and permissions of a user who has git do everything otherwise."""
    (tmp_path / "home/hooks").mkdir(parents=True)
    (tmp_path / "home/hooks/post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/canary\n")
    (tmp_path / "home/hooks/post-checkout").chmod(0o755)
    (tmp_path / "home/.gitconfig").write_text(
        f"[core]\n\tautocrlf = true\n\tfileMode = false\n\thooksPath = {tmp_path}/home/hooks\n"
        f"\tattributesFile = {tmp_path}/home/attributes\n[init]\n\tdefaultObjectFormat = sha256\n"
        f'[filter "own"]\n\tclean = tr a-z A-Z\n\tsmudge = tr a-z A-Z\n[i18n]\n\tcommitEncoding = latin1\n'
    )
    (tmp_path / "home/attributes").write_text("* filter=own ident text eol=crlf\n")
    variables = {"HOME": f"{tmp_path}/home", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Tokyo", "GIT_DEFAULT_HASH": "sha256"}
    variables |= {"GIT_DIR": f"{tmp_path}/none", "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": f"{tmp_path}/index"}
    variables |= {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z", "GIT_COMMITTER_NAME": "Other", "GIT_CONFIG_COUNT": "1"}
    variables |= {"GIT_CONFIG_KEY_0": "core.autocrlf", "GIT_CONFIG_VALUE_0": "true"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_embedded_repositories_have_gits_commits(tmp_path: Path, request: pytest.FixtureRequest, where: str) -> None:
    if where == "elsewhere":
        request.getfixturevalue("foreign")

    async def committed(task: PerfTask) -> str:
        tree, other = tmp_path / task.id, tmp_path / f"{task.id}-clone"
        for folder in (tree, other):
            folder.mkdir()
        for path, text in task.files.items():
            git.write(tree, path, text.encode())
        store = await git.stored(tree, tmp_path / f"{task.id}.git")
        await store.checkout(other)
        assert {path: (other / path).read_text() for path in task.files} == task.files
        return store.commit

    commits = [asyncio.run(committed(task)) for task in mini_tasks()]
    assert commits == [task.base_commit for task in mini_tasks()]
    assert hashlib.sha256("".join(commits).encode()).hexdigest()[:16] == "cb54c629af632a61", (
        "what a hash names doesn't change"
    )
    humans = "".join(task.human_commit for task in mini_tasks())
    assert hashlib.sha256(humans.encode()).hexdigest()[:16] == "8e0a0f83b500fed3", "nor do those of the humans' answers"
    assert commit_of({"a/b": "1", "a.c": "2"}, "x") != commit_of({"a/b": "1", "a.c": "3"}, "x")
    assert not (tmp_path / "canary").exists()


def test_embedded_tasks_have_patches_of_nine_kinds() -> None:
    tasks = mini_tasks()
    assert len({task.id for task in tasks}) == 9
    assert [task.canned[0].kind for task in tasks] == [*KINDS]
    assert all({canned.kind for canned in task.canned} == {*KINDS} for task in tasks)


def test_tasks_are_listed_with_their_commits_and_needs(koderz: Shell) -> None:
    (first, *others) = json.loads(koderz("perf", "tasks", "--json").out)
    assert sorted(each["kind"] for each in others) == ["serving", *["workload"] * 7]
    assert first["id"] == "koderz-mini__dedupe"
    assert first["kind"] == "workload"
    assert first["needs"] == {"cores": 1, "minutes": 1.0, "processes": False, "memory_mb": 4096}
    assert len(first["base_commit"]) == len(first["human_commit"]) == 40
    assert first["human_commit"][:7] in koderz("perf", "tasks").out


def test_tasks_file_is_read_with_what_lies_beside_it(tmp_path: Path) -> None:
    (task,) = read_tasks(_written(tmp_path))
    assert task.id.startswith("repo-")
    assert task.repo == str(tmp_path / "repo")
    assert task.workloads == {"work": _WORKLOAD}


def test_server_with_its_load_is_a_task(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "once upon a time"}\n')
    bench = "--num-prompts 7 --dataset-name custom --dataset-path prompts.jsonl --request-rate=2.5 --ignore-eos"
    (task,) = read_tasks(_written(tmp_path, f'{_SERVED}bench = "{bench}"\n'))
    assert (task.kind, task.workloads, task.metrics) == ("serving", {}, METRICS["serving"])
    assert task.service
    load = task.service.load()
    assert (load.num_prompts, load.request_rate, load.ignore_eos) == (7, "2.5", True)
    assert load.dataset_path == tmp_path / "prompts.jsonl"
    assert task.service.words(port=81) == ["python3", "server.py", "81"]


def test_command_that_tells_its_figures_is_a_task(tmp_path: Path) -> None:
    row = _ROW.replace('workloads = ["work.py"]', 'command = ["python3", "b.py", "{output}"]\nkind = "latency"')
    (task,) = read_tasks(_written(tmp_path, row))
    assert (task.kind, task.metrics) == ("latency", ("avg_latency",))


@pytest.mark.parametrize(
    ("text", "workload", "said"),
    [
        ("", _WORKLOAD, "[[tasks]]"),
        (_ROW + "color = 1\n", _WORKLOAD, "unknown key 'color'; there are base_commit, bench, cluster"),
        (
            _ROW.replace("workloads", "workload"),
            _WORKLOAD,
            "number 1: unknown key 'workload'; did you mean 'workloads'?",
        ),
        (_ROW.replace("tasks", "task"), _WORKLOAD, "unknown key 'task'; did you mean 'tasks'?"),
        (_ROW + "needs = {core = 2}\n", _WORKLOAD, "needs: unknown key 'core'; did you mean 'cores'?"),
        (_ROW.replace('human_patch = "human.diff"', ""), _WORKLOAD, "human_commit or human_patch"),
        (_ROW, "def inputs(rng, i):\n    return 1\n", "call(x)"),
        (_ROW, "def inputs(\n", "no Python"),
        (_ROW + 'tests = ["../tests.py"]\n', _WORKLOAD, "leads out of the repository"),
        (_ROW.replace("work.py", "gone.py"), _WORKLOAD, "can't be read"),
        (_ROW + _ROW, _WORKLOAD, "two tasks have the id"),
        (_ROW + 'serve = ["python3", "server.py", "{port}"]\n', _WORKLOAD, "give workloads, or serve, or command"),
        (_ROW.replace('workloads = ["work.py"]', 'serve = ["python3", "server.py"]'), _WORKLOAD, "has no {port}"),
        (_SERVED + 'bench = "--colour 1"\n', _WORKLOAD, "a load has no --colour"),
        (_SERVED + 'bench = "--num-prompts none"\n', _WORKLOAD, "--num-prompts: invalid value"),
        (_SERVED + 'metric = "speed"\n', _WORKLOAD, "a load has no metric 'speed'"),
        (_SERVED + 'kind = "latency"\n', _WORKLOAD, "goes with command"),
        (_ROW + 'bench = "--num-prompts 1"\n', _WORKLOAD, "bench goes with serve"),
    ],
)
def test_tasks_file_errors_are_told(tmp_path: Path, text: str, workload: str, said: str) -> None:
    with pytest.raises(KoderzError) as error:
        read_tasks(_written(tmp_path, text, workload))
    assert said in str(error.value)


def test_missing_repository_is_one_line(koderz: Shell) -> None:
    _written(koderz.folder)
    for line in (("tasks",), ("run", "--dry-run", "--mode", "human"), ("check",)):
        done = koderz("perf", *line, "--dataset", "tasks.toml", code=2)
        assert done.out == ""
        assert done.err.startswith("koderz: tasks.toml: repo-e3b0c44: there is no repository ")
        assert len(done.err.splitlines()) == 1
    (koderz.folder / "repo").mkdir()
    assert koderz("perf", "tasks", "--dataset", "tasks.toml").out.startswith("repo-e3b0c44  0000000")


def test_task_is_chosen_by_id_or_seven_digits_of_its_commit() -> None:
    tasks = mini_tasks()
    assert chosen(tasks, [tasks[3].human_commit[:7], tasks[1].id, tasks[3].id]) == [tasks[3].id, tasks[1].id]
    for unknown in ("0000000", tasks[0].human_commit[:6], "dedupe"):
        with pytest.raises(KoderzError, match="there is no task or human commit"):
            chosen(tasks, [unknown])
