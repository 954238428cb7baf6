"""Tasks that bring their own tests: Harbor's rewards and terminal-bench's exit code, where the agent worked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.systems.rollouts.grading import Graded, Published, grade
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace
from koderz.systems.workspaces.local import Local

pytestmark = pytest.mark.slow


async def _at_once(_name: str, make: object, **_: object) -> object:
    return await make()  # type: ignore[operator]


def _graded(task: Rollout, line: str, *, anew: bool = False) -> Graded:
    """What is graded of an agent that runs a line. `anew`: from its diff, as a rescore does it."""

    async def worked() -> Graded:
        async with Local() as local:
            stores = Stores({"": local})
            with scratch() as place:
                workspace = Workspace(task, stores, place, _at_once, RolloutsOptions())
                await workspace.shell(line)
                diff = str((await workspace.diff())["diff"])
                work = workspace.work(task, diff)
                assert work.place == place
                assert workspace.work(task, diff).place is None
                return await grade(task, Work(diff) if anew else work, stores)

    return asyncio.run(worked())


def _harbor(folder: Path, tests: str) -> Rollout:
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "task.toml").write_text('version = "1.0"\n')
    (folder / "instruction.md").write_text("Do it.")
    (folder / "environment/Dockerfile").write_text("FROM x\nWORKDIR /app\nRUN echo a.log > .gitignore\n")
    (folder / "tests/test.sh").write_text(tests)
    return load_task(folder)


def test_verifier_grades_where_the_agent_worked(tmp_path: Path) -> None:
    """Also where another has ended with the same diff."""
    task, places = _harbor(tmp_path / "task", ""), [tmp_path / name for name in "ab"]

    async def at_once() -> list[Path | None]:
        async with Local() as local:
            stores = Stores({"": local})
            workspaces = [Workspace(task, stores, place, _at_once, RolloutsOptions()) for place in places]
            diffs = [str((await workspace.diff())["diff"]) for workspace in workspaces]
            assert diffs[0] == diffs[1]
            return [workspace.work(task, diffs[0]).place for workspace in workspaces]

    assert asyncio.run(at_once()) == places


_REWARD = "echo {} > /logs/verifier/{}\n"


def test_published_grading_goes_on_where_the_agent_ended(tmp_path: Path) -> None:
    """Also with what no diff has: ignored files, and those of its home and /tmp. Afresh there are only the first."""
    tests = "ls /tests/test.sh; cat a.log ~/b /tmp/c; echo $((! $?)) > /logs/verifier/reward.txt\n"
    task = _harbor(tmp_path / "task", tests)
    found = _graded(task, "ls /tests && exit; echo 1 > a.log; echo 2 > ~/b; echo 3 > /tmp/c; touch new; sleep 1000 &")
    assert found.published == Published(True, {"reward": 1.0})
    assert (found.scored.success, found.cause, found.graded) == (False, "tampering", "both")
    assert "\n1\ncat: /home/user/b: No such file" in found.log


def test_fresh_grading_carries_ignored_files_and_empty_folders(tmp_path: Path) -> None:
    task = _harbor(tmp_path / "task", "test -s a.log -a -d made/empty; echo $((! $?)) > /logs/verifier/reward.txt\n")
    assert _graded(task, "mkdir -p made/empty; echo 1 > a.log").scored.success


def test_fresh_grading_carries_sparse_files_without_filling_the_disk(tmp_path: Path) -> None:
    """What can't be read is left out."""
    tests = "test $(du -k a.log | cut -f 1) -lt 1024 -a $(stat -c %s a.log) = 2147483648\n"
    task = _harbor(tmp_path / "task", tests + "echo $((! $?)) > /logs/verifier/reward.txt\n")
    line = "truncate -s 2G a.log; mkdir -p b; touch b/a.log; chmod 0 b/a.log; mkdir -p c; touch c/a.log; chmod 0 c"
    assert _graded(task, line).scored.success


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ln -s /tests/answer answer.txt", "answer.txt: a link that leaves /app"),
        ("mkdir d; ln -s ../../tests/answer d/x; cp d/x answer.txt || ln -s d/x answer.txt", "d/x: a link that leaves"),
        ("ln -s . a; ln -s a/../tests/answer answer.txt", "answer.txt: a link that leaves /app"),
        ("echo 'addopts = x' > pytest.ini", "pytest.ini: settings of pytest"),
        ("touch sitecustomize.py", "sitecustomize.py: customises the interpreter"),
        ("touch json.py", "json.py: shadows the standard library"),
        ("mkdir __pycache__; touch __pycache__/json.pyc", "__pycache__: compiled code"),
    ],
)
def test_fresh_grading_puts_aside_and_lists_it(tmp_path: Path, line: str, name: str) -> None:
    tests = "cat answer.txt 2>/dev/null | grep -q right; echo $((! $?)) > /logs/verifier/reward.txt\n"
    task = _harbor(tmp_path / "task", tests)
    (tmp_path / "task/tests/answer").write_text("right")
    found = _graded(task, line)
    assert not found.scored.success
    assert any(each.startswith(name) for each in found.tampering), found.tampering


@pytest.mark.parametrize(
    ("tests", "score", "success"),
    [
        (_REWARD.format(1, "reward.json") + _REWARD.format(0, "reward.txt"), 1.0, True),
        (_REWARD.format('{{"a": 1, "b": 0.5}}'.replace("{{", "'{").replace("}}", "}'"), "reward.json"), 0.75, False),
        (_REWARD.format(0.25, "reward.txt") + "exit 1\n", 0.25, False),
    ],
    ids=["json before text", "several", "a part"],
)
def test_rewards_are_the_score(tmp_path: Path, tests: str, score: float, success: bool) -> None:
    found = _graded(_harbor(tmp_path / "task", tests), "true").scored
    assert (found.total_score, found.success) == (score, success)


