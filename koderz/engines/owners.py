"""The options of a run: the settings, and the options of its suite, solvers, sandbox and engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.engines import ENGINES
from koderz.plans.arms import MODES, solver_names
from koderz.plans.matrix import read_matrix
from koderz.sandbox import SANDBOXES
from koderz.settings.layers import EVERYTHING, Schema, Scope
from koderz.settings.options import fields_of
from koderz.settings.registry import Registry
from koderz.settings.schema import Settings
from koderz.settings.toml import peek
from koderz.solvers import SOLVERS
from koderz.suites import SUITES
from koderz.types import SIMULATED
from koderz_tracker import records

if TYPE_CHECKING:
    from koderz.models.providers import Provider


def _as_provider(found: Any, name: str) -> Provider:
    from koderz.models.providers import as_provider  # which no help needs

    return as_provider(found, name)


MODELS: Registry[Provider] = Registry(
    "model",
    "models",
    _as_provider,
    {"simulated": "koderz.models.providers:Simulated"},
    {"model.simulated": "koderz.suites.options:SimulatedOptions"},
)
"""Providers that have options, and those of other packages, by the word before the slash in their models' names."""

REGISTRIES: dict[str, Registry[Any]] = {
    registry.kind: registry for registry in (SUITES, SOLVERS, SANDBOXES, ENGINES, MODELS)
}

CHOOSING = ("suite", "mode", "solver", "solvers", "matrix", "sandbox", "engine", "local_model", "models", "roles")
"""The settings that choose what takes part in a run."""

_ALWAYS = (
    ("suite", "humaneval"),
    ("solver", "iterative"),
    ("sandbox", "docker"),
    ("engine", "local"),
    ("engine", "modal"),
    ("model", "simulated"),
)
"""The owners whose options are always accepted, so that a command need not change with its --mode or --engine."""


@cache
def schema_of(*chosen: tuple[str, str]) -> Schema:
    """The options of a run with these owners, given by kind and name: `("solver", "iterative")`.

    Raises KoderzError for a name that nobody knows, and where two have an option of the same name.
    """
    found: dict[Any, tuple[str, type]] = {}
    always = [(kind, name) for kind, name in _ALWAYS if name in REGISTRIES[kind]]  # koderz may lack a system
    for kind, name in dict.fromkeys((*always, *chosen)):
        if struct := REGISTRIES[kind].options_of(name):
            found[struct if kind == "suite" else (kind, name)] = f"{kind}.{name}", struct  # one suite alone takes part
    idle = {f"{kind}.{name}" for kind, name in _ALWAYS if kind in ("suite", "solver") and (kind, name) not in chosen}
    return Schema(dict(found.values()), REGISTRIES, idle)


def chosen_here(
    given: Mapping[str, Any], environ: Mapping[str, str] = os.environ, scope: Scope = EVERYTHING
) -> Iterator[tuple[str, str]]:
    """The owners that take part in a command, by flags, variables and this folder's koderz.toml."""
    read = [name for name in CHOOSING if name not in scope.choice]
    variables = {name: text for name in read if (text := environ.get(f"KODERZ_{name.upper()}"))}
    if model := environ.get("KODERZ_MODEL"):
        variables.setdefault("local_model", model)
    choices = {**peek(Path.cwd(), read), **variables, **given}
    matrix = read_matrix(Path(choices["matrix"])) if isinstance(choices.get("matrix"), str | Path) else None
    models = [*_words(choices, "local_model"), *_words(choices, "models"), *_words(choices, "roles")]
    models += [name for arm in matrix.arms for name in (arm.model or "", *arm.roles.values())] if matrix else []
    yield from (parts := scope.parts_beside(given))
    for kind, name in _named({**choices, "solvers": solver_names(choices, matrix), "answering": models}):
        if kind not in dict(parts):
            yield kind, name


def schema_here(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ, scope: Scope = EVERYTHING) -> Schema:
    """The options of the owners that `chosen_here` finds."""
    return schema_of(*chosen_here(given, environ, scope))


def use_of_flag(flag: str) -> str:
    """The suites, solvers, … that read an option of this flag, in words; empty if none does."""
    found = {
        kind: [name for name in registry.options if flag in _flags_of(registry.options_of(name))]
        for kind, registry in REGISTRIES.items()
    }
    readers = [
        f"the {_plural(kind) if len(names) > 1 else kind} {_listed(names)}" for kind, names in found.items() if names
    ]
    verb = "reads" if sum(map(len, found.values())) == 1 else "read"
    return f"only {' or '.join(readers)} {verb} it" if readers else ""


def restored_settings(record: records.Plan) -> Settings:
    """The settings of a recorded plan."""
    config = dict(record.config)
    config["mode"] = config["mode"] if config.get("mode") in MODES else "iterative"  # a solver goes by its own name
    return schema_of_plan(record).from_config(config)


def schema_of_plan(record: records.Plan) -> Schema:
    """The options of the owners that take part in a recorded plan."""
    return schema_of(*_of_plan(record))


def owners_of(record: records.Plan) -> set[str]:
    """The owners that take part in a recorded plan, such as `solver.iterative`; also models that have options."""
    models = {name for arm in record.arms for name in arm.models.values()}
    named = {f"{kind}.{name}" for kind, name in _of_plan(record)}
    return named | ({f"model.{SIMULATED}"} if SIMULATED in models else set())


def _of_plan(record: records.Plan) -> Iterator[tuple[str, str]]:
    solvers = [arm.solver for arm in record.arms if not arm.source]
    models = [name for arm in record.arms for name in arm.models.values()]
    return _named({**record.config, "solvers": solvers, "answering": models})


def _named(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    defaults = Settings()
    for kind in ("suite", "sandbox", "engine"):
        usual = getattr(defaults, kind)
        name = said.get(kind) or usual
        if isinstance(name, str) and (name != usual or name in REGISTRIES[kind]):
            yield kind, name
    yield from (("solver", name) for name in said["solvers"])
    for name in dict.fromkeys(said["answering"]):
        if "/" in name:
            from koderz.models.names import foreign_provider

            if provider := foreign_provider(name):
                yield "model", provider


def _listed(names: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _plural(kind: str) -> str:
    return f"{kind}es" if kind.endswith("x") else f"{kind}s"


def _flags_of(struct: type | None) -> set[str]:
    return {flag for field in fields_of(struct).values() for flag in field.flags} if struct else set()


def _words(said: Mapping[str, Any], name: str) -> list[str]:
    """The models that an option names: one, several, or several by role."""
    value = said.get(name) or ()
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    return [word.rpartition("=")[2] for word in words if isinstance(word, str)]
