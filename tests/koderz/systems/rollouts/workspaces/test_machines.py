"""Programs that stand in for uv, uvx, curl and apt-get where a verifier has no network."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from koderz.errors import Fault, KoderzError
from koderz.systems.rollouts.guest import main as guest
from koderz.systems.rollouts.task import Network, Rollout
from koderz.systems.rollouts.workspaces.machines import command_with, stands_in
from tests.koderz.systems.rollouts.tasks.test_harbor import loaded
from tests.koderz.systems.rollouts.workspaces.test_events import REWARD, Run
from tests.koderz.systems.rollouts.workspaces.test_events import run as run_fixture

run = run_fixture

PUBLISHED = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh
source $HOME/.local/bin/env
{call}
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
TEST = "import pathlib\n\ndef test_it():\n    assert pathlib.Path('made').read_text() == 'x'\n"

CALLS = (
    "uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest --ctrf /logs/verifier/c.json /tests/test_it.py -rA",
    "uvx --with pytest==8.4.1 \\\n  --with pytest-json-ctrf \\\n  pytest --ctrf /tmp/c.json /tests/test_it.py",
    "uvx --python=3.13 --with=pytest pytest@8.4.1 /tests/test_it.py",
    "uvx --from pytest pytest /tests/test_it.py",
    "uv run --with pytest pytest /tests/test_it.py -rA",
    "uv run --with pytest python -m pytest /tests/test_it.py",
    "uv init\nuv add pytest==8.4.1\nuv run pytest /tests/test_it.py",
    "uv venv .tbench\nsource .tbench/bin/activate\nuv pip install pytest==8.4.1\npytest /tests/test_it.py",
    "uv tool run pytest /tests/test_it.py",
)


def published(folder: Path, call: str, **more: str) -> Rollout:
    return loaded(folder, "", {"tests/test.sh": PUBLISHED.format(call=call), "tests/test_it.py": TEST, **more})


@pytest.mark.slow
def test_published_verifier_runs_without_network(tmp_path: Path, run: Run) -> None:
    task = published(tmp_path / "t", CALLS[0])
    assert stands_in(task)
    assert run(task, "printf x > made").scored.success
    failed = run(task, "printf y > made")
    assert (failed.scored.success, failed.rewards) == (False, {"reward": 0.0})


@pytest.mark.slow
def test_published_calls_of_pytest_end_as_it_ends(tmp_path: Path, run: Run) -> None:
    """Each call stands in a folder of its own, once where the test passes and once where it fails."""
    tried = [
        f"(mkdir /tmp/{number}{made}; cd /tmp/{number}{made}; printf {made} > made\n{call}\n); echo {number} {made} $?"
        for number, call in enumerate(CALLS)
        for made in "xy"
    ]
    log = run(published(tmp_path / "t", "\n".join(tried)), "true").log
    ended = re.findall(r"^(\d) (\w) (\d+)$", log, re.MULTILINE)
    assert ended == [(str(number), made, str(int(made == "y"))) for number in range(len(CALLS)) for made in "xy"]


def test_pytest_comes_compiled_to_verifiers(tmp_path: Path) -> None:
    _, (mount,) = command_with(published(tmp_path / "t", CALLS[0]), "true")
    sources = [*mount.source.glob("pytest/_pytest/**/*.py"), *mount.source.glob("pytest/pytest/*.py")]
    assert len(sources) > 50
    for source in sources:
        flags, time, size = struct.unpack("<3I", Path(cache_from_source(str(source))).read_bytes()[4:16])
        assert (flags, time, size) == (0, int(source.stat().st_mtime), source.stat().st_size)


@pytest.mark.slow
def test_report_of_tests_is_written(tmp_path: Path, run: Run) -> None:
    call = "uvx pytest --ctrf /logs/verifier/ctrf.json /tests/test_it.py; cat /logs/verifier/ctrf.json"
    log = run(published(tmp_path / "t", call), "printf x > made").log
    report = json.loads(log[log.index('{\n  "results"') : log.rindex("}") + 1])["results"]
    assert report["summary"]["passed"] == 1
    assert report["tests"][0]["status"] == "passed"


def test_package_that_is_not_here_is_a_fault_that_names_wheels(tmp_path: Path, run: Run) -> None:
    call = "uvx --with pytest --with no-such-plugin pytest /tests/test_it.py"
    with pytest.raises(Fault, match="the package no-such-plugin isn't here; give its wheel with --wheels DIR"):
        run(published(tmp_path / "t", call), "printf x > made")


def _wheel(folder: Path, name: str = "pytest_given", **files: str) -> Path:
    """A wheel of a plugin of pytest that adds an option."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    contents = {
        f"{name}.py": "def pytest_addoption(parser):\n    parser.addoption('--given', action='store_true')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[pytest11]\n{name} = {name}\n",
        **files,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in contents.items():
            archive.writestr(inner, text)
    return path


