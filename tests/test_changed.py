"""What `scripts/test --changed` runs: the tests that import what was changed."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = "tests/test_layout.py"
chosen = runpy.run_path(str(ROOT / "scripts" / "changed.py"))["tests_of"]


def test_changed_runs_tests_that_import_a_module_through_others() -> None:
    tests = chosen(["tracker/results.py"])
    assert "tests/tracker/test_clusters.py" in tests
    assert "tests/koderz/analysis/test_comparison.py" in tests
    assert ALWAYS in tests
    assert tests == sorted(tests)


def test_changed_runs_few_tests_for_a_module_of_a_system() -> None:
    tests = chosen(["koderz/systems/questions/judging.py"])
    assert ALWAYS in tests
    assert "tests/koderz/systems/questions/test_qa.py" in tests
    assert {test.split("/")[3] for test in tests if test.startswith("tests/koderz/systems/")} == {"questions"}


def test_changed_runs_a_changed_test_and_those_of_a_conftest() -> None:
    assert chosen(["tests/tracker/test_journal.py"]) == [ALWAYS, "tests/tracker/test_journal.py"]
    below = {f"tests/e2e/{path.name}" for path in (ROOT / "tests/e2e").glob("test_*.py")}
    assert below <= set(chosen(["tests/e2e/conftest.py"]))


def test_changed_passes_over_files_that_no_test_imports() -> None:
    assert chosen(["README.md", "koderz/absent.py", "docs/index.md"]) == [ALWAYS]


def test_changed_names_a_base_that_is_not_there() -> None:
    command = [sys.executable, str(ROOT / "scripts/changed.py"), "no-such-revision"]
    done = subprocess.run(command, cwd=Path("/"), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "no-such-revision" in done.stderr
    assert "Traceback" not in done.stderr
