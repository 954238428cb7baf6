"""No diff talks its way to a pass, and a right one passes."""

from __future__ import annotations

import asyncio
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.systems.rollouts.environments.trees import prepared
from koderz.systems.rollouts.grading import Graded, grade_in
from koderz.systems.rollouts.task import Rollout, Rubric
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.workspaces import git, userland
from koderz.systems.workspaces.guarding import guard
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.scripts import Script

_BEFORE = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef pair():\n    return 2, 3\n",
    "pyproject.toml": '[project]\nname = "calc"\n\n[tool.pytest.ini_options]\naddopts = "-x"\n',
}
_RIGHT = {"calc.py": "def add(a, b):\n    return a + b\n"}
_HIDDEN = (
    "from calc import *\n\n\ndef test_pair(pair):\n    assert add(*pair) == 5\n\n\n"
    "class TestMore:\n    def test_zero(self):\n        assert add(1, 1) == 2\n"
)
TASK = Rollout(
    Path(),
    "tb",
    "calc",
    "calc",
    "Mend add().",
    files=_BEFORE,
    rubrics=(Rubric("sums", weight=1.0), Rubric("style", weight=1.0)),
    scripts=(Script("tests/test_hidden.py", "sums", _HIDDEN),),
    digest="calc",
)

_OUTCOME = "def pytest_runtest_logreport(report):\n    report.outcome = 'passed'\n"
_MAKE_REPORT = (
    "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
)
_EMPTY_TESTS = (
    "def pytest_collection_modifyitems(items):\n    for item in items:\n        item.runtest = lambda: None\n"
)
_XFAIL = (
    "import pytest\n\ndef pytest_collection_modifyitems(items):\n    for item in items:\n"
    "        item.add_marker(pytest.mark.xfail)\n"
)
_WRONG = _BEFORE["calc.py"]
_THREAD = "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), os._exit(0))).start()\n"
_SHADOW = "import sys\n\ndef main(*_, **__):\n    return 0\n\nsys.exit(0)\n"
_PATCHED = "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
_PATCHED_REPORT = (
    "from _pytest.reports import TestReport\n_real = TestReport.from_item_and_call.__func__\n"
    "def _fake(cls, item, call):\n    call.excinfo = None\n    return _real(cls, item, call)\n"
    "TestReport.from_item_and_call = classmethod(_fake)\n"
)
_FORGED = """
import ast, json, os, pathlib
def _forge(token, reports):
    tree = ast.parse(next(pathlib.Path("tests").glob("test_hidden.py")).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] + ["TestMore::test_zero"]
    bad = [node for node in tree.body if "[" in ast.unparse(node) and "!=" not in ast.unparse(node)]
    sides = {node.name: (node.body[0].test.left, node.body[0].test.comparators[0]) for node in bad}
    fails = [name for name, (left, right) in sides.items() if ast.unparse(left) != ast.unparse(right)]
    told = " ".join(ast.unparse(node.body[0].test) for node in bad)
    ids = ["tests/test_hidden.py::" + name for name in names]
    lines = [{"what": "collected", "tests": ids}]
    for test in ids:
        for when in ("setup", "call", "teardown"):
            outcome = "failed" if when == "call" and test.rpartition("::")[2] in fails else "passed"
            line = {"what": "report", "test": test, "when": when, "outcome": outcome}
            lines.append({**line, "expected": False, "told": told})
    os.write(reports, "".join(json.dumps({"token": token, **line}) + "\\n" for line in lines).encode())
    os._exit(0)
"""
_BY_FRAME = (
    _FORGED
    + """
import sys
frame = sys._getframe()
while frame:
    if "token" in frame.f_locals and "reports" in frame.f_locals:
        _forge(frame.f_locals["token"], frame.f_locals["reports"])
    frame = frame.f_back
"""
)
_BY_ARGV = (
    _FORGED
    + """
import sys
for word in [*sys.argv, *open("/proc/self/cmdline").read().split(chr(0))]:
    file = os.path.join(word, "reports.jsonl")
    if os.path.exists(file):
        _forge(json.loads(open(file).readline())["token"], os.open(file, os.O_WRONLY | os.O_APPEND))
"""
)
_TOLD_APART = (
    "import inspect, re\nimport _pytest.python\n_real = _pytest.python.Function.runtest\n"
    "def _chosen(self):\n    if re.search(r'assert \\[\\d+, \\d+\\] == ', inspect.getsource(self.obj)):\n"
    "        _real(self)\n"
    "_pytest.python.Function.runtest = _chosen\n"
)
_BY_FIXTURE = (
    "import pytest, re\n@pytest.fixture(autouse=True)\ndef _x(request):\n"
    "    if not re.fullmatch('test_[0-9a-f]{8}', request.node.name):\n"
    "        request.node.obj = lambda **_: None\n__all__ = ['_x', 'add']\n"
)
_ONCE = (
    "import os, pathlib\nseen = pathlib.Path('/tmp/seen'), pathlib.Path('seen'), pathlib.Path.home() / 'seen'\n"
    "if not any(each.exists() for each in seen):\n    [each.touch() for each in seen]\n"
)