@pytest.mark.slow
def test_plugin_comes_from_a_wheel(tmp_path: Path, run: Run) -> None:
    _wheel(tmp_path / "wheels")
    task = published(tmp_path / "t", "uvx --with pytest-given==1.0 pytest --given /tests/test_it.py")
    assert run(replace(task, wheels=str(tmp_path / "wheels")), "printf x > made").scored.success


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"PK"), "can't be read"),
        (lambda path: path.rename(path.with_name("nonsense.whl")), "--wheels: .*nonsense.whl"),
        (lambda path: _wheel(path.parent, **{"../../out": "x"}), r"\.\./\.\./out leaves its folder"),
        (lambda path: path.unlink() or path.parent.rmdir(), "there is no such folder"),
    ],
)
def test_damaged_wheels_are_one_line(tmp_path: Path, damage: object, said: str) -> None:
    assert callable(damage)
    damage(_wheel(tmp_path / "wheels"))
    task = replace(published(tmp_path / "t", "uvx pytest"), wheels=str(tmp_path / "wheels"))
    with pytest.raises(KoderzError, match=said) as error:
        command_with(task, "true")
    assert "\n" not in str(error.value)


def test_debian_package_that_is_not_here_is_a_fault(tmp_path: Path, run: Run) -> None:
    test = "set -e\napt-get install -y --no-install-recommends no-such-package\npytest /tests/test_it.py\n" + REWARD
    with pytest.raises(Fault, match="Unable to locate package no-such-package"):
        run(loaded(tmp_path / "t", "", {"tests/test.sh": test, "tests/test_it.py": TEST}), "true")


def test_curl_of_the_machine_is_used_for_other_addresses(tmp_path: Path, run: Run) -> None:
    """Verifiers ask servers of the task's by it."""
    test = (
        "apt-get update\npython3 -m http.server 8765 --directory /tests >/dev/null 2>&1 &\n"
        "for n in $(seq 100); do curl -sf http://127.0.0.1:8765/test_it.py > got && break; sleep 0.1; done\n"
        "grep -q test_it got\n" + REWARD + "kill %1\n"
    )
    task = loaded(tmp_path / "t", "", {"tests/test.sh": test, "tests/test_it.py": TEST})
    if not Path("/usr/bin/curl").exists():
        pytest.skip("there is no curl")
    assert run(task, "true").scored.success


@pytest.mark.parametrize(
    ("test", "stands"),
    [
        ("pytest /tests/test_it.py", False),
        ("curl -s http://localhost:8000", False),
        ("# apt-get install curl\ntrue", False),
        ("apt-get install -y x", True),
        ("  uvx pytest", True),
        ("curl -LsSf https://astral.sh/uv/install.sh | sh", True),
    ],
)
def test_verifiers_that_install_nothing_keep_their_own_tools(tmp_path: Path, test: str, stands: bool) -> None:
    task = loaded(tmp_path / "t", "", {"tests/test.sh": test})
    assert stands_in(task) is stands
    online = replace(task, published=task, network=Network("public"))
    assert not stands_in(online)


@pytest.mark.parametrize(
    ("words", "wanted", "rest"),
    [
        ("-p 3.13 -w a==1 -w b pytest -p no:x", ["a==1", "b"], ["pytest", "-p", "no:x"]),
        ("--with=a,b --python 3 -- pytest x", ["a", "b"], ["pytest", "x"]),
        ("--no-cache -q --from a a", ["a"], ["a"]),
        ("", [], []),
    ],
)
def test_options_before_a_program_are_told_apart(words: str, wanted: list[str], rest: list[str]) -> None:
    assert guest.split(words.split()) == (wanted, rest)


@pytest.mark.parametrize("words", ["uvx ruff check", "uvx -r x pytest", "uv publish", "uvx", "uv run"])
def test_call_that_nothing_stands_in_for_says_so(words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", guest.__file__, *words.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert done.stderr.startswith(words.split()[0] + ": ")
    assert "Traceback" not in done.stderr
