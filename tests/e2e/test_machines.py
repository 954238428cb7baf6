"""Machines that allow little: a run is whole all the same, and one line says what can't be kept or shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts an interpreter that loads everything

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = "benchmark 0 2 --mode zero-shot --model simulated --sink json"


def koderz(folder: Path, words: str, redirected: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell, with its streams redirected as that says."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    own = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home")}
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m koderz {words} {redirected}"],
        cwd=folder, env={**kept, **own, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def statuses(folder: Path) -> list[str]:
    return [json.loads(path.read_text())["status"] for path in (folder / "benchmark_results").glob("bench_*.json")]


HOMES: Mapping[str, Mapping[str, str]] = {
    "home is no folder": {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"},
    "system's files": {"HOME": "/proc/self", "XDG_CACHE_HOME": "", "XDG_STATE_HOME": "/proc/self/state"},
}


@pytest.mark.parametrize("environ", HOMES.values(), ids=HOMES)
def test_home_that_cannot_be_written_refuses_no_run(tmp_path: Path, environ: Mapping[str, str]) -> None:
    (tmp_path / "tmp").mkdir()
    done = koderz(tmp_path, f"{BENCHMARK} --quiet", **environ, TMPDIR=str(tmp_path / "tmp"))
    assert (done.returncode, statuses(tmp_path)) == (0, ["complete"]), done.stderr
    assert done.stderr.count("note: the home folder can't be written") == 1
    (kept,) = (tmp_path / "tmp").glob("koderz-*")
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("words", [BENCHMARK, "doctor", "suites list"])
@pytest.mark.parametrize("redirected", ["</dev/null >&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_end_nothing(tmp_path: Path, words: str, redirected: str) -> None:
    done = koderz(tmp_path, words, redirected)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert set(statuses(tmp_path)) <= {"complete"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [f"{BENCHMARK} --quiet", "doctor", "suites list", "--help"])
def test_full_disk_behind_standard_output_is_said_in_one_line(tmp_path: Path, words: str) -> None:
    done = koderz(tmp_path, words, ">/dev/full")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert (done.returncode, lines[-1:]) == (
        3,
        ["koderz: standard output can't be written (No space left on device), so not all was shown"],
    )
    assert "Traceback" not in done.stderr
    assert set(statuses(tmp_path)) <= {"complete"}


@pytest.mark.parametrize("words", [BENCHMARK, "doctor", "benchmark list"])
def test_working_folder_that_is_gone_is_said_in_one_line(tmp_path: Path, words: str) -> None:
    (tmp_path / "gone").mkdir()
    script = f"cd gone && rmdir ../gone && exec {sys.executable} -m koderz {words}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "koderz: the working folder can't be used (No such file or directory); change to another and run it again\n"
    )
