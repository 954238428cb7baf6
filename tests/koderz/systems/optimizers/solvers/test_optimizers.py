"""Optimizers find what helps where anything does, and nothing where nothing does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.plans.arms import restore_arms
from koderz.settings.installation import extra_command
from koderz.solvers import load_solver
from koderz.systems.optimizers.solvers.originals import DIFFERS
from koderz_tracker import records
from tests.koderz.systems.optimizers.solvers.worlds import World, candidates_of, gain, plan_of, results_of, searched
from tests.koderz.world import settings_of

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


def test_evolutionary_without_a_writing_model_works_on_sentences(tmp_path: Path) -> None:
    run = searched(tmp_path, World("rule"), "evolutionary_optimizer", reasoning=False, budget_calls=150)
    assert not [call for call in run.of("call") if call.purpose == "propose"]
    assert run.ended.status == "complete"


def test_writers_say_that_they_take_a_model(tmp_path: Path) -> None:
    for name in ("meta_prompt", "hierarchical_reflective", "gepa"):
        with pytest.raises(KoderzError, match=f"^{name} has its prompts written by a model.*--reasoning-model"):
            load_solver(name, {}, {}).at_hand({"reasoning": False}, (), None)  # type: ignore[arg-type]


def test_absent_package_is_named_with_optimizer_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    gepa = load_solver("gepa", {}, {})
    monkeypatch.setitem(vars(sys.modules[gepa.function.__module__]), "find_spec", lambda _: None)
    with pytest.raises(KoderzError) as raised:
        gepa.at_hand({}, (), None)  # type: ignore[arg-type]
    assert str(raised.value) == f"the optimizer gepa takes the package gepa; run: {extra_command('optimizers')}"


def test_gepa_asks_by_its_own_prompt_and_compares_on_validation(tmp_path: Path) -> None:
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    run = searched(tmp_path, World("rule"), "gepa", budget_calls=300)

    begins, _, rest = InstructionProposalSignature.default_prompt_template.partition("<curr_param>")
    asked = [str(call.messages[-1]["content"]) for call in run.of("call") if call.purpose == "propose"]
    assert asked
    assert all(text.startswith(begins) and text.endswith(rest.rpartition("<side_info>")[2]) for text in asked)
    assert all("## Feedback\nThis is " in text for text in asked)
    (experiment, result), *_ = results_of(run).items()
    assert (result["minibatch_n"], result["validation_n"]) == (40, 40)
    assert result["metric_calls"] == 300  # nothing is kept back for a last pass
    assert len(candidates_of(run, experiment)) > 3
    assert result["validation"][result["winner"]] >= result["validation"][result["initial"]]


def test_gepa_can_still_be_asked_by_our_prompt_on_half_of_validation(tmp_path: Path) -> None:
    earlier = {"reflection_prompt": "koderz", "validation": "half"}
    run = searched(tmp_path, World("rule"), "gepa", budget_calls=200, parameters=earlier)

    asked = [str(call.messages[-1]["content"]) for call in run.of("call") if call.purpose == "propose"]
    assert asked
    assert all("Reply with a JSON object" in text for text in asked)
    assert next(iter(results_of(run).values()))["minibatch_n"] == 20


@pytest.mark.parametrize("number", [0, 1])
def test_hierarchical_reflection_spends_its_budget(tmp_path: Path, number: int) -> None:
    run = searched(tmp_path, World("rule", number), "hierarchical_reflective", budget_calls=300)

    (result,) = results_of(run).values()
    assert result["finish_reason"] == "budget"
    assert result["metric_calls"] > 300 - 20  # at most a minibatch of the last pass isn't needed


def test_hierarchical_reflection_converges_where_a_threshold_is_given(tmp_path: Path) -> None:
    parameters = {"convergence_threshold": 0.01}
    run = searched(tmp_path, World("nothing"), "hierarchical_reflective", budget_calls=500, parameters=parameters)

    assert next(iter(results_of(run).values()))["finish_reason"] == "converged"


def test_resume_of_an_earlier_optimizer_version_keeps_it(tmp_path: Path) -> None:
    arms = [records.Arm(name=name, solver=name, models={"main": "scripted"}) for name in ("gepa", "none")]
    tuned = records.Arm(
        name="tuned", solver="hierarchical_reflective", models={"main": "scripted"},
        parameters={"convergence_threshold": 0.5},
    )  # fmt: skip

    old, none, own = restore_arms([*arms, tuned], settings_of(), {}, {})
    (new,) = restore_arms(arms[:1], settings_of(), {}, {}, versions={"gepa": 2})

    assert (old.solver.parameters["reflection_prompt"], old.solver.parameters["validation"]) == ("koderz", "half")
    assert own.solver.parameters["convergence_threshold"] == 0.5
    assert not none.solver.parameters
    assert not {"reflection_prompt", "validation"} & {*new.solver.parameters}


def test_plan_tells_how_optimizers_differ_from_their_originals(tmp_path: Path) -> None:
    about = plan_of(tmp_path, World("rule"), "none", "gepa", "few_shot").record.details["solvers"]

    assert about == {"gepa": {"version": 2, "differs": DIFFERS["gepa"]}, "few_shot": {"differs": DIFFERS["few_shot"]}}
    docs = Path(__file__).parents[5] / "docs" / "optimizers" / "reference.md"
    told = " ".join(docs.read_text(encoding="utf-8").split())
    assert [name for name, text in DIFFERS.items() if text not in told] == []
