"""Harbor's order of events: healthchecks, steps, hooks, artifacts, and verifiers with machines of their own."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.solvers.definition import WorkspaceHandle
from koderz.systems.rollouts.agents import StepWork, goes_on, judged, rewards_of, summed_up
from koderz.systems.rollouts.checking import check
from koderz.systems.rollouts.environments.trees import files_shown
from koderz.systems.rollouts.grading import Graded, grade
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout, Stage
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.artifacts import Collected, keep, put_back, unpack
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz.systems.workspaces.local import Local
from koderz.types import Reply, Task, Verdict
from tests.koderz.systems.rollouts.tasks.test_harbor import loaded

REWARD = "echo $((! $?)) > /logs/verifier/reward.txt\n"
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'

Run = Callable[[Rollout, str], Graded]


@pytest.fixture
def run(local: Local, runner: asyncio.Runner) -> Run:
    """The grading of a task on which an agent has run a line."""

    def graded(task: Rollout, line: str) -> Graded:
        async def worked() -> Graded:
            stores = Stores({"": local})
            with scratch() as place:
                workspace = Workspace(task, stores, place, at_once, RolloutsOptions())
                await workspace.shell(line)
                diff = str((await workspace.diff())["diff"])
                return await grade(task, Work(diff, place, workspace.collected), stores)

        return runner.run(worked())

    return graded


def test_separate_verifier_gets_artifacts_alone(tmp_path: Path, run: Run) -> None:
    toml = 'artifacts = ["/app/out", {source = "/tmp/report", exclude = ["*.log"]}, "rel.txt"]\n' + SEPARATE
    test = "cat out/a && cat /tmp/report/b && test ! -e /tmp/report/c.log -a ! -e other && cat rel.txt\n" + REWARD
    task = loaded(tmp_path / "t", toml, {"tests/test.sh": test})
    line = "mkdir out /tmp/report; touch out/a other rel.txt /tmp/report/b /tmp/report/c.log"
    found = run(task, line)
    assert (found.scored.success, found.graded, found.published) == (True, "fresh", None)
    assert not run(task, line + "; rm rel.txt").scored.success


def test_published_folder_always_travels_and_hooks_fill_it(tmp_path: Path, run: Run) -> None:
    toml = SEPARATE + '[[verifier.collect]]\ncommand = "cp data.txt /logs/artifacts/copied; false"\n'
    test = "cat /logs/artifacts/copied /logs/artifacts/own\n" + REWARD
    task = loaded(tmp_path / "t", toml, {"tests/test.sh": test})
    assert run(task, "echo 1 > data.txt; echo 2 > /logs/artifacts/own").scored.success


def test_separate_verifier_sees_nothing_else_of_the_agents(tmp_path: Path, run: Run) -> None:
    test = "test ! -e made -a ! -e ~/made -a ! -e /tmp/made\n" + REWARD
    task = loaded(tmp_path / "t", SEPARATE, {"tests/test.sh": test})
    assert run(task, "touch made ~/made /tmp/made").scored.success


def test_artifact_that_shadows_the_verifier_is_put_aside(tmp_path: Path, run: Run) -> None:
    toml = 'artifacts = ["/app"]\n' + SEPARATE
    test = "cat own.txt && test ! -e pytest.py -a ! -L link\n" + REWARD
    task = loaded(tmp_path / "t", toml, {"tests/test.sh": test})
    found = run(task, "touch own.txt pytest.py; ln -s /tests link; git config core.fsmonitor x")
    assert found.scored.success
    assert any("pytest.py" in each for each in found.tampering)
    assert any("link" in each for each in found.tampering)


@pytest.mark.slow
def test_dockerfile_of_tests_is_stood_in_for(tmp_path: Path, run: Run) -> None:
    toml = 'artifacts = ["/app/out"]\n' + SEPARATE
    files = {
        "tests/Dockerfile": "FROM x\nRUN uv pip install pytest==8.4.1\nWORKDIR /judge\nENV A=1\nCOPY . /tests/\n",
        "tests/test.sh": 'test $PWD = /judge -a $A = 1 -a -z "$B" && pytest /tests/test_it.py\n' + REWARD,
        "tests/test_it.py": "def test_it():\n    assert open('/app/out').read() == 'x'\n",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\nENV B=2\n",
    }
    task = loaded(tmp_path / "t", toml, files)
    assert run(task, "printf x > out").scored.success
    assert not run(task, "printf y > out").scored.success


def test_variables_are_the_verifiers_own(tmp_path: Path, run: Run) -> None:
    toml = '[environment.env]\nA = "1"\n[verifier.env]\nB = "2"\n'
    task = loaded(tmp_path / "t", toml, {"tests/test.sh": "test $A$B = 12 -a -s own\n" + REWARD})
    assert run(task, 'test -z "$B" && echo $A > own').scored.success


def test_harborignore_leaves_files_out(tmp_path: Path, run: Run, runner: asyncio.Runner) -> None:
    files = {
        "tests/.harborignore": "*.log\n!kept.log\nsub/*\n",
        "tests/a.log": "x",
        "tests/kept.log": "x",
        "tests/sub/x": "x",
        "tests/deep/.harborignore": "y\n",
        "tests/deep/y": "x",
        "tests/deep/z": "x",
        "tests/test.sh": "ls -A /tests /tests/deep > listed; test ! -e /tests/a.log -a -e /tests/kept.log\n" + REWARD,
    }
    task = loaded(tmp_path / "t", "", files)
    assert run(task, "true").scored.success
    assert {*runner.run(files_shown(tmp_path / "t/tests"))} == {"test.sh", "kept.log", "deep/z"}


@pytest.mark.parametrize(
    ("name", "text", "rewards"),
    [
        ("reward.json", '{"a": true, "b": 0.5}', {"a": 1.0, "b": 0.5}),
        ("reward.json", "1", {"reward": 1.0}),
        ("reward.txt", " 0.25\n", {"reward": 0.25}),
    ],
)
def test_rewards_are_numbers_or_tables(
    tmp_path: Path, run: Run, name: str, text: str, rewards: Mapping[str, float]
) -> None:
    test = f"echo 0 > /logs/verifier/reward.txt; printf '%s' '{text}' > /logs/verifier/{name}\n"
    assert run(loaded(tmp_path / "t", "", {"tests/test.sh": test}), "true").rewards == rewards


@pytest.mark.parametrize("text", ["", "{}", "nan", "1e309", '"1"', "[1]", '{"a": "x"}', '{"a": NaN}', "{"])
def test_reward_that_is_no_finite_number_is_a_fault(tmp_path: Path, run: Run, text: str) -> None:
    test = f"printf '%s' '{text}' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt\n"
    with pytest.raises(Fault, match="no finite number"):
        run(loaded(tmp_path / "t", "", {"tests/test.sh": test}), "true")


def test_healthcheck_is_waited_for(tmp_path: Path, run: Run) -> None:
    toml = '[environment.healthcheck]\ncommand = "mkdir a 2>/dev/null && exit 1; mkdir b 2>/dev/null && exit 1; true"\n'
    toml += "interval_sec = 0.01\n"
    task = loaded(tmp_path / "t", toml, {"tests/test.sh": "test -d a -a -d b\n" + REWARD})
    assert run(task, "true").scored.success


def test_environment_that_does_not_become_healthy_is_a_fault(tmp_path: Path, run: Run) -> None:
    toml = '[environment.healthcheck]\ncommand = "echo broken; false"\ninterval_sec = 0.01\nretries = 2\n'
    with pytest.raises(Fault, match=r"isn't healthy.*broken") as fault:
        run(loaded(tmp_path / "t", toml), "true")
    assert fault.value.cause == "healthcheck"


def test_start_period_forgives_failures(tmp_path: Path, run: Run) -> None:
    toml = '[environment.healthcheck]\ncommand = "echo >> n; test $(wc -l < n) -gt 3"\n'
    toml += "start_period_sec = 60\nstart_interval_sec = 0.01\nretries = 1\n"
    assert run(loaded(tmp_path / "t", toml), "true").scored.success


# Steps

STEPS = """
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
[steps.healthcheck]
command = "test -f ready"
interval_sec = 0.01
retries = 1
"""


def stepped(folder: Path, toml: str = STEPS, **more: str) -> Rollout:
    files = {
        "instruction.md": "",
        "tests/test.sh": "",
        "tests/shared": "both",
        "steps/one/instruction.md": "Make one.",
        "steps/one/solution/solve.sh": "echo 1 > one",
        "steps/one/tests/test.sh": "test -e one -a $(cat /tests/shared) = both\n" + REWARD,
        "steps/two/instruction.md": "Make two.",
        "steps/two/solution/solve.sh": "echo 2 > two",
        "steps/two/tests/test.sh": "test -e one -a -e two -a -e more -a $(cat /tests/shared) = own\n" + REWARD,
        "steps/two/tests/shared": "own",
        "steps/two/workdir/setup.sh": "ls /tests /logs/verifier 2>/dev/null && exit 1; touch ready",
        "steps/two/workdir/more": "x",
    }
    return loaded(folder, toml, {**files, **more})


async def worked(task: Rollout, local: Local, lines: Mapping[str, str]) -> tuple[Verdict, list[str]]:
    """The verdict on a task in whose steps an agent runs lines, and the instructions that it got."""
    stores, told = Stores({"": local}), list[str]()
    with scratch() as place:
        workspace = Workspace(task, stores, place, at_once, RolloutsOptions())

        async def work(part: Task[Rollout]) -> str:
            told.append(str(part.messages[0]["content"]))
            await workspace.shell(lines.get(part.id.rpartition("/")[2], "true"))
            return ""

        async def judge(task: Task[Any], answer: Reply | str) -> Verdict:
            found = await grade(task.payload, Work(str(answer), place), stores)
            told_of = {"rewards": found.rewards, "published": found.published and found.published._asdict()}
            word = "passed" if found.scored.success else "failed"
            return Verdict(word, found.cause, artifacts={"evaluation_results.json": json.dumps(told_of)})

        handle: WorkspaceHandle = workspace
        return await judged(Task(task.id, payload=task), judge, handle, work), told


def test_steps_are_worked_on_in_one_place(tmp_path: Path, local: Local, runner: asyncio.Runner) -> None:
    task = stepped(tmp_path / "t")
    verdict, told = runner.run(worked(task, local, {"one": "touch one", "two": "test -e more && touch two"}))
    assert told == ["Make one.", "Make two."]
    assert (verdict.verdict, verdict.score) == ("passed", 1.0)
    found = json.loads(verdict.artifacts["evaluation_results.json"])
    assert found["steps"] == [{"name": name, "rewards": {"reward": 1.0}} for name in ("one", "two")]
    assert found["published"] == {"success": True, "rewards": {"reward": 1.0}}


def test_step_below_its_least_reward_is_the_last(tmp_path: Path, local: Local, runner: asyncio.Runner) -> None:
    verdict, told = runner.run(worked(stepped(tmp_path / "t"), local, {"two": "touch one two"}))
    assert told == ["Make one."]
    assert (verdict.verdict, verdict.score) == ("failed", 0.0)


def test_setup_that_fails_in_a_later_step_is_no_fault(tmp_path: Path, local: Local, runner: asyncio.Runner) -> None:
    task = stepped(tmp_path / "t", **{"steps/two/workdir/setup.sh": "test ! -e broken"})
    verdict, told = runner.run(worked(task, local, {"one": "touch one broken"}))
    assert (told, verdict.verdict, verdict.cause, verdict.score) == (["Make one."], "failed", "no_reward", 1.0)


def test_setup_that_fails_in_the_first_step_is_a_fault(tmp_path: Path, local: Local, runner: asyncio.Runner) -> None:
    task = stepped(tmp_path / "t", **{"steps/one/workdir/setup.sh": "echo no network; exit 3"})
    with pytest.raises(Fault, match=r"setup\.sh of the step one fails: no network") as fault:
        runner.run(worked(task, local, {}))
    assert fault.value.cause == "setup"


def test_links_of_the_agent_do_not_lead_a_steps_files_away(
    tmp_path: Path, local: Local, runner: asyncio.Runner
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    task = stepped(tmp_path / "t", **{"steps/two/workdir/sub/x": "x"})
    line = f"touch one; ln -s {outside} sub; ln -s {outside}/more more"
    runner.run(worked(task, local, {"one": line}))
    assert not [*outside.iterdir()]


@pytest.mark.slow
def test_check_works_through_all_steps(tmp_path: Path, local: Local, runner: asyncio.Runner) -> None:
    assert runner.run(check(stepped(tmp_path / "t"), Stores({"": local}))).wrong == ""
    broken = stepped(tmp_path / "u", **{"steps/two/solution/solve.sh": "true"})
    assert "its own solution doesn't pass" in runner.run(check(broken, Stores({"": local}))).wrong


def _done(**rewards: float) -> StepWork:
    return StepWork("s", Verdict("failed", artifacts={"evaluation_results.json": json.dumps({"rewards": rewards})}))


def test_rewards_of_steps_are_a_mean_by_name_or_the_last(tmp_path: Path) -> None:
    task = stepped(tmp_path / "t")
    final = stepped(tmp_path / "u", 'multi_step_reward_strategy = "final"\n' + STEPS)
    each = [{"a": 1.0}, {}, {"a": 0.5, "b": 1.0}]
    assert rewards_of(task, each) == {"a": 0.75, "b": 0.5}
    assert rewards_of(final, each) == {"a": 0.5, "b": 1.0}
    assert rewards_of(task, []) == rewards_of(final, []) == {}


def test_steps_that_were_left_out_do_not_pass(tmp_path: Path) -> None:
    assert summed_up(stepped(tmp_path / "t"), [_done(reward=1.0)]).verdict == "failed"


def test_missing_name_is_below_any_least_reward(tmp_path: Path) -> None:
    stage = Stage("s", stepped(tmp_path / "t"), min_reward={"speed": -1e9})
    assert not goes_on(stage, {"reward": 1.0})
    assert goes_on(stage, {"speed": 0.0})
    assert not goes_on(Stage("s", stage.task), {})


# Archives that somebody made to leave their folder


_TYPES = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}


def _tar(*members: tuple[str, str, str]) -> bytes:
    """An archive of members: name, type, and content or target."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type = _TYPES[kind]
            info.size = len(text) if kind == "file" else 0
            info.linkname = "" if kind == "file" else text
            archive.addfile(info, io.BytesIO(text.encode()) if kind == "file" else None)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("members", "left_out"),
    [
        ([("../x", "file", "1")], "OutsideDestination"),
        ([("out/a", "link", "/etc/passwd")], "AbsoluteLink"),
        ([("out/a", "link", "../../../x")], "LinkOutsideDestination"),
        ([("out", "link", "."), ("out/../../x", "file", "1")], "OutsideDestination"),
        ([("out/a", "hard", "/etc/passwd")], "AbsoluteLink"),
        ([("out/.git/config", "file", "1")], "a repository's own file"),
    ],
)
def test_archive_that_leaves_its_folder_is_left_out(tmp_path: Path, members: Any, left_out: str) -> None:
    found = unpack(_tar(*members), tmp_path / "deep/er", "/app/out")
    assert left_out in found[0]
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "deep/x").exists()


