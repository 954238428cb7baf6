"""Terms on which tasks are graded: the strictest on which their own solutions pass, each lifted guard named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Ended
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.systems.rollouts import suite as suite_module
from koderz.systems.rollouts.environments.trees import prepared
from koderz.systems.rollouts.grading import Graded, Published, grade
from koderz.systems.rollouts.grading import terms as terms_module
from koderz.systems.rollouts.grading.terms import LIFTABLE, fresh_only, terms_of
from koderz.systems.rollouts.grading.verifiers import VerifierRun
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.suite import RolloutsSuite
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.afresh import Solution, Terms, Work, is_work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz.systems.workspaces.local import Local
from koderz.types import Verdict
from tests.koderz.systems.rollouts.hand_made import hand_made
from tests.koderz.systems.rollouts.tasks.test_harbor import written

Solved = Callable[[Rollout, str], tuple[Terms, Graded]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def solved(runner: asyncio.Runner, local: Local) -> Solved:
    """The terms of a task, and what is graded of an agent that runs a line."""

    async def worked(task: Rollout, line: str) -> tuple[Terms, Graded]:
        stores = Stores({"": local})
        terms = await terms_of(task, stores)
        with scratch() as place:
            workspace = Workspace(task, stores, place, at_once, RolloutsOptions())
            await workspace.shell(line)
            diff = str((await workspace.diff())["diff"])
            return terms, await grade(task, Work(diff, place, workspace.collected), stores, terms)

    return lambda task, line: runner.run(worked(task, line))


def _task(folder: Path, tests: str, solution: str, **files: str) -> Rollout:
    texts = {
        "environment/Dockerfile": "FROM x\nWORKDIR /app\nRUN echo 1 > first\n",
        "task.toml": 'schema_version = "1.4"\n[verifier]\ntimeout_sec = 20\n',
        "instruction.md": "Do it.",
        "tests/test.sh": f"{tests}\necho $((! $?)) > /logs/verifier/reward.txt\n",
        "solution/solve.sh": solution,
        **{f"tests/{name}.py": text for name, text in files.items()},
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_task(folder)


_PYTEST = "python3 -m pytest -q -p no:cacheprovider /tests/test_it.py"


@pytest.mark.slow
def test_terms_of_a_plain_task_are_the_strictest_and_are_kept(
    solved: Solved, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task(hand_made(tmp_path, "weak-ledger"))
    terms, graded = solved(task, "sed -i 's/ for amount in amounts if amount > 0/ for amount in amounts/' ledger.py")
    assert (terms.graded, terms.carried, terms.lifted, terms.rewards) == ("both", "workdir", (), ("reward",))
    assert {*terms.tests} == {f"test_ledger.py::test_{name}" for name in ("deposits", "withdrawals", "overdrawn")}
    assert graded.scored.success, graded.log
    assert (graded.isolation, graded.lifted, graded.graded) == ("in-process", (), "both")
    assert len([*(cache / "koderz/terms").iterdir()]) == 1
    monkeypatch.delattr(terms_module, "_tried")
    assert solved(task, "true")[0] == terms


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "sed -i '3a import os; os._exit(0)' ledger.py",
        "echo 'import pytest; balance = lambda amounts: pytest.skip()' >> ledger.py",
    ],
    ids=["exit", "skip"],
)
def test_terms_believe_no_reward_without_passed_tests(solved: Solved, tmp_path: Path, line: str) -> None:
    _, graded = solved(load_task(hand_made(tmp_path, "weak-ledger")), line)
    assert graded.published == Published(True, {"reward": 1.0})
    assert (graded.scored.success, graded.scored.total_score, graded.cause) == (False, 0, "tampering")
    assert graded.rewards == {"reward": 0.0}
    assert any("hasn't passed" in text for text in graded.tampering), graded.tampering


_FORGED = """
import json, os, sys
class Forged:
    def pytest_runtest_logreport(self, report):
        pass
def over():
    for each in __import__("gc").get_objects():
        if type(each).__name__ == "Reporter" and hasattr(each, "file"):
            real = os.dup(each.file)
            each.file = os.open(os.devnull, os.O_WRONLY)
            for name in ("deposits", "withdrawals", "overdrawn"):
                for when in ("setup", "call", "teardown"):
                    told = {"test": f"/tests/test_ledger.py::test_{name}", "when": when, "outcome": "passed"}
                    os.write(real, (json.dumps(told) + chr(10)).encode())
