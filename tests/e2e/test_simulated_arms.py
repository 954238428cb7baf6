"""Runs that have simulated arms beside real ones, from the plan to what every screen says of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from koderz.systems.rollouts.suite import SAMPLE
from tests.conftest import Server, Shell

ENTRIES = "".join(
    f'[[tasks]]\nprepared_dir = "{SAMPLE}/greeting"\n{more}\n'
    for more in ('model = "gpt-4o-mini"', 'agent = "oracle"', 'agent = "nop"')
)
CAUTION = "SIMULATED ARMS, oracle, nop: their figures say nothing about any real model"


@pytest.mark.slow
def test_oracle_leaves_a_paid_run_of_rollouts_real(koderz: Shell, serve: Callable[..., Server]) -> None:
    env = serve("--model", "gpt-4o-mini").env()
    (koderz.folder / "mixed.toml").write_text(ENTRIES)

    done = koderz("rollouts", "run", "mixed.toml", "--sandbox", "local", env=env)

    summary = koderz.summary()
    marked = {name: arm.get("simulated", summary["simulated"]) for name, arm in summary["arms"].items()}
    assert summary["simulated"] is False
    assert marked == {"koderz · gpt-4o-mini": False, "oracle": True, "nop": True}
    for said in (done.out, koderz("benchmark", "show", "latest").out):
        assert CAUTION in said
        assert "SIMULATED MODEL" not in said
    listed = koderz("benchmark", "list").out
    assert "oracle (SIMULATED)" in listed
    assert "koderz · gpt-4o-mini (" not in listed
    koderz("benchmark", "report")
    page = (koderz.folder / "report.html").read_text()
    assert "<strong>Simulated model.</strong>" not in page
    assert "Simulated arms, " in page
    assert "<h1>gpt-4o-mini on " in page


@pytest.mark.slow
def test_compare_takes_the_real_arms_of_two_runs_with_an_oracle(koderz: Shell, serve: Callable[..., Server]) -> None:
    env = serve("--model", "gpt-4o-mini").env()
    (koderz.folder / "arms.toml").write_text(
        '[[arms]]\nname = "oracle"\nsolver = "zero-shot"\nmodel = "simulated"\n'
        '[[arms]]\nname = "paid"\nsolver = "zero-shot"\nmodel = "gpt-4o-mini"\n'
    )
    for _ in range(2):
        koderz("benchmark", 0, 4, "--matrix", "arms.toml", "--quiet", env=env)

    found = json.loads(koderz("benchmark", "compare", "latest~1", "latest", "--json").out)
    refused = koderz("benchmark", "compare", "latest", "--arm", "paid", code=2).err

    assert (found["a"]["arm"], found["a"]["simulated"], found["arms"]) == ("paid", False, {})
    assert "is of the SIMULATED model" in refused
    koderz("benchmark", "compare", "latest", "--arm", "paid", "--allow-simulated")
