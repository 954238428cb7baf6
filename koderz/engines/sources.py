"""The settings of a command: what takes part in it, what each source says of that, and what has an effect.

Settings come about in this order:

1. Sources are flags, variables `KODERZ_*` and the folder's koderz.toml, of which an earlier one wins.
2. By them the parts of a run are chosen: its suite, solvers, sandbox, engine and models. A part that has options of its
   own, in a dataclass, is their owner, and is called `solver.iterative` or the like.
3. A schema has the settings of every run and the options of the owners; a `Scope` says which of them have an effect
   in the command.
4. Each source is read by the schema, which checks every value, and `Settings` is made of all of them.
5. `koderz.runs.prepare` makes the arms of the settings, and the plan of both. At last, what was given and what nothing
   in the plan reads is refused.

A run that is on record has its parts and its settings from its plan.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.engines import ENGINES
from koderz.errors import KoderzError
from koderz.plans.arms import MODES, solver_names
from koderz.sandbox import SANDBOXES
from koderz.settings.layers import (
    ADDING_UP,
    CORE,
    Config,
    ConfigFile,
    Schema,
    beside,
    load_config,
    options_in,
    read_file,
)
from koderz.settings.options import fields_of, flag_of
from koderz.settings.registry import Registry
from koderz.settings.requests import BatchOptions
from koderz.settings.schema import Settings
from koderz.settings.trust import Spends, costly
from koderz.solvers import SOLVERS
from koderz.solvers.definition import OPENED
from koderz.suites import SUITES
from koderz.suites.matrix import read_matrix
from koderz.types import JUDGE, NOBODY, SIMULATED
from koderz_tracker import records
from koderz_tracker.sinks import check_names

if TYPE_CHECKING:
    from koderz.models.providers import Provider
    from koderz.plans.plan import Plan

SOLVING = ("mode", "solver", "solvers", "matrix")
"""The settings that choose the solvers."""

CHOICE = ("suite", "problems", *SOLVING)
"""The settings that choose a run's tasks and solvers."""

CHOOSING = ("suite", *SOLVING, "sandbox", "engine", "local_model", "models", "roles")
"""The settings that choose what takes part in a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The options of a run that have an effect in a command."""

    # these alone: settings by name, and as `suite.serving` all of an owner
    only: Collection[str] = ()
    # not these, and what serves instead, if any
    without: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_own: bool = False  # whether the command says itself which suites and solvers take part
    # those of them that no setting names, as `("suite", "ruler")`
    parts: Collection[tuple[str, str]] = ()
    # those whose flags are taken even where others are chosen, since the command itself reads them
    offered: Collection[tuple[str, str]] = ()

    @property
    def choice(self) -> Collection[str]:
        """The settings that choose suites and solvers, in a command that chooses them itself by default."""
        return CHOICE if self.is_own else ()

    def parts_beside(self, given: Collection[str]) -> list[tuple[str, str]]:
        """The command's own suites and solvers, except those that the given settings replace."""
        names = {"suite": ("suite",), "solver": SOLVING}
        return [(kind, name) for kind, name in self.parts if not {*given} & {*names[kind]}]

    def idle(self, schema: Schema) -> set[str]:
        """The options that have no effect in the command."""
        idle = schema.idle if self.is_own else ()

        def has_part(name: str) -> bool:
            owners = schema.owners(name)
            named = {name, *owners}
            is_chosen = not self.only or not named.isdisjoint(self.only)
            return is_chosen and name not in self.without and not (owners and {*owners} <= {*idle})

        return {name for name in schema.fields if not has_part(name)}

    def unread(self, schema: Schema) -> set[str]:
        """The options that are not read from variables or koderz.toml."""
        return self.idle(schema) | {*self.choice}


EVERYTHING, OWN = Scope(), Scope(is_own=True)


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

_ALWAYS = (
    ("suite", "humaneval"),
    ("solver", "iterative"),
    ("sandbox", "docker"),
    ("engine", "local"),
    ("engine", "modal"),
    ("model", "simulated"),
)
"""The owners whose options are always accepted, so that a command need not change with its --mode or --engine."""


# The sources of a command


class Sources(NamedTuple):
    """The settings given by flags, variables and koderz.toml."""

    settings: Settings  # made of all of them
    config: Config
    # those given on this machine, by flags or variables, and not by a file from elsewhere
    is_ours: Mapping[str, Any]
    given: set[str]  # the names of those that any of them gives


