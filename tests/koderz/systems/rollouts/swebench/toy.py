"""An instance made here: a small package in a repository, whose eval script has the shape of the published ones."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODE = "def add(one, other):\n    return one - other\n\n\ndef double(one):\n    return one * 2\n"
FIXED = CODE.replace("one - other", "one + other")
TESTS = """import pytest

from adding import double


def test_double():
    assert double(3) == 6


@pytest.mark.skip(reason="not here")
def test_skipped():
    assert double(3) == 7


@pytest.mark.xfail(reason="known")
def test_known():
    assert double(1) == 3
"""
GRADING = (
    TESTS.replace("import double", "import add, double")
    + """

@pytest.mark.parametrize("other", [1, 2, 30])
def test_add(other):
    assert add(1, other) == {1: 2, 2: 3, 30: 31}[other]
"""
)
SCRIPT = """#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git status
git -c core.fileMode=false diff {commit}
test ! -f setup.py || python setup.py
git checkout {commit} tests/test_adding.py
git apply -v - <<'EOF_114329324912'
{patch}EOF_114329324912
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
git checkout {commit} tests/test_adding.py
"""


@dataclass(frozen=True)
class Toy:
    """An instance's row, its repository, and the file that names an environment for it."""

    row: dict[str, Any]
    repository: Path
    environments: Path


def make(folder: Path, command: str = "pytest -rA tests/test_adding.py", **more: Any) -> Toy:
    repository = folder / "repository"
    for path, text in {"adding.py": CODE, "tests/test_adding.py": TESTS, "setup.cfg": "[tool:pytest]\n"}.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    git(repository, "init", "-q", "-b", "main")
    commit_all(repository)
    commit = git(repository, "rev-parse", "HEAD").strip()
    patch = diff_of(repository, {"tests/test_adding.py": GRADING})
    tests = "tests/test_adding.py::test_"
    row = {
        "instance_id": "koderz__adding-1",
        "repo": "koderz/adding",
        "version": "1.0",
        "base_commit": commit,
        "patch": diff_of(repository, {"adding.py": FIXED}),
        "test_patch": patch,
        "problem_statement": "add(1, 2) should be 3, but it is -1.",
        "hints_text": "",
        "FAIL_TO_PASS": json.dumps([f"{tests}add[1]", f"{tests}add[2]", f"{tests}add[30]"]),
        "PASS_TO_PASS": json.dumps([f"{tests}double", f"{tests}known"]),
        "image": "swebench/sweb.eval.x86_64.koderz_1776_adding-1:latest",
        "eval_script": SCRIPT.format(commit=commit, patch=patch, command=command),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        **more,
    }
    environments = folder / "environments.toml"
    lines = ["[[environments]]", 'repo = "koderz/adding"', 'source = "repository"', 'path = "."']
    environments.write_text("\n".join([*lines, f'python = "{sys.executable}"', ""]))
    return Toy(row, repository, environments)


def diff_of(repository: Path, files: dict[str, str | None]) -> str:
    for path, text in files.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            (repository / path).unlink()
        else:
            (repository / path).write_text(text)
    git(repository, "add", "-A", "-f")
    diff = git(repository, "diff", "--cached")
    git(repository, "reset", "-q", "--hard")
    return diff


def commit_all(repository: Path) -> None:
    git(repository, "add", "-A")
    identity = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    git(repository, *identity, "commit", "-q", "-m", "Add")


def git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True, text=True).stdout
