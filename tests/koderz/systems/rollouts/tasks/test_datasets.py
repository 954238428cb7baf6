"""Datasets: folders, names in registries, tasks in repositories by commit; damaged ones are one line each."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError, Unreachable
from koderz.suites.suite import SuiteSource
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.suite import RolloutsSuite
from koderz.systems.rollouts.tasks.config import read_config
from koderz.systems.rollouts.tasks.datasets import Dataset, read_dataset
from koderz.systems.rollouts.tasks.runnable import Omission, Reason, by_reason
from tests.koderz.systems.rollouts.tasks.test_harbor import written


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def registry(folder: Path, *datasets: Any) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "registry.json"
    path.write_text(json.dumps(datasets))
    return str(path)


def dataset(version: str = "1.0", *tasks: Any, name: str = "bench") -> dict[str, Any]:
    return {"name": name, "version": version, "description": "d", "tasks": [*tasks], "metrics": []}


def found(name: str, where: str) -> Dataset:
    return read_dataset(Path(name), where, {})


def repository(folder: Path) -> str:
    own = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*own, *words], cwd=folder, check=True, capture_output=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def serving(content: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/registry.json"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_dataset_of_local_tasks_is_found_beside_the_registry(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / "all/tasks" / name)
    rows = [{"name": name, "path": f"tasks/{name}"} for name in ("one", "two")]
    where = registry(tmp_path / "all", dataset("1.0", rows[0]), dataset("2.0", *rows))
    assert [task.id for task in found("bench@1.0", where).tasks] == ["one"]
    whole = found("bench", where)
    assert [task.id for task in whole.tasks] == ["one", "two"]
    assert (whole.about["name"], whole.about["version"], whole.about["registry"]) == ("bench", "2.0", where)
    (tmp_path / "all/tasks/two/tests/test.sh").write_text("false\n")
    changed = found("bench", where)
    assert changed.about["digest"] != whole.about["digest"]
    assert changed.about["entry_digest"] == whole.about["entry_digest"]


@pytest.mark.parametrize(
    ("versions", "newest"),
    [(["2.0", "10.0", "9.1"], "10.0"), (["1.0", "head"], "head"), (["b", "a"], "b"), (["1.0", "1.0rc1", "x"], "1.0")],
)
def test_newest_version_is_taken(tmp_path: Path, versions: list[str], newest: str) -> None:
    written(tmp_path / "all/t")
    where = registry(tmp_path / "all", *(dataset(version, {"name": "t", "path": "t"}) for version in versions))
    assert found("bench", where).about["version"] == newest


def test_tasks_of_a_repository_are_fetched_once_by_commit(tmp_path: Path) -> None:
    written(tmp_path / "source/tasks/one")
    written(tmp_path / "source/tasks/two")
    commit = repository(tmp_path / "source")
    rows = [
        {"name": name, "git_url": "../source", "git_commit_id": commit, "path": f"tasks/{name}"}
        for name in ("one", "two")
    ]
    where = registry(tmp_path / "all", dataset("1.0", *rows))
    first = found("bench", where)
    assert [task.id for task in first.tasks] == ["one", "two"]
    (tmp_path / "source").rename(tmp_path / "gone")
    assert [task.digest for task in found("bench", where).tasks] == [task.digest for task in first.tasks]
    assert not list((tmp_path / "cache/koderz/tasks").glob("tmp*"))


def test_commit_that_the_repository_lacks_is_one_line(tmp_path: Path) -> None:
    written(tmp_path / "source/t")
    repository(tmp_path / "source")
    row = {"name": "t", "git_url": "../source", "git_commit_id": "0" * 40, "path": "t"}
    with pytest.raises(KoderzError, match=r"bench@1\.0: 000000000000 of .*source can't be fetched"):
        found("bench", registry(tmp_path / "all", dataset("1.0", row)))
    assert not [*(tmp_path / "cache/koderz/tasks").iterdir()]


def test_registry_may_be_fetched(tmp_path: Path) -> None:
    written(tmp_path / "source/t")
    commit = repository(tmp_path / "source")
    url = (tmp_path / "source").as_uri()
    row = {"name": "t", "git_url": url, "git_commit_id": commit, "path": "t"}
    with serving(json.dumps([dataset("1.0", row)]).encode()) as where:
        assert [task.id for task in found("bench", where).tasks] == ["t"]
    with pytest.raises(Unreachable, match="can't be fetched"):
        found("bench", where)


def test_registry_that_is_not_there_is_unreachable() -> None:
    with serving(b"", 404) as where, pytest.raises(Unreachable, match=r"can't be fetched: .*404"):
        found("bench", where)


def test_fetched_registry_names_no_folders_of_this_machine() -> None:
    with (
        serving(json.dumps([dataset("1.0", {"name": "t", "path": "etc"})]).encode()) as where,
        pytest.raises(KoderzError, match="etc has no git_url, and lies on another machine"),
    ):
        found("bench", where)


@pytest.mark.parametrize("path", ["../t", "/etc", "a/../../t", "", "~/t", "a\\..\\b"])
def test_path_that_leaves_its_repository_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(KoderzError, match="has to be relative, without"):
        found("bench", registry(tmp_path / "all", dataset("1.0", {"name": "t", "path": path})))


@pytest.mark.parametrize("commit", [None, "main", "HEAD", "abc", "--upload-pack=x", "0" * 39])
def test_commit_has_to_be_whole(tmp_path: Path, commit: str | None) -> None:
    row = {"name": "t", "git_url": "https://example.org/x", "git_commit_id": commit, "path": "t"}
    with pytest.raises(KoderzError, match="t needs a git_commit_id of 40 hex digits"):
        found("bench", registry(tmp_path / "all", dataset("1.0", row)))


@pytest.mark.parametrize("url", ["ssh://x/y", "ext::sh -c true", "git@x:y", "http://x/y"])
def test_repositories_are_fetched_by_https_or_from_here(tmp_path: Path, url: str) -> None:
    row = {"name": "t", "git_url": url, "git_commit_id": "0" * 40, "path": "t"}
    with pytest.raises(KoderzError, match="can't be fetched"):
        found("bench", registry(tmp_path / "all", dataset("1.0", row)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "a registry is a list of datasets"),
        ("[3]", "dataset 1 has to be a table"),
        ('[{"nam": "x"}]', "dataset 1: unknown key 'nam'; did you mean 'name'"),
        ('[{"name": "x"}]', "dataset 1: Object missing required field `tasks`"),
        ('[{"name": "x", "tasks": [{"pat": "y"}]}]', "dataset 1, tasks: unknown key 'pat'; did you mean 'path'"),
        ('[{"name": "x", "tasks": [3]}]', "dataset 1: Expected `object`"),
        ('[{"name": "benhc", "tasks": []}]', "has no dataset 'bench'; did you mean 'benhc'"),
        ('[{"name": "bench", "version": "1", "tasks": []}]', "bench@1 has no tasks"),
        ('[{"name": "bench", "tasks": [{"path": "gone"}]}]', "there is no folder gone"),
    ],
)
def test_damaged_registry_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "registry.json").write_text(text)
    with pytest.raises(KoderzError, match=said) as error:
        found("bench", str(tmp_path / "registry.json"))
    assert "\n" not in str(error.value)


def test_name_without_registry_and_unknown_version_are_told(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="no folder bench@1; a dataset of that name needs --registry"):
        read_dataset(Path("bench@1"), None, {})
    with pytest.raises(KoderzError, match="bench has no version '3'; there are 1"):
        found("bench@3", registry(tmp_path / "all", dataset("1.0")))
    with pytest.raises(KoderzError, match=r"the registry .* can't be read \(No such file"):
        found("bench", str(tmp_path / "gone.json"))


def test_file_that_is_no_dataset_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.xlsx").touch()
    with pytest.raises(KoderzError, match="is no folder of tasks, no file of rows"):
        read_dataset(tmp_path / "x.xlsx", None, {})


def test_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / "all" / name, '[task]\nname = "org/x"')
    found = read_dataset(tmp_path / "all", None, {})
    assert len(found.tasks) == 1
    assert "two tasks have the id org/x" in found.refused[0].why


def test_configuration_names_a_dataset_above_its_tasks(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / "all" / name)
    written(tmp_path / "own")
    registry(tmp_path / "all", dataset("1.0", {"path": "one"}, {"path": "two"}))
    config = tmp_path / "c.toml"
    config.write_text('dataset = "bench@1.0"\nregistry = "all/registry.json"\nagent = "nop"\ntimeout_sec = 7\n')
    read = read_config(config)
    assert [
        (entry.agent, task.id, task.agent_seconds) for entry, task in zip(read.entries, read.tasks, strict=True)
    ] == [
        ("nop", "one", 7),
        ("nop", "two", 7),
    ]
    assert read.about["version"] == "1.0"
    config.write_text('dataset = "all"\n[[tasks]]\nprepared_dir = "own"\nagent = "oracle"\n')
    more = read_config(config)
    assert [(entry.agent, task) for entry, task in zip(more.entries, more.of_entries, strict=True)] == [
        ("oracle", "own"),
        ("koderz", "one"),
        ("koderz", "two"),
    ]


def test_task_that_cannot_be_loaded_is_refused_alone(tmp_path: Path) -> None:
    for name in ("able", "broken", "twin"):
        written(tmp_path / "all" / name)
    for name in ("torn", "untold"):
        (tmp_path / "all" / name).mkdir()
        (tmp_path / "all" / name / "task.toml").write_text("[verifier\n" if name == "torn" else "")
    (tmp_path / "all/broken/instruction.md").write_text("\n")
    (tmp_path / "all/twin/task.toml").write_text('[task]\nname = "able"\n')

    suite = RolloutsSuite.load(SuiteSource(tmp_path / "all", RolloutsOptions(skip_unrunnable=True), sandbox="local"))
    assert [task.id for task in suite.tasks] == ["able"]
    assert suite.notices[0] == "4 of 5 tasks are left out:"
    told = "\n".join(suite.notices)
    assert f"1  such as torn: {tmp_path}/all/torn/task.toml: not TOML" in told
    assert "twin: " in told
    assert "two tasks have the id able" in told

    with pytest.raises(KoderzError, match=r"torn/task.toml: not TOML .* \(and 3 more of 5\); --skip-unrunnable leaves"):
        RolloutsSuite.load(SuiteSource(tmp_path / "all", RolloutsOptions(), sandbox="local"))


def test_left_out_tasks_are_counted_by_reason() -> None:
    left_out = [
        Omission(f"t{n}", f"/all/t{n}/environment/Dockerfile, line {n}: COPY to /tmp/{n}/, outside of WORKDIR")
        for n in range(3)
    ]
    found = by_reason([Omission("x", "/all/x/task.toml: environment.gpus = 2 needs --sandbox modal"), *left_out])
    assert found == [
        Reason("Dockerfile…: COPY to , outside of WORKDIR", 3, "t0"),
        Reason("task.toml: environment.gpus = … needs --sandbox modal", 1, "x"),
    ]


def test_unrunnable_tasks_are_left_out_and_counted(tmp_path: Path) -> None:
    written(tmp_path / "all/able")
    written(tmp_path / "all/gpu", "[environment]\ngpus = 1")
    options = RolloutsOptions(skip_unrunnable=True)
    suite = RolloutsSuite.load(SuiteSource(tmp_path / "all", options, sandbox="local"))
    assert [task.id for task in suite.tasks] == ["able"]
    assert suite.notices[0] == "1 of 2 tasks are left out:"
    assert "gpu: " in suite.notices[1]
    assert len(RolloutsSuite.load(SuiteSource(tmp_path / "all", options, sandbox="modal")).tasks) == 2