def test_damaged_archive_is_told(tmp_path: Path) -> None:
    assert "no archive" in unpack(b"nonsense" * 100, tmp_path / "a", "/x")[0]


def test_artifacts_are_kept_at_their_destinations(tmp_path: Path) -> None:
    collected = Collected({"/app/out": _tar(("out/a", "file", "1")), "/x": _tar(("x", "file", "2"))}, ("a note",))
    keep(collected, {"/app/out": "here/it", "/x": "here/it", "/gone": "gone"}, tmp_path / "kept")
    assert (tmp_path / "kept/here/it/a").read_text() == "1"
    manifest = json.loads((tmp_path / "kept/manifest.json").read_text())
    assert [each["status"] for each in manifest["artifacts"]] == ["collected", "skipped", "missing"]
    assert manifest["notes"] == ["a note"]


def test_artifacts_that_are_all_absent_leave_a_manifest(tmp_path: Path) -> None:
    keep(Collected({}, ("/gone: there is none",)), {"/gone": "gone"}, tmp_path / "task/run")
    manifest = json.loads((tmp_path / "task/run/manifest.json").read_text())
    assert manifest["artifacts"] == [{"source": "/gone", "destination": "gone", "status": "missing"}]


def test_artifacts_survive_their_record() -> None:
    collected = Collected({"/x": b"\0\xff"}, ("n",))
    assert Collected.of_record(json.loads(json.dumps(collected.recorded()))) == collected


def test_artifacts_are_put_back_over_links(tmp_path: Path) -> None:
    checkout = tmp_path / "place/checkout"
    checkout.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (checkout / "out").symlink_to(tmp_path / "outside")
    mounts, left_out = put_back(Collected({"/app/out/a": _tar(("a", "file", "1"))}), tmp_path / "place", "/app")
    assert (mounts, left_out) == ([], [])
    assert (checkout / "out/a").read_text() == "1"
    assert not [*(tmp_path / "outside").iterdir()]


def test_repository_in_artifacts_reaches_the_verifier_alone(tmp_path: Path) -> None:
    """Where results are kept, somebody might use git, which does what the agent's settings say."""
    own = tmp_path / "place/checkout/.git"
    own.mkdir(parents=True)
    for name in ("object", "HEAD"):
        (own / name).write_text("old")
        (own / name).chmod(0o444)
    collected = Collected({"/app": _tar(("./.git/HEAD", "file", "new"), ("./a", "file", "1"))})
    assert put_back(collected, tmp_path / "place", "/app") == ([], [])
    assert [(own / name).read_text() for name in ("object", "HEAD")] == ["old", "new"]
    keep(collected, {"/app": "app"}, tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept/app").iterdir()] == ["a"]