@pytest.mark.parametrize(
    "tests",
    ["true", *(_REWARD.format(value, "reward.json") for value in ("NaN", "1e999", "'{}'", "'[1]'", "x"))],
)
def test_verifier_reward_missing_or_not_finite_is_a_fault(tmp_path: Path, tests: str) -> None:
    with pytest.raises(Fault, match="reward"):
        _graded(_harbor(tmp_path / "task", tests + "\n"), "true")


@pytest.mark.parametrize("code", ["'[' * 100_000", "'1' + '0' * 400", "'1' * 5000"], ids=["deep", "large", "long"])
def test_verifier_reward_that_no_parser_bears_is_a_fault(tmp_path: Path, code: str) -> None:
    """Where the agent worked, it may write rewards itself: what it writes must not end koderz."""
    tests = f'python3 -c "print({code})" > /logs/verifier/reward.json\n'
    with pytest.raises(Fault, match="no finite number"):
        _graded(_harbor(tmp_path / "task", tests), "true")


def test_verifier_that_takes_too_long_is_a_fault(tmp_path: Path) -> None:
    task = _harbor(tmp_path / "task", "sleep 1000\n")
    with pytest.raises(Fault, match="takes longer"):
        _graded(Rollout(**{**{name: getattr(task, name) for name in task.__slots__}, "test_seconds": 1.0}), "true")


@pytest.mark.parametrize(("line", "success"), [("echo 1 > a.log", True), ("true", False)])
def test_terminal_bench_passes_by_exit_code_0(tmp_path: Path, line: str, success: bool) -> None:
    folder = tmp_path / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text("instruction: Do it.\n")
    (folder / "Dockerfile").write_text("FROM x\nWORKDIR /app\nRUN echo a.log > .gitignore\n")
    (folder / "run-tests.sh").write_text("test -d $TEST_DIR && grep -q 1 a.log\n")
    assert _graded(load_task(folder), line).scored.success is success


_PATH = "export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n"  # or uv finds the environment that these tests run in
_APT = f"#!/bin/bash\n{_PATH}apt-get update\napt-get install -y curl\n"
_UV = "curl -LsSf https://example.invalid/uv/install.sh | sh\nsource $HOME/.local/bin/env\nuv init\n"
_PUBLISHED = _APT + _UV + "uv add pytest==8.4.1\nuv run pytest $TEST_DIR/test_outputs.py -rA\n"
_STRICT = _APT.replace("\napt-get update", "\nset -e\napt-get update", 1) + "bash $TEST_DIR/check.sh\n"
_WRITES = (
    "if [ $? -eq 0 ]; then\n  echo 1 > /logs/verifier/reward.txt\nelse\n  echo 0 > /logs/verifier/reward.txt\nfi\n"
)
_UVX = _APT + "uvx -p 3.13 -w pytest==8.4.1 pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA\n"


def _terminal_bench(folder: Path, tests: str) -> Rollout:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text("instruction: Do it.\n")
    (folder / "Dockerfile").write_text("FROM x\nWORKDIR /app\nRUN echo 1 > given\n")
    (folder / "tests/test_outputs.py").write_text("def test_it():\n    assert open('given').read() == '2\\n'\n")
    (folder / "run-tests.sh").write_text(tests)
    return load_task(folder)


@pytest.mark.parametrize("tests", [_PUBLISHED, _STRICT], ids=["published", "ends at apt-get"])
def test_verifier_that_ends_before_a_test_has_run_is_a_fault(tmp_path: Path, tests: str) -> None:
    with pytest.raises(
        Fault, match=r"ended before a test had run: .*(apt-get|Could not|resolv|fetch|root|dpkg|missing)"
    ):
        _graded(_terminal_bench(tmp_path / "task", tests), "echo 2 > given")


def test_verifier_of_harbor_rewarding_its_own_failure_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="ended before a test had run"):
        _graded(_harbor(tmp_path / "task", _UVX + _WRITES), "true")


@pytest.mark.parametrize(
    ("line", "success"),
    [
        ("echo 2 > given", True),
        ("true", False),
        ("echo 'import os; os._exit(3)' > conftest.py", False),
        ("echo '[pytest' > pytest.ini", False),
        ("mkdir pytest; echo 'raise SystemExit(7)' > pytest/__init__.py", False),
        ("echo 'import time; time.sleep(1000)' > conftest.py", False),
    ],
)
def test_agent_cannot_turn_failure_into_a_fault_by_its_verifier(tmp_path: Path, line: str, success: bool) -> None:
    """Without its changes the verifier can run its tests."""
    task = _terminal_bench(tmp_path / "task", "cp $TEST_DIR/test_outputs.py .\npython3 -m pytest test_outputs.py -rA\n")
    found = _graded(replace(task, test_seconds=20.0), line)
    assert found.scored.success is success, found.log


def test_verifier_spoilt_by_the_agents_changes_alone_gives_0(tmp_path: Path) -> None:
    task = _harbor(tmp_path / "task", "test -e breaks && exit 1; echo 1 > /logs/verifier/reward.txt\n")
    found = _graded(task, "touch breaks")
    assert (found.scored.total_score, found.cause) == (0.0, "no_reward")
