"""What docs/ says works as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.analysis.statistics import smallest_paired_difference
from tests.conftest import Shell, nothing_judged

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = re.findall(r"```python\n(.*?)```", (DOCS / "analysis.md").read_text(encoding="utf-8"), re.DOTALL)
CI = (DOCS / "ci" / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_docs_runs(koderz: Shell) -> None:
    nothing_judged(koderz, "iterative")
    for mode in ("zero-shot", "comparative"):
        koderz("benchmark", 0, 3, "--mode", mode, "--quiet", "--model", "simulated")
    assert len(PYTHON) == 5

    done = subprocess.run(
        [sys.executable, "-c", "\n".join(PYTHON)],
        cwd=koderz.folder,
        env=koderz.environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for told in ("No significant difference", "iterative", "HumanEval/1", "cost_per_solution"):
        assert told in done.stdout
    over_time = done.stdout.partition("model     solver    start_time")[2].split("\n\n")[0]
    assert "zero-shot" in over_time
    assert "comparative" not in over_time


def shell(koderz: Shell, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as a CI job does, with this koderz as the command."""
    binaries = koderz.folder / "bin"
    binaries.mkdir(exist_ok=True)
    command = binaries / "koderz"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m koderz "$@"\n')
    command.chmod(0o755)
    env = koderz.environment({"KODERZ_MODEL": "simulated", "GITHUB_STEP_SUMMARY": str(koderz.folder / "summary.md")})
    env["PATH"] = f"{binaries}:{env['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=koderz.folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_smallest_drops_that_the_docs_name_are_what_the_statistics_say() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) points \| ([\d.]+) \| ([\d.]+) \|$", CI, re.MULTILINE)
    assert len(rows) == 3

    for tasks, *drops in rows:
        for share, drop in zip((0.1, 0.2, 0.3), drops, strict=True):
            smallest = smallest_paired_difference(int(tasks), share)
            assert smallest is not None
            assert f"{100 * smallest:.1f}" == drop


@pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")
@pytest.mark.parametrize(("skill", "code"), [(1.0, 0), (0.0, 1)])
def test_the_gate_by_jq_works_with_fractions(koderz: Shell, skill: float, code: int) -> None:
    (script,) = re.findall(r"```bash\n(.*?)```", CI, re.DOTALL)
    koderz("benchmark", 0, 7, "--mode", "zero-shot", "-q", "--model", "simulated", "--simulated-skill", skill)
    (summary,) = koderz.results.glob("*.json")
    shutil.copy(summary, koderz.folder / "latest.json")

    assert shell(koderz, script).returncode == code


@pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")
def test_the_gate_by_jq_is_shut_where_nothing_was_judged(koderz: Shell) -> None:
    (script,) = re.findall(r"```bash\n(.*?)```", CI, re.DOTALL)
    nothing_judged(koderz, "zero-shot")
    shutil.copy(next(koderz.results.glob("*.json")), koderz.folder / "latest.json")

    done = shell(koderz, script)

    assert (done.returncode, done.stdout, done.stderr) == (1, "below 85%\n", "")
