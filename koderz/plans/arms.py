"""Arms: what is compared with each other. A solver, the models in its roles, and its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.plans.matrix import Matrix, MatrixArm
from koderz.settings.schema import FIELDS, Settings, as_config, checked
from koderz.solvers import Solver, load_solver
from koderz.types import MAIN
from tracker import records

MODES: Mapping[str, tuple[str, ...]] = {
    "zero-shot": ("zero-shot",),
    "iterative": ("iterative",),
    "comparative": ("zero-shot", "iterative"),
}
"""The solvers that each mode compares."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A solver with its parameters settled, and the model in each of its roles."""

    name: str
    solver: Solver
    models: Mapping[str, str]  # by role
    parameters: Mapping[str, Any] = field(default_factory=dict)  # those that are this arm's alone

    @property
    def model(self) -> str:
        """The model that answers."""
        return self.models[MAIN]

    @property
    def record(self) -> records.Arm:
        """The arm as a plan records it."""
        return records.Arm(
            name=self.name,
            solver=self.solver.name,
            models=dict(self.models),
            parameters=dict(self.parameters),
            source=self.solver.source,
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """An arm before it is known which models answer: its solver is loaded, so that whatever is wrong is said early."""

    solver: Solver
    name: str = ""  # empty: by solver and model
    model: str = ""  # empty: each of the run's
    roles: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


def draft_arms(settings: Settings, arguments: Mapping[str, str], matrix: Matrix | None = None) -> tuple[Draft, ...]:
    """The arms of a matrix file, else one for each solver of the mode, or for the user's own.

    Raises KoderzError where a solver or one of its parameters doesn't exist.
    """
    if matrix is None:
        names = (settings.solver,) if settings.solver else MODES[settings.mode]
        return tuple(Draft(load_solver(name, _offered(settings, {}, {}), arguments)) for name in names)
    return tuple(_draft(settings, matrix, arm) for arm in matrix.arms)


def settle_arms(
    drafts: Sequence[Draft], settings: Settings, arguments: Mapping[str, str], specs: Mapping[str, str]
) -> tuple[Arm, ...]:
    """The arms with their models, once these are known: no solver's file is executed again."""
    models = settings.main_models
    return tuple(
        Arm(
            (draft.name or solver.name) + ("" if draft.model or len(models) == 1 else f" · {model}"),
            solver,
            _roles(settings, draft, model),
            draft.parameters,
        )
        for model in models
        for draft in drafts
        if not draft.model or model == models[0]
        for solver in [draft.solver.settled(_offered(settings, specs, draft.parameters), arguments)]
    )


def restore_arms(
    arms: Sequence[records.Arm],
    settings: Settings,
    arguments: Mapping[str, str],
    specs: Mapping[str, str],
    files: Path | None = None,
) -> tuple[Arm, ...]:
    """The arms of a recorded plan, solvers of the user's own from the folder `files` where there is one.

    Raises KoderzError where a solver is no longer there.
    """
    return tuple(
        Arm(
            arm.name,
            load_solver(_found(arm, files), _offered(settings, specs, arm.parameters), arguments),
            arm.models,
            arm.parameters,
        )
        for arm in arms
    )


def asked_models(arms: Sequence[Arm]) -> list[str]:
    """The models that the arms may ask, those that answer first, each once."""
    answering = [arm.model for arm in arms]
    return list(dict.fromkeys([*answering, *(name for arm in arms for name in arm.models.values())]))


def _offered(settings: Settings, specs: Mapping[str, str], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a solver's parameters may be, by name: an arm's own win."""
    return as_config(settings) | {"temperature": settings.sampling_temperature, "specs": dict(specs)} | dict(own)


def _draft(settings: Settings, matrix: Matrix, arm: MatrixArm) -> Draft:
    """An arm of a file. Those of its parameters that are settings, too, are checked as these are."""
    where = f"{matrix.path}, {arm.name}"
    given = {
        name: checked(name, value, f"{where}, {name.replace('_', '-')}") if name in FIELDS else value
        for name, value in arm.parameters.items()
    }
    solver = load_solver(arm.solver, _offered(settings, {}, given), {})
    if unknown := given.keys() - solver.parameters.keys():
        raise KoderzError(f"{where}: the solver {solver.name} has no parameter {min(unknown).replace('_', '-')}")
    return Draft(solver, arm.name, arm.model or "", arm.roles, given)


def _found(arm: records.Arm, files: Path | None) -> str:
    if not arm.source:
        return arm.solver
    file, _, name = arm.source.rpartition(":")
    return f"{files / Path(file).name}:{name}" if files else arm.source


def _roles(settings: Settings, draft: Draft, model: str) -> dict[str, str]:
    """The models that an arm asks, by role. Raises KoderzError where its solver has no such role."""
    given = {**settings.given_roles, **draft.roles}
    for role in given:
        if not draft.solver.has_role(role):
            raise KoderzError(f"--role {role}=…: the solver {draft.solver.name} has no such role")
    helpers = {
        "spec": settings.frontier_spec_model if settings.spec else None,
        "checkpoint": settings.frontier_checkpoint_model if settings.checkpoints else None,
        **given,
    }
    asked = {role: name for role, name in helpers.items() if name and draft.solver.has_role(role)}
    return {MAIN: draft.model or model} | asked
