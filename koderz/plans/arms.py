"""Arms: combinations of a solver, the models in its roles, and its parameters, to be compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.settings.layers import fields_in, replaced, roles_in, values_in
from koderz.settings.options import plain
from koderz.settings.registry import handed
from koderz.settings.schema import OF_DECIDING, Settings
from koderz.solvers import SettledSolver, load_solver
from koderz.suites import modes_of
from koderz.suites.matrix import Matrix, MatrixArm
from koderz.types import JUDGE, MAIN, SIMULATED
from koderz_tracker import records

MODES: Mapping[str, tuple[str, ...]] = {
    "zero-shot": ("zero-shot",),
    "iterative": ("iterative",),
    "comparative": ("zero-shot", "iterative"),
}
"""The solvers that each mode compares, unless the suite has modes of its own."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A solver with its parameters settled, and the model in each of its roles."""

    name: str
    solver: SettledSolver
    models: Mapping[str, str]  # by role
    parameters: Mapping[str, Any] = field(default_factory=dict)  # those that are this arm's alone
    baseline: str = ""  # the arm that it is compared with
    stated: str = ""  # what a matrix calls it, in which it stands once for all models
    settings: Mapping[str, str | None] | None = None  # of the suite: `set_up` gives its tasks them

    @property
    def model(self) -> str:
        """The model in the role `main`."""
        return self.models[MAIN]

    @property
    def record(self) -> records.Arm:
        """The arm in the form in which a plan records it."""
        return records.Arm(
            name=self.name,
            solver=self.solver.name,
            models=dict(self.models),
            parameters={name: plain(value) for name, value in self.parameters.items()},
            source=self.solver.source,
            baseline=self.baseline,
            settings=None if self.settings is None else dict(self.settings),
            simulated=self.solver.asks and SIMULATED in self.models.values(),
        )


def solver_names(said: Mapping[str, Any], matrix: Matrix | None = None) -> tuple[str, ...]:
    """The solvers of a matrix file, else those that are named, else those of the mode.

    `said`: what is said of `suite`, `mode`, `solver` and `solvers`. KoderzError for a mode that the suite hasn't got.
    """
    if matrix:
        return tuple(arm.solver for arm in matrix.arms)
    if several := said.get("solvers"):
        if said.get("solver"):
            raise KoderzError("--solver and --solvers: give one of them")
        words = [several] if isinstance(several, str) else several
        return tuple(
            dict.fromkeys(name for word in words for name in word.replace(",", " ").split())
        )
    if said.get("solver"):
        return (str(said["solver"]),)
    suite, mode = str(said.get("suite") or Settings().suite), said.get("mode")
    modes = modes_of(suite)
    if modes is None:
        return MODES.get(str(mode or Settings().mode), ())
    if (mode or "") not in modes:
        known = "; ".join(
            f"{name or 'without --mode'}: {', '.join(solvers)}" for name, solvers in modes.items()
        )
        raise KoderzError(f"--mode {mode}: the suite {suite} has no such mode. It has {known}")
    return tuple(modes[mode or ""])


def with_solvers(settings: Settings, said: Container[str]) -> Settings:
    """The settings with the solvers of the mode, for a suite that has modes of its own.

    `said`: the names of the settings that somebody has given.
    """
    if settings.matrix or settings.solver or settings.solvers or modes_of(settings.suite) is None:
        return settings
    mode = settings.mode if "mode" in said else None
    names = solver_names({"suite": settings.suite, "mode": mode})
    return (
        replace(settings, solver=names[0]) if len(names) == 1 else replace(settings, solvers=names)
    )


def make_arms(
    settings: Settings,
    arguments: Mapping[str, str],
    matrix: Matrix | None = None,
    *,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    at_hand: Callable[[SettledSolver], Mapping[str, Any]] = lambda _: {},
    judged_by_model: bool = False,
) -> tuple[Arm, ...]:
    """The arms of a matrix, else one for each named solver (or solver of the mode) and each model.

    `tables` are options that several solvers have but that hold for one alone, by its name; `at_hand` says what a
    solver may use besides its options; `judged_by_model`: the suite asks the model in the role `judge`, whatever the
    solver does. Raises KoderzError where a solver, one of its roles or parameters doesn't exist.
    """
    chosen = {
        "suite": settings.suite,
        "mode": settings.mode,
        "solver": settings.solver,
        "solvers": settings.solvers,
    }
    stated = (
        matrix.arms if matrix else tuple(MatrixArm(name, name) for name in solver_names(chosen))
    )
    solvers = [
        _solver(settings, arm, matrix, arguments, (tables or {}).get(arm.solver, {}))
        for arm in stated
    ]
    ready = [
        (arm, solver.settled(_offered(settings, at_hand(solver), own), arguments), own)
        for arm, (solver, own) in zip(stated, solvers, strict=True)
    ]
    models = settings.main_models
    others = (JUDGE,) if judged_by_model else ()
    # there once, whatever the models
    alone = {arm.name for arm in stated if arm.model or len(models) == 1}

    def named(name: str, model: str) -> str:
        return name if not name or name in alone else f"{name} · {model}"

    return tuple(
        Arm(
            named(arm.name, model) if matrix else solver.name + f" · {model}" * (len(models) > 1),
            solver,
            _roles(replaced(settings, own), arm, solver, model, others),
            own,
            named(arm.baseline, model),
            arm.name,
            arm.settings,
        )
        for model in models
        for arm, solver, own in ready
        if not arm.model or model == models[0]
    )