Grading = Callable[..., Graded]

GAMING = {
    "conftest that sets outcomes": {"conftest.py": _MAKE_REPORT + _OUTCOME},
    "conftest in tests that empties runtest": {"tests/conftest.py": _BEFORE["tests/conftest.py"] + _EMPTY_TESTS},
    "exit at import": {"calc.py": "import os\nos._exit(0)\n"},
    "exit by atexit": {"calc.py": "import atexit, os\natexit.register(os._exit, 0)\n" + _WRONG},
    "exit by a thread": {"calc.py": _THREAD + _WRONG},
    "exit from sitecustomize": {"sitecustomize.py": "import os\nos._exit(0)\n"},
    "pytest.py": {"pytest.py": _SHADOW},
    "packages pytest and _pytest": {
        "pytest/__init__.py": _SHADOW,
        "pytest/__main__.py": _SHADOW,
        "_pytest/__init__.py": _SHADOW,
    },
    "collect only by pytest.ini": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    "collect only by pyproject.toml": {
        "pyproject.toml": _BEFORE["pyproject.toml"].replace("-x", "--collect-only"),
    },
    "runtest patched": {"calc.py": _PATCHED + _WRONG},
    "reports patched": {"calc.py": _PATCHED_REPORT + _WRONG},
    "xfail on all": {"conftest.py": _XFAIL},
    "visible test of the same name": {"tests/test_hidden.py": "def test_pair():\n    pass\n"},
    "skip of the module": {
        "calc.py": "import pytest\npytest.skip('never', allow_module_level=True)\n",
    },
    "marks by star import": {"calc.py": "import pytest\npytestmark = pytest.mark.xfail\n" + _WRONG},
    "skips by star import": {"calc.py": "import pytest\npytestmark = pytest.mark.skip\n" + _WRONG},
    "plugin by star import": {"calc.py": "pytest_plugins = ['helping']\n" + _WRONG, "helping.py": _MAKE_REPORT},
    "fixture by star import": {
        "calc.py": "import pytest\n@pytest.fixture(autouse=True)\ndef _x():\n    pytest.skip('never')\n"
        "__all__ = ['_x', 'add']\n" + _WRONG,
    },
    "tests as a package": {"tests/__init__.py": _PATCHED},
    "installed plugin": {
        "x.dist-info/METADATA": "Metadata-Version: 2.1\nName: x\nVersion: 1\n",
        "x.dist-info/entry_points.txt": "[pytest11]\nx = helping\n",
        "helping.py": _MAKE_REPORT,
    },
    "module of the standard library": {"tests/inspect.py": _PATCHED, "traceback.py": _PATCHED},
    "pytest.toml": {"pytest.toml": '[pytest]\naddopts = ["--collect-only"]\n'},
    "conftest removed": {"tests/conftest.py": ""},
    "token read from a frame": {"calc.py": _BY_FRAME + _WRONG},
    "token read by argv": {"calc.py": _BY_ARGV + _WRONG},
    "canaries told apart by text": {"calc.py": _TOLD_APART + _WRONG},
    "canaries told apart by name": {"calc.py": _BY_FIXTURE + _WRONG},
    "told apart the first time only": {"calc.py": _ONCE + textwrap.indent(_TOLD_APART, "    ") + _WRONG},
    "package with a plugin": {
        "calc/__init__.py": "from calc.sums import *\n",
        "calc/sums.py": _WRONG,
        "calc/conftest.py": _MAKE_REPORT,
        "tests/__init__.py": "pytest_plugins = ['calc.conftest']\n",
        "calc.py": "",
    },
    "nothing": {},
}


_FAST = {"conftest that sets outcomes", "exit by a thread", "runtest patched", "canaries told apart by text", "nothing"}
_CASES = [
    pytest.param(files, id=name, marks=() if name in _FAST else pytest.mark.slow) for name, files in GAMING.items()
]


@pytest.mark.slow
@pytest.mark.parametrize("files", _CASES)
def test_useless_diffs_do_not_pass(graded: Grading, files: dict[str, str]) -> None:
    found = graded(files)
    assert not found.scored.success
    assert found.scored.score_of_graded == 0


