"""What the script of nightly rollouts runs, by whatever it is given."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/run_nightly_benchmark.sh"
DAILY = "configs/daily_benchmark.toml"


@pytest.mark.parametrize(
    ("given", "asked", "is_home"),
    [
        ([], [DAILY], True),
        (["--max-cost", "5"], [DAILY, "--max-cost", "5"], True),
        (["own.toml"], ["own.toml"], False),
        (["own.toml", "--max-cost", "5"], ["own.toml", "--max-cost", "5"], False),
    ],
)
def test_options_without_a_configuration_go_to_the_script_s_own(
    tmp_path: Path, given: list[str], asked: list[str], is_home: bool
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    (home / "scripts").mkdir(parents=True)
    here.mkdir()
    shutil.copy(SCRIPT, home / "scripts")
    python = tmp_path / "python"  # says where it was run, and with what, and fails so that nothing is compared
    python.write_text('#!/bin/sh\npwd -P\nprintf "%s\\n" "$@"\nexit 3\n')
    python.chmod(0o755)
    done = subprocess.run(
        [home / "scripts" / SCRIPT.name, *given],
        cwd=here,
        env={"PATH": os.environ["PATH"], "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    place, script, command, *words = done.stdout.splitlines()
    assert (done.returncode, command, words) == (3, "run", asked), done.stderr
    assert Path(place) == (home if is_home else here).resolve()
    assert Path(script).name == "eval_rollouts.py"
