"""Optimizers find what helps where anything does, and nothing where nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.solvers import load_solver
from koderz.solvers.optimizers import writing
from tests.koderz.solvers.optimizers.worlds import World, gain, searched

WRITERS = ("meta_prompt", "evolutionary_optimizer", "hierarchical_reflective", "gepa")


@pytest.mark.slow
@pytest.mark.parametrize("solver", WRITERS)
def test_writers_of_prompts_find_the_rules_that_help(tmp_path: Path, solver: str) -> None:
    drawn = searched(tmp_path / "drawn", World("rule"), "none", "random_search", seeds=2)
    run = searched(tmp_path, World("rule"), "none", solver, seeds=2)
    assert gain(run, solver) >= 0.25
    assert gain(run, solver) >= gain(drawn, "random_search") + 0.1


@pytest.mark.slow
def test_few_shot_finds_the_examples_that_help(tmp_path: Path) -> None:
    assert gain(searched(tmp_path, World("example"), "none", "few_shot", seeds=2), "few_shot") >= 0.25


def test_an_evolution_without_a_model_that_writes_works_on_sentences(tmp_path: Path) -> None:
    run = searched(tmp_path, World("rule"), "evolutionary_optimizer", reasoning=False, budget_calls=150)
    assert not [call for call in run.of("call") if call.purpose == "propose"]
    assert run.ended.status == "complete"


def test_writers_say_that_they_take_a_model(tmp_path: Path) -> None:
    for name in ("meta_prompt", "hierarchical_reflective", "gepa"):
        with pytest.raises(KoderzError, match="--reasoning-model"):
            load_solver(name, {}, {}).at_hand({"reasoning": False}, (), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "package"), [("few_shot", "optuna"), ("gepa", "gepa")])
def test_an_absent_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setattr(writing, "find_spec", lambda _: None)
    with pytest.raises(KoderzError, match=rf"{package}: pip install 'koderz\[optimizers\]'"):
        load_solver(name, {}, {}).at_hand({}, (), None)  # type: ignore[arg-type]
