"""A function of Modal's that holds keys runs no candidate."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.modal.worker import ContainerState
from koderz.testing.engines import performed, planned
from koderz_tracker.records import Attempt
from tests.conftest import Shell
from tests.loopback_modal import ModalServer
from tests.toys.toy_suite import ToySession

LOOKING = '''
import os

LOOK = """
import os

def f0():
    return [os.path.exists("/root/koderz"), os.path.exists("/results"), sorted(os.environ)]
"""

async def looking(task, ask, judge):
    assert os.path.exists("/root/koderz") and os.path.exists("/results"), "this isn't the function's container"
    assert os.environ["OPENAI_API_KEY"]
    return await judge(task, LOOK)
'''
DATASET = (
    '{"task_id": "T/0", "entry_point": "f0", "prompt": "def f0():\\n", "canonical_solution": '
    '"    return [False, False, []]\\n", "test": "def check(candidate):\\n    assert candidate() == '
    '[False, False, []], candidate()\\n"}\n'
)


@pytest.mark.slow
def test_candidate_sandboxes_have_no_keys_and_no_network(tmp_path: Path, cloud: ModalServer) -> None:
    (tmp_path / "looking.py").write_text(LOOKING)
    (tmp_path / "look.jsonl").write_text(DATASET)
    known = len(cloud.sandboxes)

    async def story() -> list[Attempt]:
        given = {"solver": f"{tmp_path}/looking.py:looking", "dataset": tmp_path / "look.jsonl"}
        notes = await performed(await planned(tmp_path, "modal", tasks=1, **given), os.environ)
        return [line for line in notes.lines if isinstance(line, Attempt)]

    (attempt,) = asyncio.run(story())

    assert (attempt.verdict, attempt.sandbox) == ("passed", "modal"), attempt.feedback
    made = cloud.sandboxes[known:]
    assert made
    for one in made:
        assert one.blocks_network
        assert (one.secrets, one.variables, [*one.asked.volume_mounts], [*one.asked.mount_ids]) == ((), (), [], [])


def test_container_opens_once_what_the_sessions_of_a_run_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        plan = await planned(tmp_path, "modal", tasks=1)
        suite = ToySession()

        async def working(session: object) -> None: ...

        arms = tuple(replace(arm, solver=replace(arm.solver, function=working)) for arm in plan.arms)
        state = ContainerState(replace(plan, suite=suite, tasks=suite.tasks, arms=arms), {})
        await asyncio.gather(state.opened(), state.opened())
        shared = state.resources.shared
        await state.opened()
        assert state.resources.shared is shared == Counter()
        await state.aclose()

    asyncio.run(story())
    assert capsys.readouterr().err.count("opened once") == 1


@pytest.mark.parametrize("sandbox", ["contained", "docker", "uncontained"])
def test_sandbox_inside_of_the_function_is_refused(sandbox: str, tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match=f"--sandbox {sandbox}: Modal's functions hold keys"):
        asyncio.run(planned(tmp_path, "modal", tasks=1, sandbox=sandbox))
    plan = asyncio.run(planned(tmp_path, "modal", tasks=1))
    assert plan.settings.sandbox == plan.record.config["sandbox"] == "modal"
    with pytest.raises(KoderzError, match="functions hold keys"):  # nor does a plan that came some other way
        ContainerState(replace(plan, settings=replace(plan.settings, sandbox=sandbox)), {})


def test_refusal_is_one_line(koderz: Shell) -> None:
    line = ("benchmark", 0, 1, "--model", "simulated", "--engine", "modal", "--sandbox", "contained")
    done = koderz(*line, code=2)
    assert "koderz: --sandbox contained: Modal's functions hold keys" in done.err
    assert "Traceback" not in done.err
