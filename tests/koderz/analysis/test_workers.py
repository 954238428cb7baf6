"""Who worked in an arm, as predictions call it."""

from __future__ import annotations

from koderz.analysis.story import worker_of
from koderz.testing import a_plan
from koderz_tracker.records import Arm, Plan


def _plan(*arms: tuple[str, str], model: str = "openai/m") -> Plan:
    found = [Arm(name=name, solver=solver, models={"main": model}) for name, solver in arms]
    return Plan(**{name: getattr(a_plan(), name) for name in Plan.__struct_fields__ if name != "arms"}, arms=found)


def _workers(*arms: tuple[str, str]) -> list[str]:
    made = _plan(*arms)
    return [worker_of(made, name) for name, _ in arms]


def test_predictions_of_one_arm_have_its_models_name() -> None:
    assert _workers(("zero-shot", "zero-shot")) == ["openai/m"]


def test_predictions_name_the_agent_before_its_model() -> None:
    arms = [("codex · openai/m", "agent:codex"), ("claude-code · openai/m", "agent:claude-code"), ("nop", "agent:nop")]
    assert _workers(*arms) == ["codex+openai/m", "claude-code+openai/m", "nop"]


def test_predictions_of_patches_name_the_model_beside_base_and_human() -> None:
    arms = [("patching", "patching"), ("base", "patch:base"), ("human", "patch:human")]
    assert _workers(*arms) == ["openai/m", "base", "human"]


def test_predictions_of_arms_of_one_model_are_told_apart() -> None:
    assert _workers(("zero-shot", "zero-shot"), ("two tries", "iterative")) == [
        "openai/m+zero-shot",
        "openai/m+two-tries",
    ]


def test_predictions_of_one_agent_are_told_apart_by_settings() -> None:
    name = "codex · openai/m"
    arms = [(name, "agent:codex"), (f"{name} · A=1 · B=x y", "agent:codex"), (f"{name} · A=1 · B=x-y", "agent:codex")]
    assert _workers(*arms) == ["codex+openai/m", "codex+openai/m+A=1+B=x-y", "codex+openai/m+A=1+B=x-y+2"]