over()
os._exit(0)
"""


@pytest.mark.slow
def test_terms_doubt_forged_reports_by_tests_turned_round(solved: Solved, tmp_path: Path) -> None:
    line = f"cat > ledger.py <<'END'\n{_FORGED}\nEND\n"
    _, graded = solved(load_task(hand_made(tmp_path, "weak-ledger")), line)
    assert graded.published == Published(True, {"reward": 1.0})
    assert (graded.scored.success, graded.cause) == (False, "tampering")


@pytest.mark.slow
def test_terms_lift_the_guard_that_a_solution_needs(solved: Solved, tmp_path: Path) -> None:
    solution = "echo 'import pytest\n\n@pytest.fixture\ndef two():\n    return 2' > conftest.py\n"
    it = "def test_it(two):\n    assert two == 2\n"
    task = _task(tmp_path, f"cp /tests/test_it.py . && {_PYTEST.replace('/tests/', '')}", solution, test_it=it)
    terms, graded = solved(task, solution)
    assert terms.lifted == ("settings",)
    assert (graded.scored.success, graded.lifted) == (True, ("settings",))
    assert not solved(task, "true")[1].scored.success


@pytest.mark.slow
def test_terms_carry_work_outside_of_workdir_where_the_solution_has_it(solved: Solved, tmp_path: Path) -> None:
    task = _task(tmp_path, 'grep -q yes "$HOME/answers/it"', "mkdir ~/answers; echo yes > ~/answers/it\n")
    terms, graded = solved(task, "mkdir ~/answers; echo yes > ~/answers/it; mkdir -p ~/.local/bin; touch ~/.bashrc")
    assert (terms.carried, terms.lifted) == ("root", ())
    assert (graded.scored.success, graded.carried) == (True, "root")
    trojan = (
        "mkdir -p ~/bin ~/.local/bin; printf '#!/bin/sh\\n' | tee ~/bin/grep > ~/.local/bin/grep; chmod +x ~/bin/grep"
    )
    assert not solved(task, trojan)[1].scored.success


@pytest.mark.slow
def test_terms_grade_as_published_what_passes_no_other_way(solved: Solved, tmp_path: Path) -> None:
    """And `--require-fresh` leaves it out."""
    task = _task(tmp_path, "grep -q yes /tmp/it", "echo yes > /tmp/it\n")
    terms, graded = solved(task, "echo yes > /tmp/it")
    assert terms.graded == "published"
    assert (graded.scored.success, graded.graded, graded.published) == (
        True,
        "published",
        Published(True, {"reward": 1.0}),
    )
    _, graded = solved(task, "true")
    assert (graded.scored.success, graded.graded, graded.rewards) == (False, "published", {"reward": 0.0})
    able, left_out = fresh_only([task], "local", RolloutsOptions())
    assert ([*able], [each.id for each in left_out]) == ([], [task.id])


@pytest.mark.slow
def test_terms_leave_what_no_test_turned_round_changes(solved: Solved, tmp_path: Path) -> None:
    """Such as a verifier that doesn't run the tests that lie beside it."""
    tests = "python3 -c 'import sys; sys.path.insert(0, \"/app\"); import it; assert it.it == 2'"
    task = _task(tmp_path, tests, "echo 'it = 2' > it.py\n", test_it="def test_it():\n    assert 1 == 1\n")
    terms, graded = solved(task, "echo 'it = 2' > it.py")
    assert terms.lifted == ("assertions",)
    assert (graded.scored.success, graded.isolation) == (True, "in-process")


def _trial(*needed: str, carried: str = "workdir", reward: float = 1) -> Callable[[Terms], object]:
    """A trial that gets the reward where these guards are lifted."""

    async def trial(terms: Terms) -> VerifierRun:
        passes = {*needed} <= {*terms.lifted} and carried in ("workdir", terms.carried)
        return VerifierRun(Ended(0, ""), {"reward": reward * passes}, tests={"a": True, "b": False})

    return trial


@pytest.mark.parametrize("needed", [(), ("settings",), ("links", "signals"), LIFTABLE])
@pytest.mark.parametrize("carried", ["workdir", "root"])
@pytest.mark.parametrize(("reward", "solution"), [(1, "passed"), (0.25, "in part")])
def test_terms_lift_no_guard_too_many(needed: tuple[str, ...], carried: str, reward: float, solution: str) -> None:
    trial = _trial(*needed, carried=carried, reward=reward)
    found = asyncio.run(terms_module._strictest(trial))  # type: ignore[arg-type]
    assert found.solution == solution
    assert {*found.lifted} == {*needed}
    assert found.carried == carried
    assert found.tests == (() if "reports" in needed else ("a",))


