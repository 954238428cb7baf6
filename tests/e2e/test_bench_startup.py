"""scripts/bench_startup, on a stand-in for koderz that can be made to fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

BROKEN = """
import pathlib
import sys

counted = pathlib.Path("../counted")
if sys.argv[1:] == ["run", "--help"]:
    counted.open("a").write("x")
    sys.exit("it is broken" if counted.stat().st_size > 2 else 0)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """The script in a checkout whose koderz does nothing at all; one command fails at the third time."""
    for package in ("koderz", "koderz_tracker"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "koderz" / "__main__.py").write_text(BROKEN)
    (tmp_path / "scripts").mkdir()
    for name in ("bench_startup", "figures.py", "checkout.py", "first_call.py"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    return tmp_path / "scripts" / "bench_startup"


@pytest.mark.slow
def test_bench_startup_counts_a_failing_command_as_missed(bench: Path) -> None:
    command = [sys.executable, str(bench), "--runs", "2", "--no-peers", "--check"]

    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert told.returncode == 1
    (line,) = [line for line in told.stdout.splitlines() if line.startswith("koderz run --help")]
    assert "failed: exit code 1: it is broken" in line
    assert line.endswith("MISSED")
    assert "koderz doctor" in told.stdout
    assert "koderz" not in told.stderr
