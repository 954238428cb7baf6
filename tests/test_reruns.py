"""What becomes of a test that fails: those of programs that others made are run again, and named if they pass then."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TESTS = """
from pathlib import Path

import pytest


def passes_at_the_second_try(name):
    seen = Path(__file__).with_name(name)
    assert seen.exists() or seen.touch(), "it wasn't seen before"


@pytest.mark.others("its browser may crash")
def test_program_of_others():
    passes_at_the_second_try("others")


@pytest.mark.others("its browser may crash")
def test_program_of_others_that_always_fails():
    raise AssertionError("it always fails")


def test_program_of_ours():
    passes_at_the_second_try("ours")
"""


def _tested(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What pytest says of such a module, with the options of `scripts/test --all`."""
    (folder / "test_tries.py").write_text(text)
    options = re.findall(r"options=\((--rerun-.*)\)", (ROOT / "scripts/test").read_text())[0].split()
    command = ["-m", "pytest", "-n", "2", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", *options, folder]
    whole = [sys.executable, *map(str, command), *arguments]
    return subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_programs_of_others_alone_are_run_again_and_named_with_the_reason(tmp_path: Path) -> None:
    done = _tested(tmp_path, TESTS)
    assert done.returncode == 1
    assert "2 failed, 1 passed, 3 rerun" in done.stdout
    assert "FAILED" in done.stdout
    assert "::test_program_of_ours - " in done.stdout
    assert "AssertionError: it wasn't seen before" in done.stdout
    (flaky,) = (line for line in done.stdout.splitlines() if line.startswith("flaky: "))
    assert "test_program_of_others failed, and passed when it was run again: its browser may crash" in flaky
    assert done.stdout.splitlines()[-1] == flaky

    (tmp_path / "others").unlink()
    assert _tested(tmp_path, TESTS, "-k", "others and not always").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["", "()", '(" ")'])
def test_mark_without_a_reason_is_refused(tmp_path: Path, arguments: str) -> None:
    done = _tested(tmp_path, f"import pytest\n\n\n@pytest.mark.others{arguments}\ndef test():\n    pass\n", "-n0")
    assert done.returncode == 4
    assert "pytest.mark.others needs the reason why the test may fail" in done.stderr + done.stdout