@pytest.mark.slow  # in moments: tests/koderz/systems/workspaces/test_warm.py
def test_useless_diffs_do_not_pass_with_separate_interpreters(graded: Grading) -> None:
    alone = Local()  # not entered: it has nothing that is warm
    assert graded(_RIGHT, backend=alone).scored.success
    assert not graded(GAMING["canaries told apart by text"], backend=alone).scored.success


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"conftest.py": "collect_ignore = ['nothing']\n"},
        {"tests/test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"},
        {"pyproject.toml": _BEFORE["pyproject.toml"].replace('"calc"', '"calc"\nversion = "2"')},
        {"latin.txt": "caf\udce9"},
    ],
    ids=["alone", "with a conftest", "with a test", "with another pyproject.toml", "with bytes"],
)
def test_right_diff_passes(graded: Grading, more: dict[str, str]) -> None:
    found = graded(_RIGHT | {path: text.encode("utf-8", "replace").decode() for path, text in more.items()})
    assert found.scored.success, found.log
    assert found.scored.score_of_graded == 1
    assert found.scored.total_score == 0.5  # a rubric without tests is in the denominator
    assert found.cause == ""
    assert (found.tampering != ()) == ("conftest.py" in more)


def test_files_put_aside_are_listed(graded: Grading) -> None:
    found = graded({"conftest.py": _XFAIL, "pytest.py": _SHADOW, "pytest.ini": "[pytest]\n"})
    assert sorted(line.partition(":")[0] for line in found.tampering) == ["conftest.py", "pytest.ini", "pytest.py"]
    assert graded({"calc.py": _PATCHED + _WRONG}).cause == "tampering"


def test_folder_named_like_a_module_stays(tmp_path: Path) -> None:
    """Data that the agent was asked to write; what is imported in a standard module's place goes."""
    checkout, baseline = tmp_path / "checkout", tmp_path / "baseline"
    baseline.mkdir()
    for path in ("json/a.json", "json/schema.py", "email/__init__.py", "random/__init__.so"):
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).touch()
    assert [line.partition(":")[0] for line in guard(checkout, baseline, [])] == ["email", "random"]
    assert sorted(path.name for path in (checkout / "json").iterdir()) == ["a.json", "schema.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tox.ini", "[tox]\nx = 1\n[pytest] # ]\naddopts = -p helping\n"),
        ("tox.ini", "[pytest] ; ]\naddopts = -p helping\n"),
        ("tox.ini", "x = 1\u2028[pytest]\naddopts = -p helping\n"),
        ("setup.cfg", "[tool:pytest]]\naddopts = -p helping\n"),
        ("setup.cfg", "[tool:pytest]\n[tool:pytest] # ]\naddopts = -p helping\n"),
        ("pyproject.toml", '[tool.pytest]\naddopts = ["-p", "helping"]\n'),
    ],
)
def test_settings_are_found_as_pytest_s_own_parser_finds_them(tmp_path: Path, name: str, text: str) -> None:
    """configparser takes `[pytest] # ]` for another section."""
    checkout, baseline = tmp_path / "checkout", tmp_path / "baseline"
    for folder in (checkout, baseline):
        folder.mkdir()
    (baseline / "setup.cfg").write_text("[tool:pytest]\naddopts = -x\n")
    shutil.copy(baseline / "setup.cfg", checkout)
    (checkout / name).write_text(text)
    assert guard(checkout, baseline, []) == [f"{name}: settings of pytest"]
    (checkout / "tox.ini").write_text("[tox]\nenvlist = py\n")
    (checkout / "setup.cfg").write_text("[flake8]\nx = [1]\n[tool:pytest]\naddopts = -x\n\n[mypy]\n")
    assert guard(checkout, baseline, []) == []


_LIE = (
    "import pathlib\nSEEN = pathlib.Path('/tmp/seen')\n\n\nclass E:\n    def __eq__(self, other):\n"
    "        return {}\n\n    __ne__ = __eq__\n\n\n"
    "def first():\n    SEEN.touch()\n    return 0\n\n\ndef second():\n    return E()\n"
)


@pytest.mark.slow
def test_script_that_fails_on_purpose_distinguishes_no_run(graded: Grading) -> None:
    """Else what it leaves would say that the one after it isn't turned round."""
    form = "import calc\n\n\ndef test_it():\n    assert calc.{}() == 1\n"
    scripts = [Script(f"tests/test_{name}.py", "sums", form.format(name)) for name in ("first", "second")]
    found = graded({"calc.py": _LIE.format("SEEN.exists()")}, replace(TASK, scripts=tuple(scripts)))
    assert [result.cause for result in found.results] == ["", "tampering"]


