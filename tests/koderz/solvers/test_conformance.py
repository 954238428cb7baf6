"""Solvers that work without a model of their own pass the tests that every solver has to pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from koderz.testing.solvers import CHECKS, Check, Trial

LONG = {"suite": "ruler", "context_lengths": ("1024",)}
SEARCH = {"suite": "datasets", "budget_calls": 30, "validation_items": 10, "test_items": 10, "train_items": 10}

TRIALS = {
    "zero-shot": Trial("zero-shot"),
    "iterative": Trial(
        "iterative",
        {
            "roles": ("spec=simulated", "checkpoint=simulated"),
            "simulated_skill": 0.0,
            "max_iterations": 4,
            "checkpoint_interval": 2,
        },
        cuts=6,
    ),
}

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
}

SLOW = {
    "direct": Trial("direct", LONG),
    "compaction": Trial("compaction", LONG),
    "rlm": Trial("rlm", LONG, cuts=4),
    "none": Trial("none", SEARCH, cuts=4),
    "random_search": Trial("random_search", SEARCH, cuts=4),
    "evolutionary_optimizer": Trial("evolutionary_optimizer", SEARCH, cuts=4),
    "agent:koderz": Trial("agent:koderz", {"suite": "rollouts"}, cuts=4),
    "agent:oracle": Trial("agent:oracle", {"suite": "rollouts"}, cuts=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", TRIALS)
def test_solver_passes(name: str, check: Check, tmp_path: Path) -> None:
    asyncio.run(check(tmp_path, TRIALS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SLOW)
def test_solver_passes_in_its_system(name: str, check: Check, tmp_path: Path) -> None:
    asyncio.run(check(tmp_path, SLOW[name]))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_solver_that_breaks_a_rule_does_not_pass(check: Check, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"from koderz.extend import solver\n\n\n{BROKEN[check.__name__]}\n")

    with pytest.raises(AssertionError):
        asyncio.run(check(tmp_path, Trial(f"{tmp_path}/own.py:solve")))