def read_sources(
    given: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    *,
    names: Collection[str] | None = None,
    scope: Scope = EVERYTHING,
    schema: Schema | None = CORE,
    trust_config: bool = False,
    spends: Spends = costly,
) -> Sources:
    """The settings in `names` (by default all) from options, variables and this folder's koderz.toml.

    `schema`: with None, that of what the same sources choose. What has no effect in a command of that scope is left out
    of variables and the file. What the file says needs to be trusted only where no option or variable says otherwise.
    Raises KoderzError for what doesn't fit.
    """
    file = read_file(Path.cwd())
    if schema is None:
        schema = schema_of(*_chosen(given, environ, file, scope))
    unread = scope.unread(schema)
    flags, environment = schema.from_flags(given), schema.from_environment(environ, unread)
    nearer = {*flags, *environment}
    unused = (nearer - {*ADDING_UP}) | unread | ({"models"} if "local_model" in nearer else set())
    used = {*(names or (*schema.fields, "prices"))} - unused
    config = load_config(
        file, trust=trust_config, environ=environ, names=used, schema=schema, spends=spends
    )
    settings = schema.layered(flags, environment, config.settings)
    check_names((*settings.sinks, *settings.no_sinks))
    ours = environment | beside(flags, environment)
    return Sources(settings, config, ours, {*nearer, *config.settings})


# What takes part


@cache
def schema_of(*chosen: tuple[str, str]) -> Schema:
    """The options of a run with these owners, given by kind and name: `("solver", "iterative")`.

    Raises KoderzError for a name that nobody knows, and where two have an option of the same name.
    """
    found: dict[Any, tuple[str, type]] = {}
    # koderz may lack a system
    always = [(kind, name) for kind, name in _ALWAYS if name in REGISTRIES[kind]]
    for kind, name in dict.fromkeys((*always, *chosen)):
        if struct := REGISTRIES[kind].options_of(name):
            # one suite alone takes part
            found[struct if kind == "suite" else (kind, name)] = f"{kind}.{name}", struct
    idle = {
        f"{kind}.{name}"
        for kind, name in _ALWAYS
        if kind in ("suite", "solver") and (kind, name) not in chosen
    }
    return Schema(dict(found.values()), REGISTRIES, idle)


def schema_here(
    given: Mapping[str, Any], environ: Mapping[str, str] = os.environ, scope: Scope = EVERYTHING
) -> Schema:
    """The options of the owners that flags, variables and this folder's koderz.toml choose for a command."""
    return schema_of(*_chosen(given, environ, read_file(Path.cwd()), scope), *scope.offered)


def _chosen(
    given: Mapping[str, Any], environ: Mapping[str, str], file: ConfigFile | None, scope: Scope
) -> Iterator[tuple[str, str]]:
    """The owners by kind and name, before any value is checked: whose options there are is said by them."""
    read = [name for name in CHOOSING if name not in scope.choice]
    variables = {name: text for name in read if (text := environ.get(f"KODERZ_{name.upper()}"))}
    if model := environ.get("KODERZ_MODEL"):
        variables.setdefault("local_model", model)
    choices = {**(file.choices(read) if file else {}), **variables, **given}
    matrix = (
        read_matrix(Path(choices["matrix"]))
        if isinstance(choices.get("matrix"), str | Path)
        else None
    )
    models: list[str] = []
    for name in ("local_model", "models", "roles"):  # one model, several, or several by role
        value = choices.get(name) or ()
        words = value.replace(",", " ").split() if isinstance(value, str) else value
        models += [word.rpartition("=")[2] for word in words if isinstance(word, str)]
    for arm in matrix.arms if matrix else ():
        models += [arm.model or "", *arm.roles.values()]
    yield from (parts := scope.parts_beside(given))
    for kind, name in _named(
        {**choices, "solvers": solver_names(choices, matrix), "answering": models}
    ):
        if kind not in dict(parts):
            yield kind, name


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


# What took part in a run that is on record


def restored_settings(record: records.Plan) -> Settings:
    """The settings of a recorded plan."""
    config = dict(record.config)
    # a solver goes by its own name
    config["mode"] = config["mode"] if config.get("mode") in MODES else "iterative"
    return schema_of_plan(record).from_config(config)


def schema_of_plan(record: records.Plan) -> Schema:
    """The options of the owners that take part in a recorded plan."""
    return schema_of(*_of_plan(record))


def _of_plan(record: records.Plan) -> Iterator[tuple[str, str]]:
    solvers = [arm.solver for arm in record.arms if not arm.source]
    models = [name for arm in record.arms for name in arm.models.values()]
    return _named({**record.config, "solvers": solvers, "answering": models})


# What has an effect

Reader = tuple[str, Callable[["Plan", Collection[str]], bool]]


def _needs(plan: Plan) -> frozenset[str]:
    from koderz.plans.plan import needs_of  # which no help needs

    return needs_of(plan)


def _providers(plan: Plan) -> set[str]:
    """The providers of the models that the plan's arms ask."""
    from koderz.models.names import parse_model_name

    return {
        parse_model_name(name).provider
        for arm in plan.arms
        for name in arm.models.values()
        if name != NOBODY
    }


