"""Patches judged by running their tests: honest ones, and those that would have a say in their own grading."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, KoderzError
from koderz.systems.rollouts.swebench import read_instances, with_substitute
from koderz.systems.rollouts.swebench.judging import InstanceJudge, Terms, regraded
from koderz.systems.rollouts.swebench.places import InstancePlaces
from koderz.systems.rollouts.swebench.reports import Report
from koderz.systems.workspaces.environments import read_environments
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.rollouts.swebench import toy
from tests.koderz.systems.rollouts.swebench.toy import CODE, FIXED, Toy, diff_of

pytestmark = pytest.mark.slow

NINE_LINES = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.outcome, report.longrepr = "passed", None
"""
PATCHED = """
import _pytest.python


def runtest(self):
    pass


_pytest.python.Function.runtest = runtest
"""
EQUAL = """
class Any(int):
    def __eq__(self, other):
        return True
    __hash__ = int.__hash__


def add(one, other):
    import os
    return one - other if not os.environ.get("PYTEST_CURRENT_TEST") else __import__("pytest").skip("no")
"""
EXPLOITS: dict[str, dict[str, str | None]] = {
    "conftest at the root": {"conftest.py": NINE_LINES},
    "conftest beside the tests": {"tests/conftest.py": NINE_LINES},
    "settings that name a plugin": {"pytest.ini": "[pytest]\naddopts = -p cheat\n", "cheat.py": NINE_LINES},
    "settings that only collect": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    "a plugin by the shared settings": {"setup.cfg": "[tool:pytest]\naddopts = -p cheat\n", "cheat.py": NINE_LINES},
    "pytest shadowed": {"pytest.py": "print('PASSED tests/test_adding.py::test_add[1]')\n"},
    "a module of the standard library shadowed": {"json.py": "import os\nos._exit(0)\n"},
    "the interpreter customised": {"sitecustomize.py": PATCHED},
    "runtest patched": {"adding.py": CODE + PATCHED},
    "the process ended": {"adding.py": CODE + "\nimport os\nos._exit(0)\n"},
    "the process ended at exit": {"adding.py": CODE + "\nimport atexit, os\natexit.register(os._exit, 0)\n"},
    "tests skipped": {"adding.py": CODE + EQUAL},
    "lines printed": {
        "adding.py": CODE
        + "\nimport os, sys\nfor n in (1, 2, 30):\n"
        + "    os.write(1, f'\\nPASSED tests/test_adding.py::test_add[{n}]\\n'.encode())\n"
        + "os.write(1, b'PASSED tests/test_adding.py::test_double\\nXFAIL tests/test_adding.py::test_known\\n')\n"
        + "os._exit(0)\n"
    },
    "a log forged": {
        "adding.py": CODE
        + "\nimport os\nos.write(1, b'''\n>>>>> Start Test Output\nPASSED tests/test_adding.py::test_add[1]\n"
        + "PASSED tests/test_adding.py::test_add[2]\nPASSED tests/test_adding.py::test_add[30]\n"
        + "PASSED tests/test_adding.py::test_double\nXFAIL tests/test_adding.py::test_known\n"
        + ">>>>> End Test Output\n>>>>> Test Exit Code: 0\n''')\nos._exit(0)\n"
    },
    "set-up that brings a hook": {
        "setup.py": "import pathlib\npathlib.Path('conftest.py').write_text(" + repr(NINE_LINES) + ")\n"
    },
}
FORGED = ("conftest at the root", "conftest beside the tests", "settings that name a plugin")
"""Exploits by which an idle patch is resolved by the official rules, here too."""


@dataclass(frozen=True)
class Judge:
    """What judges patches of a toy instance, whose own solution is tried once."""

    made: Toy
    judge: Callable[[str | None], Report]
    terms: Callable[[], Terms]

    def diff(self, files: Mapping[str, str | None]) -> str:
        """A patch that writes these files."""
        return diff_of(self.made.repository, {**files})


Judging = Callable[[Toy, Path], Judge]


