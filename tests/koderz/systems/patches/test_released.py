"""Released packages: fetched by pip, held to their hashes, and measured."""

from __future__ import annotations

import asyncio
import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import KoderzError, Unreachable
from koderz.settings.schema import Settings
from koderz.suites import load_suite
from koderz.suites.suite import SuiteSource
from koderz.systems.patches.checking import check_tasks
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.sources import fetch, released_tasks, tasks_of, unpack
from koderz.systems.patches.suite import Pypi
from tests.conftest import Shell

TASK = "packaging-26.3"


def _wheel(folder: Path, *names: str) -> str:
    """A wheel of these files where pip looks for it, as a requirement that holds it to its hash."""
    folder.mkdir(exist_ok=True)
    path = folder / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(name, "")
        wheel.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    return f"demo==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all the package index that pip has, and an empty cache."""
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path / "index")), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "index"


def test_tasks_are_two_versions_each_with_pinned_wheels() -> None:
    tasks = released_tasks()
    assert TASK in {task.id for task in tasks}
    for task in tasks:
        lines = [line for side in task.wheels for line in side]
        assert all(len(line.partition(" --hash=sha256:")[2]) == 64 for line in lines)
        assert task.base_commit != task.human_commit
    assert tasks_of(None, "koderz-perf-pypi") == tasks
    with pytest.raises(KoderzError, match="--dataset FILE"):
        load_suite("gso")


@pytest.mark.slow
def test_wheel_is_fetched_once_unless_damaged(index: Path, tmp_path: Path) -> None:
    line = _wheel(index, "demo/__init__.py", "demo/more.py")
    task = replace(released_tasks()[0], wheels=((line,), (line,)))
    asyncio.run(fetch([task]))
    tree = tmp_path / "tree"
    tree.mkdir()
    (place,) = (tmp_path / "cache").rglob("*.whl")
    place.write_bytes(b"damaged")
    asyncio.run(unpack([line], tree))
    (index / "demo-1.0-py3-none-any.whl").unlink()
    asyncio.run(unpack([line], tree))
    assert sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.*")) == [
        *("demo/__init__.py", "demo/more.py")
    ]


def test_wheel_other_than_the_pinned_one_is_never_used(index: Path, tmp_path: Path) -> None:
    line = _wheel(index, "demo.py")
    _wheel(index, "demo.py", "other.py")
    with pytest.raises(Unreachable, match=r"needs demo==1.0 by pip, from a package index"):
        asyncio.run(unpack([line], tmp_path))


def test_wheel_that_leads_out_of_the_tree_is_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="leads out"):
        asyncio.run(unpack([_wheel(index, "../out.py")], tmp_path))


def test_missing_index_is_told_in_one_line(tmp_path: Path, koderz: Shell) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    done = koderz("perf", "run", TASK, "--suite", "koderz-perf-pypi", "--mode", "human", code=4, env=nowhere)
    assert [line for line in done.err.splitlines() if "packaging==25.0 by pip" in line]
    assert not [*koderz.results.glob("*")]


@pytest.mark.slow
def test_release_that_made_something_faster_is_measured() -> None:
    (task,) = (task for task in released_tasks() if task.id == TASK)
    try:
        asyncio.run(fetch([task]))
    except Unreachable as error:
        pytest.skip(str(error))
    (checked,) = asyncio.run(
        check_tasks(Pypi.load(SuiteSource(None, PerformanceOptions())), [TASK], Settings(), lambda _: None)
    )
    assert not checked.wrong
    assert checked.told.startswith("opt")
