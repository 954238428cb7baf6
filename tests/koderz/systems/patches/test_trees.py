"""Trees: what a patch may change, and what is put back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.systems.patches.patches import diff_of, patch_of
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.patches.trees import Applied, Trees
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.patches.conftest import FAST, FILES, SLOW

pytestmark = pytest.mark.slow


def _applied(task: PerfTask, local: Local, folder: Path, diff: str) -> Applied:
    return asyncio.run(Trees(local).patched(task, diff, folder))


def _diff(**changed: str) -> str:
    paths = {"sums": "sums.py", "tests": "tests/test_sums.py", "conftest": "conftest.py", "site": "sitecustomize.py"}
    return diff_of(FILES, FILES | {paths[name]: text for name, text in changed.items()})


def test_patch_is_applied_tested_and_compiled(task: PerfTask, local: Local, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    applied = _applied(task, local, tree, _diff(sums=FAST))
    assert (applied.status, applied.way, applied.tampering) == ("passed", "git apply", ())
    assert (tree / "sums.py").read_text() == FAST
    assert [*tree.glob("__pycache__/sums.*.pyc")]


def test_patch_changes_to_tests_are_dropped_and_listed(task: PerfTask, local: Local, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    hidden = "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef anything():\n    pytest.skip()\n"
    diff = _diff(sums="def total(n):\n    return 0\n", tests="def test_x():\n    pass\n", conftest=hidden, site="1\n")
    applied = _applied(task, local, tree, diff)
    assert applied.status == "test_failed"
    assert [line.partition(":")[0] for line in applied.tampering] == [
        *("sitecustomize.py", "tests/test_sums.py", "conftest.py")
    ]
    assert (tree / "tests/test_sums.py").read_text() == FILES["tests/test_sums.py"]
    assert not (tree / "conftest.py").exists()


@pytest.mark.parametrize(
    ("diff", "status"),
    [
        ("", "empty_patch"),
        ("  \n", "empty_patch"),
        (_diff(sums=FAST).replace("range(n)", "range(m)"), "patch_failed"),
        (_diff(sums=FAST).replace("sums.py", "../sums.py"), "patch_failed"),
        (_diff(sums=FAST).replace("sums.py", ".git/config"), "patch_failed"),
        (
            "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc/passwd\n",
            "patch_failed",
        ),
        ("+" * (11 << 20), "patch_failed"),
        (_diff(sums="def total(n:\n"), "test_failed"),
    ],
    ids=["empty", "blank", "other file", "outside", "git", "link", "large", "syntax"],
)
def test_patch_that_does_not_fit_leaves_nothing(
    task: PerfTask, local: Local, tmp_path: Path, diff: str, status: str
) -> None:
    assert _applied(task, local, tmp_path / "tree", diff).status == status
    assert [path.name for path in tmp_path.iterdir() if path.name != "tree"] == []


def test_task_whose_own_tests_fail_is_a_fault(task: PerfTask, local: Local) -> None:
    broken = {**FILES, "sums.py": "def total(n):\n    return 0\n"}
    with pytest.raises(Fault, match="base"):
        asyncio.run(Trees(local).base(replace(task, files=broken)))


def test_human_patch_that_fails_is_a_fault(task: PerfTask, local: Local) -> None:
    wrong = diff_of(FILES, {**FILES, "sums.py": "def total(n):\n    return 0\n"})
    with pytest.raises(Fault, match="the human's answer"):
        asyncio.run(Trees(local).human(replace(task, human_patch=wrong)))


@pytest.mark.parametrize(
    "reply",
    [
        f"Faster:\n\n```file sums.py\n{FAST}```\n",
        f"```diff\n{_diff(sums=FAST)}```",
        f"````patch\n{_diff(sums=FAST)}````",
        f"````diff\nwhich isn't closed\n```diff\n{_diff(sums=FAST)}```\n```patch\nnor this\n",
        _diff(sums=FAST),
    ],
    ids=["file", "diff", "patch", "unclosed", "bare"],
)
def test_reply_is_a_diff_or_whole_files(reply: str) -> None:
    assert patch_of(reply, {"sums.py": SLOW}).strip() == _diff(sums=FAST).strip()


def test_reply_without_a_patch_has_none() -> None:
    assert patch_of("I can't think of anything.\n```python\nprint()\n```", {"sums.py": SLOW}) == ""
