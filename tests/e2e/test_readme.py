"""What the README says works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer

from koderz.cli import app
from koderz.cli.groups import _load
from tests.conftest import Shell, nothing_judged

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^(?: {4,}|\$ )(?:[A-Z_]+=\S+ )*koderz (.*)$", README, re.MULTILINE)
JQ = re.findall(r"^    (jq .*)$", README, re.MULTILINE)


def test_the_snippets_on_summaries_and_on_the_api_run(koderz: Shell) -> None:
    koderz("benchmark", 0, 3, "--mode", "comparative", "--quiet")
    koderz("benchmark", 0, 3, "--mode", "zero-shot", "--quiet")
    nothing_judged(koderz, "iterative")
    snippets = [text for text in PYTHON if "async def best_of_three" not in text]
    assert len(snippets) == 2

    for text in snippets:
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=koderz.folder, env=koderz.environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_solver_of_the_readme_runs_and_replays(koderz: Shell) -> None:
    (solver,) = [text for text in PYTHON if "async def best_of_three" in text]
    (koderz.folder / "mine.py").write_text(solver)

    koderz("benchmark", 0, 6, "--solver", "mine.py:best_of_three", "--quiet")

    summary = koderz.summary()
    assert summary["mode"] == "best-of-three"
    assert summary["summary"]["total_problems"] == 6
    koderz("benchmark", "rescore", "latest", "--quiet")
    assert koderz.summary()["summary"]["successes"] == summary["summary"]["successes"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a run in one mode, a later one zero-shot and one in which nothing was judged; one for each mode."""

    @cache
    def folder(mode: str) -> Path:
        shell = Shell(tmp_path_factory.mktemp(mode))
        for each in (mode, "zero-shot"):
            shell("benchmark", 0, 2, "--mode", each, "--quiet")
        nothing_judged(shell, mode)
        return shell.folder

    return folder


@pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")
@pytest.mark.parametrize("command", JQ)
def test_every_jq_line_works_verbatim(ran: Callable[[str], Path], command: str) -> None:
    folder = ran("comparative" if "zero_shot" in command else "iterative")

    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")
def test_the_sessions_are_what_the_commands_print() -> None:
    done = subprocess.run([sys.executable, "scripts/session.py", "--check"], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, f"scripts/session.py brings README.md up to date:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_and_option_that_is_named_exists(line: str) -> None:
    words = shlex.split(line, comments=True)
    command = typer.main.get_command(app)
    while words and (inner := getattr(command, "commands", {}).get(words[0])):
        home = getattr(command, "lazy", {}).get(words.pop(0))
        command = _load(inner.name, home[0]) if home else inner
    command = getattr(command, "commands", {}).get("run", command)  # benchmark's own, whose name is left out
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}

    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known
