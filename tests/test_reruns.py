"""What `scripts/test --all` does with a test that fails: it runs it again, and names those that passed then."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TESTS = """
from pathlib import Path


def test_that_passes_at_the_second_try():
    seen = Path(__file__).with_name("seen")
    assert seen.exists() or seen.touch(), "it wasn't seen before"


def test_that_always_fails():
    raise AssertionError("it always fails")
"""


@pytest.mark.slow
def test_rerun_that_passes_is_named_in_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "test_tries.py").write_text(TESTS)
    options = re.findall(r"options=\((--reruns .*)\)", (ROOT / "scripts/test").read_text())[0].split()
    command = ["-m", "pytest", "-n", "2", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", *options, tmp_path]

    def tests(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, *map(str, command), *arguments]
        return subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)

    done = tests()
    assert done.returncode == 1
    assert "1 failed, 1 passed, 3 rerun" in done.stdout
    assert "AssertionError: it wasn't seen before" in done.stdout
    (flaky,) = (line for line in done.stdout.splitlines() if line.startswith("flaky: "))
    assert "test_that_passes_at_the_second_try failed, and passed" in flaky
    assert done.stdout.splitlines()[-1] == flaky

    (tmp_path / "seen").unlink()
    assert tests("-k", "second").returncode == 0