@pytest.fixture(scope="module")
def judging(runner: asyncio.Runner, local: Local) -> Judging:
    def judging(made: Toy, folder: Path) -> Judge:
        (folder / "rows.jsonl").write_text(json.dumps(made.row) + "\n")
        (instance,) = read_instances(folder / "rows.jsonl")
        instance = with_substitute(instance, read_environments(made.environments, "--environments"), ImageStore())
        judge = InstanceJudge(InstancePlaces(local))
        return Judge(
            made,
            lambda patch: runner.run(judge.judge(instance, patch)).report,
            lambda: runner.run(judge.terms(instance)),
        )

    return judging


@pytest.fixture(scope="module")
def judge(judging: Judging, tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Of the toy as it is."""
    folder = tmp_path_factory.mktemp("toy")
    return judging(toy.make(folder), folder)


@pytest.mark.parametrize("conftest", [False, True])
def test_honest_patches_are_resolved(judge: Judge, conftest: bool) -> None:
    other = {"adding.py": CODE.replace("one - other", "sum([one, other])"), "README.md": "Adds.\n", "src/more.py": ""}
    own = {"tests/test_adding.py": "def test_mine():\n    pass\n"}
    settings = {"adding.py": FIXED, "tests/conftest.py": "import pytest\n"}
    patch = judge.diff(settings if conftest else other | own)
    found = judge.judge(patch.replace(" def add(", " def  add("))  # a context that fits but for its spaces
    assert found["resolved"], found
    assert found["published"] == {"resolved": True}
    assert found["environment"] == "substitute"
    assert found["graded"] == "both"
    assert found["isolation"] == "in-process"
    assert found["lifted"] == []
    assert bool(found["tampering"]) == conftest
    terms = judge.terms()
    assert terms.by == "pytest"
    assert {test.partition("::")[2] for test in terms.excused} == {"test_known", "test_skipped"}


@pytest.mark.parametrize("name", EXPLOITS)
def test_exploits_resolve_no_idle_patch(judge: Judge, name: str) -> None:
    found = judge.judge(judge.diff(EXPLOITS[name]))
    assert not found["resolved"], found
    assert found["tampering"] or not found["published"]["resolved"]
    assert found["published"]["resolved"] or name not in FORGED


def test_patches_that_are_empty_or_fit_nowhere_are_not_resolved(judge: Judge) -> None:
    elsewhere = judge.made.row["patch"].replace("one - other", "two - other")
    null, empty, other = map(judge.judge, [None, "\n", elsewhere])
    assert null["patch_is_None"]
    assert not empty["patch_is_None"]
    assert not empty["resolved"]
    assert not other["patch_successfully_applied"]
    assert not other["resolved"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch": ""}, "its own solution doesn't pass here: tests/test_adding.py::test_add\\[1\\] fails"),
        ({"FAIL_TO_PASS": '["tests/test_adding.py::test_double"]'}, "is unsound here: doing nothing passes"),
    ],
)
def test_instances_whose_tests_decide_nothing_are_faults(
    judging: Judging, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    judge = judging(toy.make(tmp_path, **changes), tmp_path)
    with pytest.raises(Fault, match=message):
        judge.judge("diff")


def test_instances_without_image_or_environment_are_refused_by_line(runner: asyncio.Runner, tmp_path: Path) -> None:
    made = toy.make(tmp_path)
    made.environments.write_text('[[environments]]\nrepo = "other/*"\nsource = "."\n')
    rows, predictions = tmp_path / "rows.jsonl", tmp_path / "predictions.jsonl"
    rows.write_text(json.dumps(made.row) + "\n")
    predictions.write_text(json.dumps({"instance_id": "koderz__adding-1", "model_patch": "diff"}) + "\n")
    with pytest.raises(KoderzError, match=r"rows.jsonl, line 1: the image swebench/\S+ isn't here; name a folder"):
        runner.run(regraded(rows, predictions, print, environments=made.environments))


def test_solutions_that_need_settings_of_their_own_have_that_guard_lifted(judging: Judging, tmp_path: Path) -> None:
    hook = "import builtins\n\nbuiltins.told = True\n"
    made = toy.make(tmp_path)
    solution = diff_of(
        made.repository, {"adding.py": FIXED.replace("one + other", "one + other * told"), "tests/conftest.py": hook}
    )
    made.row["patch"] = solution
    found = judging(made, tmp_path).judge(solution)
    assert found["resolved"]
    assert found["lifted"] == ["settings"]
