"""`koderz decide` before anything is asked: its dry run, what it refuses, and how its options are written."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Shell

DRY = ("--dry-run", "--max-tokens", 400)
PRICES = '[prices."openai/a"]\ninput = 10.0\noutput = 20.0\n'


def test_dry_run_says_when_it_will_be_decided_and_for_how_much(koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text(PRICES)
    line = koderz("decide", "simulated", "openai/a", *DRY).out.splitlines()[-1]
    found = json.loads(koderz("decide", "simulated", "openai/a", *DRY, "--json").out)["estimate"]["decision"]

    half, _ = found["endings"]
    assert line == (
        "If B is 10 points better and the two part on 20 % of tasks: decided after 145 of 164 tasks in half of the "
        f"cases (about ${half['cost'][0]:.2f}), by the end in fewer than nine of ten (which takes 322)"
    )
    assert (found["planned"], half["tasks"]) == (164, 145)
    assert half["cost"][0] > 0
    assert "decided" not in koderz("benchmark", 0, 2, "--model", "simulated", "--dry-run").out


def test_until_decided_may_name_any_arm_and_stand_before_numbers(koderz: Shell) -> None:
    (koderz.folder / "arms.toml").write_text(
        "".join(f'[[arms]]\nname = "{name}"\nsolver = "zero-shot"\nmodel = "simulated"\n' for name in ("one", "two"))
    )
    for written in (("--until-decided", "two", 0, 30), ("--until-decided=two", "--limit", 30)):
        found = koderz("benchmark", "--matrix", "arms.toml", *written, "--dry-run", "--json").out
        assert json.loads(found)["config"]["until_decided"] == "two"
    found = koderz("benchmark", "--matrix", "arms.toml", "--until-decided", 0, 30, "--dry-run", "--json").out
    assert json.loads(found)["config"]["until_decided"] == "first"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("decide", "a", "a"), "A and B are both a; name two models"),
        (("decide", "a", "b", "--model", "c"), "--model has no effect here: use the arguments A and B"),
        (("benchmark", 0, 2, "--until-decided"), "--until-decided compares arms, and this run has one"),
        (("benchmark", 0, 2, "--margin", 3), "--margin is for runs with --until-decided"),
        (("benchmark", 0, 2, "--fail-on-regression"), "--fail-on-regression is for runs with --until-decided"),
    ],
)
def test_decide_refuses_what_it_can_not_compare(koderz: Shell, arguments: tuple[object, ...], error: str) -> None:
    model = () if "decide" in arguments else ("--model", "simulated")
    assert error in koderz(*arguments, *model, code=2).err
    assert not koderz.results.exists()