@pytest.fixture
def verdict(runner: asyncio.Runner, local: Local, tmp_path: Path) -> Callable[[str], Verdict]:
    """The verdict on an empty diff for a task whose verifier gives this reward to any work."""

    def judged(reward: str) -> Verdict:
        folder = written(tmp_path / "t", "")
        (folder / "solution").mkdir(exist_ok=True)
        (folder / "solution/solve.sh").write_text("true\n")
        (folder / "tests/test.sh").write_text(f"echo {reward} > /logs/verifier/reward.txt\n")
        suite = RolloutsSuite.load(SuiteSource(folder, RolloutsOptions(), sandbox="local"))
        suite._stores.backends[""] = local
        return runner.run(
            suite.judge(suite.tasks[0], "", cast("JudgeContext", SimpleNamespace(ask=None, workspace=None)))
        )

    return judged


def test_task_whose_own_solution_gets_no_reward_is_at_fault(verdict: Callable[[str], Verdict]) -> None:
    with pytest.raises(Fault, match="its own solution gets no reward here") as raised:
        verdict("0")

    assert raised.value.cause == "task"


def test_task_whose_own_solution_gets_a_part_of_the_reward_is_graded(
    verdict: Callable[[str], Verdict], cache: Path
) -> None:
    found = verdict("0.25")

    assert (found.verdict, found.score) == ("failed", 0.25)
    assert not (cache / "koderz/terms").exists()  # since it may do better another time


@pytest.mark.parametrize(
    ("one", "two", "toml", "is_rewarded"),
    [
        ("failed", "failed", "", False),
        ("failed", "passed", "", True),
        ("in part", "failed", "", True),
        ("failed", "passed", "min_reward = 1\n", False),
        ("passed", "failed", 'multi_step_reward_strategy = "final"\n', False),
        ("failed", "passed", 'multi_step_reward_strategy = "final"\n', True),
    ],
)
def test_solution_of_steps_is_rewarded_where_one_that_counts_is(
    one: Solution,
    two: Solution,
    toml: str,
    is_rewarded: bool,
    runner: asyncio.Runner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, least = ("", toml) if toml.startswith("min_reward") else (toml, "")
    steps = f'{table}[[steps]]\nname = "one"\n{least}[[steps]]\nname = "two"\n'
    files = {"instruction.md": "", **{f"steps/{name}/instruction.md": "Do it." for name in ("one", "two")}}
    suite = RolloutsSuite.load(SuiteSource(written(tmp_path / "t", steps, files), RolloutsOptions(), sandbox="local"))
    first, second = suite.tasks[0].payload.stages
    found = {first.task.digest: Terms(solution=one), second.task.digest: Terms(solution=two)}

    async def terms_of_step(task: Rollout, *_: object) -> Terms:
        return found[task.digest]

    monkeypatch.setattr(suite_module, "terms_of", terms_of_step)

    assert runner.run(suite._is_rewarded(first.task)) is is_rewarded


def test_environment_that_cannot_be_made_is_a_fault_of_the_task(
    runner: asyncio.Runner, local: Local, tmp_path: Path
) -> None:
    folder = written(tmp_path / "t", "")
    (folder / "environment/Dockerfile").write_text("FROM x\nWORKDIR /work\nRUN exit 3\n")

    with pytest.raises(Fault, match=r"RUN .* fails") as raised:
        runner.run(prepared(load_task(folder), tmp_path / "store", local))

    assert raised.value.cause == "task"


def test_terms_are_the_strictest_where_nothing_is_rewarded() -> None:
    found = asyncio.run(terms_module._strictest(_trial("unknown")))  # type: ignore[arg-type]
    assert found == Terms(solution="failed")


@pytest.mark.parametrize(
    ("path", "is_new", "wanted"),
    [
        ("/opt/answer.txt", True, True),
        ("/usr/local/lib/python3.11/dist-packages/mine/__init__.py", True, True),
        ("/usr/local/bin/mine", True, True),
        ("/root/answer", False, True),
        ("/usr/local/bin/grep", True, False),
        ("/home/user/bin/pytest", True, False),
        ("/usr/bin/env", False, False),
        ("/root/.bashrc", True, False),
        ("/usr/lib/python3/dist-packages/x.pth", True, False),
        ("/usr/lib/python3/dist-packages/json.py", True, False),
        ("/usr/local/lib/python3.11/dist-packages/_pytest/x.py", True, False),
        ("/etc/ld.so.preload", True, False),
        ("/tests/x", True, False),
        ("/tmp/x", True, False),
        ("/app/x", True, False),
    ],
)
def test_carried_changes_leave_out_what_a_verifier_uses(path: str, is_new: bool, wanted: bool) -> None:
    assert is_work(path, {"grep", "pytest", "env"}, "/app", is_new=is_new) is wanted
