"""Manifests of opik's benchmark runner, and the run that is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.optimizers.commands import _of_manifest
from koderz.systems.optimizers.manifests import read_manifest

TASK: dict[str, Any] = {"dataset": "hotpot_train", "optimizer": "few_shot", "model": "openai/gpt-4o-mini"}
SPLITS = {
    "train": {"loader": "hotpot", "split": "train", "count": 10, "dataset_name": "hotpot_train_sample"},
    "test": {"loader": "hotpot", "split": "test", "count": 5},
}


def write(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(fields))
    return path


def test_manifest_has_tasks_and_those_of_generators(tmp_path: Path) -> None:
    generator: dict[str, Any] = {
        "datasets": [{"dataset": {"loader": "hover", "count": 10}}, {"dataset": "pupa_test"}],
        "models": [{"name": "a"}, {"name": "b"}],
        "optimizers": [{"name": "gepa", "optimizer_prompt_params": {"candidate_selection_strategy": "pareto"}}],
    }
    found = read_manifest(write(tmp_path, seed=7, tasks=[{**TASK, "more": 1}], comment="ignored"))
    assert (found.seed, found.test_mode, [(each.dataset, each.model) for each in found.tasks]) == (
        7,
        False,
        [("hotpot", "openai/gpt-4o-mini")],
    )
    generator["datasets"] = generator["datasets"][1:]
    made = read_manifest(write(tmp_path, test_mode=True, generators=[generator]))
    assert [(each.dataset, each.model, each.optimizer) for each in made.tasks] == [
        ("pupa", "a", "gepa"),
        ("pupa", "b", "gepa"),
    ]
    assert made.test_mode
    assert made.tasks[0].parameters == {"candidate_selection": "pareto"}


def test_manifest_makes_arms_cells_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = {**TASK, "datasets": SPLITS, "optimizer_prompt_params": {"max_trials": 2, "n_samples": 1}}
    other = {**first, "dataset": "hover_train", "optimizer_prompt_params": {"max_trials": 3}, "metrics": ["a.b"]}
    other["datasets"] = {name: {**each, "loader": "hover"} for name, each in SPLITS.items()}
    values: dict[str, Any] = {"seed": 1}
    matrix = _of_manifest(write(tmp_path, seed=7, test_mode=True, tasks=[first, other]), values, None)
    assert values == {
        "seed": 1,  # as it was given
        "test_mode": True,
        "samples": 1,
        "train_items": 10,
        "test_items": 5,
        "demo_datasets": ("hotpot", "hover"),
        "optimizers": (),
    }
    names = [f"{name} · openai/gpt-4o-mini" for name in ("none", "few_shot", "few_shot")]
    names[2] += " #2"
    assert [(arm.name, dict(arm.parameters), arm.baseline) for arm in matrix.arms] == [
        (names[0], {}, ""),
        (names[1], {"max_trials": 2}, names[0]),
        (names[2], {"max_trials": 3}, names[0]),
    ]
    assert {(cell.arms, cell.problems, cell.samples) for cell in matrix.cells} == {
        ((names[0],), ("hotpot",), 1),
        ((names[0],), ("hover",), 1),
        ((names[1],), ("hotpot",), None),
        ((names[2],), ("hover",), None),
    }
    assert "without an effect here: few_shot's n_samples, metrics" in capsys.readouterr().err
    with pytest.raises(KoderzError, match="give it without these"):
        _of_manifest(tmp_path / "manifest.json", {"optimizers": ["gepa"]}, None)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "has tasks or generators, and this one has none"),
        ({"tasks": [{"dataset": "hotpot"}]}, "is no manifest: Object missing required field `optimizer`"),
        ({"tasks": [TASK, {**TASK, "test_mode": True}]}, "some tasks have test_mode"),
        ({"tasks": [TASK, {**TASK, "datasets": SPLITS}]}, "splits of several sizes"),
        ({"tasks": [{**TASK, "datasets": {"test": SPLITS["test"]}}]}, "names no train split"),
        ({"tasks": [{**TASK, "datasets": {"train": {"count": 3}}}]}, "one loader each"),
        ({"tasks": [{**TASK, "datasets": {"train": {"loader": "hotpot", "start": 3}}}]}, "asks for other rows"),
        ({"tasks": [{**TASK, "datasets": {"train": {"loader": "hotpot", "count": "3"}}}]}, "whole number from 1"),
        ({"tasks": [{**TASK, "optimizer": "parameter"}]}, "there is no optimizer 'parameter'"),
        ({"tasks": [{**TASK, "optimizer_params": {"max_examples": "many"}}]}, "whole number"),
    ],
)
def test_manifest_that_no_run_can_hold_is_one_error(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(KoderzError, match=why):
        _of_manifest(write(tmp_path, **fields), {}, [])


def test_manifest_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="can't be read"):
        read_manifest(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(KoderzError, match="is no manifest"):
        read_manifest(tmp_path / "bad.json")