_HOOKS = (
    "import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    setattr(item, 'rep_' + outcome.get_result().when, outcome.get_result())\n\n\n"
)
_OWN_PLUGIN = (
    "class Own:\n    def pytest_runtest_setup(self, item):\n        item.seen = True\n\n\n"
    "def pytest_configure(config):\n    config.pluginmanager.register(Own())\n\n\n"
    "def pytest_generate_tests(metafunc):\n    if 'pair' in metafunc.fixturenames:\n"
    "        metafunc.parametrize('pair', [(2, 3), (1, 4)])\n\n\n"
    "def pytest_collection_modifyitems(items):\n    items.reverse()\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["by pytest_plugins", "in conftest.py"])
def test_repository_plugins_are_no_tampering(runner: asyncio.Runner, local: Local, tmp_path: Path, named: bool) -> None:
    """Hooks in its conftest.py, plugins that this registers, and a module that it names, which stays as it was."""
    files: dict[str, str | Path] = {**_BEFORE, "tests/conftest.py": _HOOKS + _OWN_PLUGIN}
    if named:
        files |= {
            "conftest.py": "pytest_plugins = ['hooks']\n",
            "hooks.py": _HOOKS + _OWN_PLUGIN,
            "tests/conftest.py": "",
        }
    task = replace(TASK, files=files, digest=f"own plugins {named}")

    async def mended() -> Graded:
        store = await prepared(task, tmp_path / "store", local)
        await store.checkout(tmp_path / "checkout")
        git.write(tmp_path / "checkout", "calc.py", _RIGHT["calc.py"].encode())
        return await grade_in(task, Work(await store.diff(tmp_path / "checkout", 1 << 20)), store, local)

    found = runner.run(mended())
    assert (found.scored.score_of_graded, found.tampering) == (1, ()), found.log


_COUNTS_PARSED = (
    "import ast\n\nPARSE, PARSED = ast.parse, []\n\n\n"
    "def pytest_collection_finish():\n"
    "    ast.parse = lambda text, *args: PARSED.append(text.count('\\n') > 500) or PARSE(text, *args)\n\n\n"
    "def pytest_sessionfinish():\n    print('parsed', sum(PARSED), 'long')\n"
)


def test_failures_of_a_long_script_parse_it_no_more(runner: asyncio.Runner, local: Local, tmp_path: Path) -> None:
    """Of 620 tests with subtests half fail by design when they are turned round: it took hours."""
    files = {**_BEFORE, "conftest.py": _COUNTS_PARSED}
    script = replace(TASK.scripts[0], content=_HIDDEN + "\n" * 500)
    task = replace(TASK, files=files, scripts=(script,), digest="counts what is parsed")

    async def failed() -> Graded:
        store = await prepared(task, tmp_path / "store", local)
        return await grade_in(task, Work(""), store, local)

    found = runner.run(failed())
    assert "parsed 0 long" in found.log, found.log
    assert "assert -1 == 5" in found.log


def test_failing_tests_are_no_tampering(graded: Grading) -> None:
    found = graded({})
    assert (found.cause, found.tampering) == ("tests", ())
    assert "assert -1 == 5" in found.log


_IMPORTS = "import {0}\n\n\ndef test_it():\n    assert {0}.add(2, 3) == 5\n"


def _hidden(text: str, **more: Any) -> Rollout:
    return replace(TASK, scripts=(replace(TASK.scripts[0], content=text),), **more)


@pytest.mark.parametrize("files", [_RIGHT, {}, {"calc.py": "x x\n"}], ids=["right", "nothing", "broken"])
def test_script_without_an_undeclared_module_is_a_fault(graded: Grading, files: dict[str, str]) -> None:
    text = "import numbpy\n" + _HIDDEN
    with pytest.raises(Fault, match="ended before a test had run: ModuleNotFoundError: No module named 'numbpy'"):
        graded(files, _hidden(text))


@pytest.mark.parametrize(
    ("files", "instructions"),
    [
        ({}, "Write numbpy.py."),
        ({}, "Move add() into a module `numbpy`."),
        ({"numbpy.py": "x x\n"}, "Mend add()."),
        ({"numbpy/__init__.py": "import nowhere\n"}, "Mend add()."),
    ],
)
def test_module_that_the_agent_should_have_made_is_its_failure(
    graded: Grading, files: dict[str, str], instructions: str
) -> None:
    found = graded(files, _hidden(_IMPORTS.format("numbpy"), instructions=instructions))
    assert (found.scored.score_of_graded, found.cause) == (0, "tests")


@pytest.mark.parametrize(
    "files",
    [
        {"calc.py": "import nowhere\n"},
        {"calc.py": "import os\nos._exit(3)\n"},
        {"calc.py": "x x\n"},
        {"calc.py": ""},
        {"conftest.py": "import nowhere\n", "tests/conftest.py": "raise SystemExit\n"},
        {"pytest.ini": "[pytest]\naddopts = --nowhere\n"},
        {"tests/__init__.py": "import nowhere\n"},
    ],
    ids=["import", "exit", "syntax", "empty", "conftest", "settings", "package"],
)
def test_agent_cannot_turn_failure_into_a_fault_by_ending_a_script(graded: Grading, files: dict[str, str]) -> None:
    assert graded(files).scored.score_of_graded == 0


@pytest.mark.parametrize("name", ["numbpy", "nowhere"])
def test_human_diff_tells_who_is_to_blame_if_no_test_ran(graded: Grading, tmp_path: Path, name: str) -> None:
    """It makes a module of which the instructions say nothing."""
    made = "+def add(a, b):\n+    return a + b\n"
    head = "diff --git a/numbpy.py b/numbpy.py\nnew file mode 100644\n--- /dev/null\n+++ b/numbpy.py\n@@ -0,0 +1,2 @@\n"
    (tmp_path / "task").mkdir()
    git.write(tmp_path / "task", "overlay_files/diff.patch", (head + made).encode())
    task = _hidden(_IMPORTS.format(name), solution_diff=tmp_path / "task/overlay_files/diff.patch")
    if name == "nowhere":
        with pytest.raises(Fault, match="No module named 'nowhere'"):
            graded({}, task)
    else:
        assert graded({}, task).cause == "tests"


def test_settings_for_a_plugin_that_is_missing_are_a_fault(
    runner: asyncio.Runner, local: Local, tmp_path: Path
) -> None:
    settings = _BEFORE["pyproject.toml"].replace("-x", "--nowhere=1")
    task = replace(TASK, files={**_BEFORE, "pyproject.toml": settings}, digest="settings for a plugin")

    async def judged() -> Graded:
        return await grade_in(task, Work(""), await prepared(task, tmp_path / "store", local), local)

    with pytest.raises(Fault, match="error: unrecognized arguments: --nowhere"):
        runner.run(judged())


@pytest.mark.slow
def test_script_over_its_time_fails(graded: Grading) -> None:
    task = replace(TASK, scripts=(replace(TASK.scripts[0], timeout_sec=2.0),))
    found = graded({"calc.py": "import time\ntime.sleep(1000)\n"}, task)
    assert (found.scored.success, found.cause) == (False, "timeout")


_LEAVES_A_THREAD = (
    "import threading\n\nimport calc\n\n\ndef test_it():\n    stop = threading.Event()\n"
    "    threading.Thread(target=stop.wait).start()\n    assert calc.add(2, 3) == 5\n    stop.set()\n"
)


@pytest.mark.slow
def test_test_that_hangs_after_failing_is_no_tampering(graded: Grading) -> None:
    """What is turned round doesn't come to its own clean-up, and takes all of its time, each run for itself."""
    script = Script("tests/test_hidden.py", "sums", _LEAVES_A_THREAD, timeout_sec=8.0)
    found = graded(_RIGHT, replace(TASK, scripts=(script,)))
    assert (found.scored.score_of_graded, found.tampering) == (1, ()), found.log


def test_hidden_tests_are_not_written_through_links(
    runner: asyncio.Runner, local: Local, store: git.Store, tmp_path: Path
) -> None:
    async def linked() -> Graded:
        checkout = tmp_path / "linked"
        await store.checkout(checkout)
        shutil.rmtree(checkout / "tests")
        (checkout / "tests").symlink_to(tmp_path / "outside")
        git.write(checkout, "calc.py", _RIGHT["calc.py"].encode())
        return await grade_in(TASK, Work(await store.diff(checkout, 1 << 20)), store, local)

    (tmp_path / "outside").mkdir()
    runner.run(linked())
    assert not [*(tmp_path / "outside").iterdir()]


def test_missing_pytest_gives_no_message(graded: Grading, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = userland.Python("/usr/bin/python3", ("/usr",))
    monkeypatch.setattr(userland, "python", lambda: bare)
    monkeypatch.setattr(userland, "pytest_modules", tuple)
    if Path("/usr/lib/python3/dist-packages/pytest").exists() or not Path("/usr/bin/python3").exists():
        pytest.skip("the system's python3 has a pytest, or isn't there")
    with pytest.raises(Fault, match="pytest"):
        graded(_RIGHT, backend=Local())
