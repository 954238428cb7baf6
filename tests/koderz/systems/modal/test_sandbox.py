"""The same judge with its candidates in Modal's sandboxes, on a loopback Modal that starts real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from koderz.errors import Unreachable
from koderz.sandbox import Job, JobResult, open_sandbox
from koderz.sandbox.linux import isolation
from koderz.systems.modal.sandbox import make_ready
from tests.conftest import Shell, judges, wait_for
from tests.loopback_modal import ModalServer

pytestmark = pytest.mark.slow

TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n"
RIGHT = "def add(x, y): return x + y"


@pytest.fixture(autouse=True)
def seccomp(holds: frozenset[str]) -> None:
    if isolation.SECCOMP not in holds:
        pytest.skip("this machine has no seccomp")


def judged(*jobs: Job) -> list[JobResult]:
    async def all_of_them() -> list[JobResult]:
        async with open_sandbox("modal", judges=1) as sandbox:
            return [await sandbox.judge(job) for job in jobs]

    return asyncio.run(all_of_them())


def add(source: str, test: str = TEST, **settings: float) -> Job:
    return Job(source, test, "add", **settings)  # type: ignore[arg-type]


def test_sandbox_serves_many_candidates_without_network_or_secrets(cloud: ModalServer) -> None:
    before = len(cloud.sandboxes)
    outcomes = judged(*(add(f"{RIGHT}  # {number}") for number in range(3)))
    assert {(outcome.verdict, outcome.isolation) for outcome in outcomes} == {("passed", "modal")}
    (asked,) = cloud.sandboxes[before:]
    assert asked.blocks_network
    assert not asked.lives
    assert (asked.secrets, asked.variables, [*asked.asked.volume_mounts]) == ((), (), [])
    assert (asked.asked.resources.milli_cpu, asked.asked.resources.memory_mb_max) == (1000, 1536)


def test_candidate_finds_no_variables_no_network_and_no_token(
    cloud: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    look = "import os\ndef add(x, y): return sorted(os.environ)"
    nothing = "def check(f):\n    assert f(1, 2) == []\n"
    port = cloud.url.rpartition(":")[2]
    reach = f"import socket\ndef add(x, y):\n    socket.create_connection(('127.0.0.1', {port}), 5)\n    return 3"
    own = "import os\ndef check(f):\n    assert not [name for name in os.environ if name[:5] in ('MODAL', 'OPENA')]\n"
    looked, reached, in_judge = judged(add(look, nothing), add(reach), add(RIGHT, f"{own}    assert f(1, 2) == 3\n"))
    assert (looked.verdict, in_judge.verdict) == ("passed", "passed"), (looked.message, in_judge.message)
    assert reached.verdict == "error", reached.message


def test_killed_judge_leaves_nothing(cloud: ModalServer) -> None:
    known = len(cloud.sandboxes)

    async def story() -> None:
        async with open_sandbox("modal", judges=1) as sandbox:
            first = await sandbox.judge(add(RIGHT))
            os.killpg(min(judges()), signal.SIGKILL)  # as the pool does, too
            second = await sandbox.judge(add(f"{RIGHT}  # again"))
            assert (first.verdict, second.verdict) == ("passed", "passed")

    asyncio.run(story())
    wait_for(lambda: not any(one.lives for one in cloud.sandboxes[known:]))  # others' containers may be idle yet
    assert len(cloud.sandboxes) - known == 2
    wait_for(lambda: not judges())


def test_sandbox_that_modal_ended_has_a_successor(cloud: ModalServer) -> None:
    known = len(cloud.sandboxes)

    async def story() -> None:
        async with open_sandbox("modal", judges=1) as sandbox:
            await sandbox.judge(add(RIGHT))
            cloud.preempt(cloud.sandboxes[-1].id)
            assert (await sandbox.judge(add(f"{RIGHT}  # again"))).verdict == "passed"

    asyncio.run(story())
    assert len(cloud.sandboxes) - known == 2


def test_missing_network_is_told_in_one_line(cloud: ModalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from modal.config import config

    assert config["server_url"] == cloud.url
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"--sandbox modal: Modal can't be reached at 127\.0\.0\.1:9"):
        asyncio.run(make_ready("koderz"))


def test_missing_token_names_the_command_that_gets_one(koderz: Shell, deployed: ModalServer) -> None:
    Path(koderz.folder, "program.py").write_text("def truncate_number(number): return number % 1\n")
    line = ("judge", "program.py", "--task", "HumanEval/2", "--sandbox", "modal")
    done = koderz(*line, code=4, env={**deployed.environment, "MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""})
    assert "run: modal setup" in done.err
    assert len(done.err.splitlines()) == 1


def test_command_line_judges_on_modal(koderz: Shell, deployed: ModalServer) -> None:
    done = koderz(
        *("benchmark", 0, 2, "--model", "simulated", "--mode", "zero-shot", "--sandbox", "modal", "--judges", 1),
        env=deployed.environment,
    )
    attempts = [line for line in koderz.journal() if line["kind"] == "attempt"]
    assert {attempt["sandbox"] for attempt in attempts} == {"modal"}, done.err
    assert koderz.summary()["environment"]["sandbox"] == "modal"


def test_doctor_says_what_of_modal_would_work(koderz: Shell, deployed: ModalServer) -> None:
    def told(env: dict[str, str]) -> dict[str, str]:
        (found,) = (one for one in json.loads(koderz("doctor", "--json", env=env).out) if one["what"] == "modal")
        return dict(found)

    there = told(deployed.environment)
    assert (there["state"], there["detail"]) == ("ok", "--sandbox modal, and the app koderz for --engine modal")
    without = told({"MODAL_CONFIG_PATH": str(koderz.folder / "absent.toml")})
    assert without["state"] == "missing"
    assert "modal setup" in without["remedy"]
    offline = told({**deployed.environment, "MODAL_SERVER_URL": "http://127.0.0.1:9"})
    assert offline["detail"].startswith("Modal can't be reached at 127.0.0.1:9 (Connection refused)")
