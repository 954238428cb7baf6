"""A run that stopped once it was decided, as every command shows it."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Shell
from tests.koderz.analysis.test_stopped import FIXED, fixed_in

pytestmark = pytest.mark.slow


def test_stopped_run_has_no_fixed_figure_in_any_command(koderz: Shell) -> None:
    koderz("benchmark", 0, 164, "--mode", "comparative", "--model", "simulated", "--until-decided")
    summary = koderz.summary()
    mark = f"stopped early: shown after {summary['decision']['tasks']} of 164"

    assert fixed_in(summary) == []
    assert mark in koderz("benchmark", "list").out
    told = koderz("benchmark", "show", "latest").out
    assert f"S{mark[1:]}" in told
    assert "of 164 tasks that were asked" in told
    compared = koderz("benchmark", "compare", "latest").out
    assert "B is better: +" in compared
    koderz("benchmark", "report", "latest", "-o", "report.html")
    page = (koderz.folder / "report.html").read_text()
    assert "Decision: iterative less zero-shot" in page
    eee = ("--format", "eee", "--organization", "X", "--relationship", "other", "--arm", "iterative", "-o", "eee")
    koderz("benchmark", "export", "latest", *eee)
    exported = [path.read_text() for path in (koderz.folder / "eee").rglob("*.json")]
    assert any("valid at any stop" in text for text in exported)
    assert [text for text in (told, compared, page, *exported) if FIXED.search(text)] == []
    assert fixed_in(json.loads(koderz("benchmark", "compare", "latest", "--json").out)) == []


def test_stopped_run_that_went_on_has_none_either_beside_a_fixed_one(koderz: Shell) -> None:
    run = ("benchmark", 0, 40, "--mode", "comparative", "--model", "simulated")
    koderz(*run, "--until-decided", "--seed", 1)
    koderz("benchmark", "resume", "latest", "--past-decision")
    koderz(*run, "--seed", 2)

    found = json.loads(koderz("benchmark", "compare", "latest~1", "latest", "--json").out)

    assert found["pairs"] == 40
    assert (
        fixed_in({**found, "b": None, "arms": {name: {**arm, "b": None} for name, arm in found["arms"].items()}}) == []
    )
    sequential = json.loads(koderz("benchmark", "compare", "latest", "--sequential", "--json").out)["sequential"]
    assert sequential["planned"] == 40
    assert sequential["outcome"] in ("shown", "futile", "tasks")