READERS: Mapping[str, Reader] = {
    "model": (
        "a solver or suite that asks a model",
        lambda plan, _: plan.suite.asks_judge or any(arm.solver.asks for arm in plan.arms),
    ),
    "openai": (
        "a model by OpenAI's wire format",
        lambda plan, _: bool(_providers(plan) - {"ollama", "simulated"}),
    ),
    "ollama": ("a model of Ollama", lambda plan, _: "ollama" in _providers(plan)),
    "address": ("a run with --base-url", lambda plan, _: plan.settings.base_url is not None),
    "no solver": (
        "a run without --solver, --solvers or --matrix",
        lambda _, given: {*given}.isdisjoint(("solver", "solvers", "matrix")),
    ),
    "no matrix": ("a run without --matrix", lambda _, given: "matrix" not in given),
    "programs": ("a suite that runs programs", lambda plan, _: JUDGE in _needs(plan)),
    "sandbox": (
        "a suite that runs programs",
        lambda plan, _: bool(_needs(plan) & ({JUDGE} | OPENED)),
    ),
    "recall": (
        "a solver that recalls: iterative",
        lambda plan, _: any("recall" in arm.solver.wants for arm in plan.arms),
    ),
    "memory": ("a run with --use-memory", lambda plan, _: plan.settings.use_memory != "off"),
    "decision": (
        "a run with --until-decided",
        lambda plan, _: plan.settings.until_decided is not None,
    ),
    "sinks": (
        "a run with another sink than json",
        lambda plan, _: bool({*plan.settings.chosen_sinks} - {"json"}),
    ),
    "mlflow": ("the sink mlflow", lambda plan, _: "mlflow" in plan.settings.chosen_sinks),
    "batches": ("a run with --batch", lambda plan, _: plan.settings.of(BatchOptions).batch),
    "manager": (
        "a run with --wasm-url",
        lambda plan, _: any(
            field.name == "wasm_url" and value for field, value in options_in(plan.settings)
        ),
    ),
}
"""Readers of options that not every run reads, by the `reader` of their options.

Each is in words, and a function of a plan and the given options that says whether the plan has such a reader.
"""

_ANY_RUN: Reader = "any run", lambda *_: True


def require_effect(plans: Sequence[Plan], given: Collection[str]) -> None:
    """Raises KoderzError for the first given option that nothing in any of the plans reads, and says who reads it."""
    schemas = [schema_of_plan(plan.record) for plan in plans]
    for name in given:
        uses = [
            _use_elsewhere(plan, schema, name, given)
            for plan, schema in zip(plans, schemas, strict=True)
        ]
        if all(uses):
            flag = next(schema.fields[name].flags[0] for schema in schemas if name in schema.fields)
            raise KoderzError(f"{flag} has no effect here: {uses[0]}")


def _use_elsewhere(plan: Plan, schema: Schema, name: str, given: Collection[str]) -> str:
    """The readers of an option that nothing in the plan reads, in words; empty if something does."""
    record = plan.record
    taking_part = {f"{kind}.{part}" for kind, part in _of_plan(record)}
    if SIMULATED in {model for arm in record.arms for model in arm.models.values()}:
        taking_part.add(f"model.{SIMULATED}")
    is_general = name in fields_of(Settings)
    parameters = {each for arm in plan.arms for each in arm.solver.parameters}
    takes_part = name in parameters or not taking_part.isdisjoint(schema.owners(name))
    if not takes_part and not is_general:
        return use_of_flag(schema.fields[name].flags[0] if name in schema.fields else flag_of(name))
    if name not in schema.fields or (is_general and takes_part):
        return ""
    reader, is_there = READERS.get(schema.fields[name].about.reader, _ANY_RUN)
    return "" if is_there(plan, given) else f"only {reader} reads it"


def require_sandbox(settings: Settings, given: Collection[str]) -> None:
    """Raises KoderzError for the first given option of a sandbox that the settings don't choose."""
    schema = schema_of()
    for name in given:
        owners = schema.owners(name)
        is_of_sandboxes = {owner.partition(".")[0] for owner in owners} == {"sandbox"}
        if is_of_sandboxes and f"sandbox.{settings.sandbox}" not in owners:
            raise KoderzError(f"{flag_of(name)} has no effect here: {use_of_flag(flag_of(name))}")


def use_of_flag(flag: str) -> str:
    """The suites, solvers, … that read an option of this flag, in words; empty if none does."""
    readers, found = [], 0
    for kind, registry in REGISTRIES.items():
        names = []
        for name in registry.options:
            struct = registry.options_of(name)
            if struct and any(flag in field.flags for field in fields_of(struct).values()):
                names.append(name)
        if names:
            plural = f"{kind}es" if kind.endswith("x") else f"{kind}s"
            listed = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
            readers.append(f"the {plural if len(names) > 1 else kind} {listed}")
            found += len(names)
    verb = "reads" if found == 1 else "read"
    return f"only {' or '.join(readers)} {verb} it" if readers else ""
