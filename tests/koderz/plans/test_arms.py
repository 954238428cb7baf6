"""Which arms a plan has: solvers, models and roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.plans.arms import asked_models, make_arms
from koderz.settings.schema import Settings
from tests.koderz.world import settings_of

FRONTIER: dict[str, Any] = {"frontier_spec_model": "s", "frontier_checkpoint_model": "c"}


def roles(settings: Settings) -> dict[str, dict[str, str]]:
    """The models of each arm, by its name."""
    return {arm.name: dict(arm.models) for arm in make_arms(settings, {})}


def test_arms_of_one_model_go_by_their_solver() -> None:
    assert roles(settings_of(mode="comparative", local_model="m")) == {
        "zero-shot": {"main": "m"},
        "iterative": {"main": "m"},
    }


def test_arms_of_several_models_go_by_solver_and_model() -> None:
    both = settings_of(mode="comparative", local_model="a", models=("a", "openai/b"))
    assert list(roles(both)) == ["zero-shot · a", "iterative · a", "zero-shot · openai/b", "iterative · openai/b"]


def test_roles_are_those_that_a_solver_has(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("async def mine(task, ask, judge):\n    ...\n")
    asked = {"main": "m", "spec": "s", "checkpoint": "c"}

    assert roles(settings_of(mode="zero-shot", local_model="m", **FRONTIER)) == {"zero-shot": {"main": "m"}}
    assert roles(settings_of(local_model="m", **FRONTIER)) == {"iterative": asked}
    assert roles(settings_of(local_model="m", spec=False, checkpoints=False, **FRONTIER)) == {
        "iterative": {"main": "m"}
    }
    assert roles(settings_of(local_model="m", solver=f"{own}:mine", **FRONTIER)) == {"mine": asked}


def test_roles_given_by_name_are_refused_where_the_solver_lacks_them(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("async def mine(task, ask, judge):\n    ...\n")

    assert roles(settings_of(local_model="m", solver=f"{own}:mine", roles=("judge=j",))) == {
        "mine": {"main": "m", "judge": "j"}
    }
    with pytest.raises(KoderzError, match="--role judge=…: the solver iterative has no such role"):
        roles(settings_of(local_model="m", roles=("judge=j",)))


def test_models_that_are_asked_stand_once_those_that_answer_first() -> None:
    settings = settings_of(local_model="a", models=("a", "b"), frontier_spec_model="b", frontier_checkpoint_model="c")
    assert asked_models(make_arms(settings, {})) == ["a", "b", "c"]
