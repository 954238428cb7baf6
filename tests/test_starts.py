"""Every start of a Python from koderz' source: none takes modules from the folder in which the user stands."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_STARTED_HERE = {
    "koderz/systems/rollouts/guest/main.py",  # stands in for `uv run python` of an agent, in its sandbox
    "koderz/settings/installation.py",  # prints commands for the user's shell
}


def starts() -> Iterator[tuple[str, list[str]]]:
    """Where a list of words begins with this interpreter, and the words of it that are written out there."""
    for path in sorted([*ROOT.glob("koderz/**/*.py"), *ROOT.glob("tracker/**/*.py")]):
        if "sys.executable" not in (text := path.read_text(encoding="utf-8")):  # which spares each worker seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                where = str(path.relative_to(ROOT))
                words = [value.value for value in node.elts if isinstance(value, ast.Constant)]
                if where not in NOT_STARTED_HERE and len(node.elts) > 1:
                    yield f"{where}:{node.lineno}", [ast.unparse(node), *map(str, words)]


@pytest.mark.parametrize(("where", "words"), [*starts()])
def test_python_is_started_without_the_working_folder(where: str, words: list[str]) -> None:
    written = words[0]
    # `flags` and `command` are lists that are written out in the same function, `orig_argv` is a start's own
    assert {"-I", "-P"} & set(words) or any(word in written for word in ("*flags", "*command", "sys.orig_argv"))


def test_lists_of_flags_leave_the_working_folder_out() -> None:
    from koderz.sandbox.launch import command

    assert "-P" in command("koderz.sandbox.judge.zygote", [])
    assert '["-P", "-m", "mlflow"' in (ROOT / "koderz/cli/ui.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("flag", ["-I", "-P"])
def test_flags_keep_shadowing_modules_out(tmp_path: Path, flag: str) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('shadowed')")
    shadowed = [sys.executable, "-m", "pip", "--version"]
    assert subprocess.run(shadowed, cwd=tmp_path, capture_output=True, check=False).returncode
    subprocess.run([sys.executable, flag, *shadowed[1:]], cwd=tmp_path, capture_output=True, check=True)


def test_wheels_are_downloaded_without_the_modules_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from koderz.errors import Unreachable
    from koderz.systems.patches import sources

    (tmp_path / "pip.py").write_text("open('hit', 'w')")
    (tmp_path / "wheels").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "PIP_NO_INDEX", "1")

    with pytest.raises(Unreachable, match="koderz-perf-pypi needs"):
        sources._download("nothing==1 --hash=sha256:" + "0" * 64, tmp_path / "wheels")

    assert not (tmp_path / "hit").exists()
