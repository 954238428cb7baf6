"""All solvers pass the tests that every solver has to pass."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.solvers import SOLVERS
from koderz.testing import StreamingServer
from koderz.testing.solvers import CHECKS, Check, Trial
from tests.koderz.suites.datasets import LONG, SEARCH, settings_of
from tests.koderz.suites.rows import written

PROGRAMS = ("codex", "claude-code", "aider", "mini-swe-agent")

LOOP = {"roles": ("spec=simulated", "checkpoint=simulated"), "max_iterations": 4, "checkpoint_interval": 2}
TEXTS = {"suite": "ruler", **LONG}
ITEMS = {"suite": "datasets", **SEARCH}
TRIALS = {
    each.solver: each
    for each in (
        Trial("zero-shot"),
        Trial("iterative", {**LOOP, "simulated_skill": 0.0}, cuts=6),
        Trial("direct", TEXTS),
        Trial("compaction", TEXTS),
        Trial("rlm", TEXTS, cuts=4),
        *(Trial(name, ITEMS, cuts=4) for name in ("none", "random_search", "few_shot", "meta_prompt", "gepa")),
        *(Trial(name, ITEMS, cuts=4) for name in ("evolutionary_optimizer", "hierarchical_reflective")),
        *(Trial(f"agent:{name}", {"suite": "rollouts"}, cuts=4) for name in ("koderz", "oracle", "nop", "scripted")),
        Trial("patching", {"suite": "iso"}, cuts=3),
        Trial("patch:given", {"suite": "iso"}, cuts=3),
        Trial("serve-bench", {"suite": "serving", "num_prompts": 2}),
    )
}
PLANNED = {
    **{name: Trial(name, {"suite": "iso"}) for name in ("patch:base", "patch:human")},
    **{f"agent:{name}": Trial(f"agent:{name}", {"suite": "rollouts"}) for name in PROGRAMS},
}
"""Solvers that are planned alone: a busy machine is a fault to those that measure, and agents are others' programs."""

BROKEN = {
    "signature_names_handles_first": "async def solve(task, ask, jugde=None): ...",
    "declarations_name_what_there_is": "@solver(choices={'way': ('a', 'b')})\nasync def solve(task, *, ways='a'): ...",
    "replay_repeats_no_call": (
        "runs = []\n\n\nasync def solve(task, ask, judge):\n    runs.append(task)\n"
        "    return await judge(task, await ask(task.messages, seed=len(runs)))"
    ),
    "estimate_covers_the_calls": (
        "async def solve(task, ask, judge):\n    await ask(task.messages, seed=1)\n"
        "    return await judge(task, await ask(task.messages))"
    ),
    "a_hostile_reply_is_no_fault": (
        "async def solve(task, ask, judge):\n    reply = await ask(task.messages)\n"
        "    return await judge(task, reply.text[0])"
    ),
}


def test_solver_of_the_registry_is_tried() -> None:
    assert SOLVERS.keys() == {*TRIALS, *PLANNED}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_solver_passes(name: str, tmp_path: Path) -> None:
    trial = with_files(TRIALS[name], tmp_path)

    async def tried(**more: Any) -> None:
        for check in CHECKS:
            await check(tmp_path, replace(trial, settings={**trial.settings, **more}))

    async def tried_at_a_server() -> None:
        async with StreamingServer(models=("simulated",)) as server:
            await tried(base_url=server.url)

    asyncio.run(tried_at_a_server() if name == "serve-bench" else tried())


@pytest.mark.parametrize("name", PLANNED)
def test_solver_is_declared_whole(name: str, tmp_path: Path) -> None:
    trial = with_files(PLANNED[name], tmp_path)
    for check in CHECKS[:2]:
        asyncio.run(check(tmp_path, trial))


def with_files(trial: Trial, folder: Path) -> Trial:
    """The trial with the files that it needs."""
    more: dict[str, Any] = {}
    if trial.settings.get("suite") == "iso":
        more |= settings_of("iso", folder)
    if trial.solver == "agent:scripted":
        more["script"] = folder / "script.sh"
        more["script"].write_text("true\n")
    if trial.solver == "patch:given":
        row = json.loads(more["dataset"].read_text())
        predicted = {"instance_id": row["instance_id"], "model_patch": "It can't be applied.\n"}
        more["predictions"] = (str(written(folder / "predictions.jsonl", predicted)),)
    return replace(trial, settings={**trial.settings, **more})


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_solver_that_breaks_a_rule_does_not_pass(check: Check, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"from koderz.extend import solver\n\n\n{BROKEN[check.__name__]}\n")

    with pytest.raises(AssertionError):
        asyncio.run(check(tmp_path, Trial(f"{tmp_path}/own.py:solve")))