def restore_arms(
    arms: Sequence[records.Arm],
    settings: Settings,
    arguments: Mapping[str, str],
    at_hand: Mapping[str, Any],
    files: Path | None = None,
    versions: Mapping[str, int] | None = None,
) -> tuple[Arm, ...]:
    """The arms of a recorded plan; the user's own solvers come from the folder `files`, if given.

    A solver does what it did in the version that `versions` has for it, which is 1 where it has none.
    Raises KoderzError where a solver is no longer there.
    """

    def restored(arm: records.Arm) -> Arm:
        own = _read(settings, arm.parameters, arm.name)
        source = arm.source or arm.solver
        if files and arm.source and not handed(arm.source):  # it lies with the run
            file, _, name = arm.source.rpartition(":")
            source = f"{files / Path(file).name}:{name}"
        solver = load_solver(source, _offered(settings, at_hand, own), arguments)
        if earlier := solver.earlier.get((versions or {}).get(arm.solver, 1)):
            solver = solver.settled(_offered(settings, at_hand, {**earlier, **own}), arguments)
        return Arm(arm.name, solver, arm.models, own, arm.baseline, settings=arm.settings)

    return tuple(map(restored, arms))


def asked_models(arms: Sequence[Arm]) -> list[str]:
    """The distinct models that the arms may ask, those in the role `main` first."""
    answering = [arm.model for arm in arms if arm.solver.asks]
    helping = (name for arm in arms for role, name in arm.models.items() if role != MAIN)
    return list(dict.fromkeys([*answering, *helping]))


def model_key(role: str, name: str, elsewhere: Container[str]) -> str:
    """The key of an open model: its name, with the role before it where that has an address of its own."""
    return f"{role}={name}" if role in elsewhere else name


def opened_models(arms: Sequence[Arm], elsewhere: Container[str]) -> dict[str, tuple[str, str]]:
    """The models that a run opens, by `model_key`: the name and, for one at its role's own address, the role."""
    every = [(MAIN, arm.model) for arm in arms if arm.solver.asks]
    every += [(role, name) for arm in arms for role, name in arm.models.items() if role != MAIN]
    return {
        model_key(role, name, elsewhere): (name, role if role in elsewhere else "")
        for role, name in every
    }


def _offered(
    settings: Settings, at_hand: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """The values that a solver's parameters may take, by name; an arm's own win."""
    values = {name: value for name, value in values_in(settings).items() if name not in OF_DECIDING}
    return values | {"temperature": settings.sampling_temperature} | dict(at_hand) | dict(own)


def _solver(
    settings: Settings,
    arm: MatrixArm,
    matrix: Matrix | None,
    arguments: Mapping[str, str],
    table: Mapping[str, Any],
) -> tuple[SettledSolver, dict[str, Any]]:
    """An arm's solver, and the arm's own parameters. Those that are options are checked as options."""
    where = f"{matrix.source if matrix else ''}, {arm.name}"
    parameters = dict(table) | _read(settings, arm.parameters, where)
    solver = load_solver(
        arm.solver, _offered(settings, {}, parameters), {} if matrix else arguments
    )
    if unknown := arm.parameters.keys() - solver.parameters.keys():
        raise KoderzError(
            f"{where}: the solver {solver.name} has no parameter {min(unknown).replace('_', '-')}"
        )
    return solver, parameters


def _read(settings: Settings, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parameters converted to their types; those that are options are read as options."""
    fields = fields_in(settings)
    return {
        name: fields[name].read(value, f"{where}, {name.replace('_', '-')}")
        if name in fields
        else value
        for name, value in parameters.items()
    }


def _roles(
    settings: Settings, arm: MatrixArm, solver: SettledSolver, model: str, others: Collection[str]
) -> dict[str, str]:
    """The models of an arm, by role. Raises KoderzError for a role of neither its solver nor `others`."""
    roles = {**settings.given_roles, **arm.roles}
    for role in roles:
        if not solver.has_role(role) and role not in others:
            raise KoderzError(f"--role {role}=…: the solver {solver.name} has no such role")
    asked = {**roles_in(settings), **roles}
    return {MAIN: arm.model or model} | {
        role: name for role, name in asked.items() if role in others or solver.has_role(role)
    }
