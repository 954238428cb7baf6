"""A suite of patches in one file: loaded elsewhere, it is the same, and needs nothing of this machine."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.suites.suite import SuiteSource
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.suite import Mini, kit_of, packed
from koderz.systems.patches.trees import Trees
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.patches.conftest import FAST, SLOW, WORKLOAD

PATCH = "--- a/sums.py\n+++ b/sums.py\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A tasks.toml about a repository beside it."""
    (tmp_path / "repo").mkdir()
    commits = []
    for source in (SLOW, FAST):
        (tmp_path / "repo/sums.py").write_text(source)
        for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm a", "rev-parse HEAD"):
            command = ["git", "-C", str(tmp_path / "repo"), *words.split()]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        commits.append(done.stdout.strip())
    (tmp_path / "sums_work.py").write_text(WORKLOAD)
    (tmp_path / "tasks.toml").write_text(
        f'[[tasks]]\nid = "t"\nrepo = "repo"\nbase_commit = "{commits[0]}"\nhuman_commit = "{commits[1]}"\n'
        'workloads = ["sums_work.py"]\n'
    )
    return tmp_path / "tasks.toml"


def moved(data: bytes, folder: Path) -> Path:
    """A file of that, and nothing else in the folder."""
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    (folder / "packed").write_bytes(data)
    return folder / "packed"


def test_embedded_tasks_are_the_same(tmp_path: Path) -> None:
    suite = Mini.load(SuiteSource(None, PerformanceOptions()))
    again = Mini.load(SuiteSource(moved(suite.packed(), tmp_path), PerformanceOptions()))
    assert [(task.id, task.digest) for task in again.tasks] == [(task.id, task.digest) for task in suite.tasks]
    assert (again.name, again.source) == (suite.name, suite.source)
    assert again.packed() == suite.packed()


def test_packing_includes_local_repository_and_patches(dataset: Path, local: Local) -> None:
    folder = dataset.parent
    (folder / "patches").mkdir()
    row = json.dumps({"instance_id": "t", "model_patch": PATCH})
    (folder / "patches/someone.jsonl").write_text(row)
    other = PATCH.replace("+b", "+c")
    (folder / "p.jsonl").write_text(f"{row}\n{json.dumps({'instance_id': 't', 'model_patch': other})}\n")
    options = PerformanceOptions(predictions=(str(folder / "p.jsonl"),), patches=folder / "patches")
    before = kit_of("koderz-perf-mini", dataset, options)
    kit = kit_of("koderz-perf-mini", moved(packed(before, options), folder), options)
    (task,) = kit.tasks
    assert task.digest == before.tasks[0].digest
    assert kit.user_patches("someone", options) == {"t": (PATCH,)}
    assert kit.user_patches("", options) == {"t": (PATCH, other)}
    assert kit.user_patches("nobody", options) == {}

    async def trees() -> list[Path]:
        made = Trees(local, packed=kit.trees)
        return [await made.base(task), await made.human(task)]

    assert [(tree / "sums.py").read_text() for tree in asyncio.run(trees())] == [SLOW, FAST]


def test_packing_refuses_what_only_this_machine_has(dataset: Path) -> None:
    folder = dataset.parent
    (folder / "rules.toml").write_text('[[images]]\nbase = "me/x"\nbuild = "."\n')
    with pytest.raises(KoderzError, match="can't be sent elsewhere: push it"):
        Mini.load(SuiteSource(dataset, PerformanceOptions(overrides=folder / "rules.toml"))).packed()
    shutil.rmtree(folder / "repo")
    with pytest.raises(KoderzError, match="git: "):
        Mini.load(SuiteSource(dataset, PerformanceOptions())).packed()
