"""Options that nothing in a plan reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from koderz.engines.owners import owners_of, schema_of, schema_of_plan, use_of_flag
from koderz.errors import KoderzError
from koderz.models.names import parse_model_name
from koderz.plans.plan import Plan, needs_of
from koderz.settings.batches import BatchOptions
from koderz.settings.layers import Schema, options_in
from koderz.settings.options import fields_of, flag_of
from koderz.settings.schema import Settings
from koderz.solvers.handles import OPENED
from koderz.types import JUDGE, NOBODY

Reader = tuple[str, Callable[[Plan, Collection[str]], bool]]

READERS: Mapping[str, Reader] = {
    "model": (
        "a solver or suite that asks a model",
        lambda plan, _: plan.suite.asks_judge or any(arm.solver.asks for arm in plan.arms),
    ),
    "openai": ("a model by OpenAI's wire format", lambda plan, _: bool(_providers(plan) - {"ollama", "simulated"})),
    "ollama": ("a model of Ollama", lambda plan, _: "ollama" in _providers(plan)),
    "address": ("a run with --base-url", lambda plan, _: plan.settings.base_url is not None),
    "no solver": (
        "a run without --solver, --solvers or --matrix",
        lambda _, given: {*given}.isdisjoint(("solver", "solvers", "matrix")),
    ),
    "no matrix": ("a run without --matrix", lambda _, given: "matrix" not in given),
    "programs": ("a suite that runs programs", lambda plan, _: JUDGE in needs_of(plan)),
    "sandbox": ("a suite that runs programs", lambda plan, _: bool(needs_of(plan) & ({JUDGE} | OPENED))),
    "recall": (
        "a solver that recalls: iterative",
        lambda plan, _: any("recall" in arm.solver.wants for arm in plan.arms),
    ),
    "memory": ("a run with --use-memory", lambda plan, _: plan.settings.use_memory != "off"),
    "decision": ("a run with --until-decided", lambda plan, _: plan.settings.until_decided is not None),
    "sinks": ("a run with another sink than json", lambda plan, _: bool({*plan.settings.chosen_sinks} - {"json"})),
    "mlflow": ("the sink mlflow", lambda plan, _: "mlflow" in plan.settings.chosen_sinks),
    "batches": ("a run with --batch", lambda plan, _: plan.settings.of(BatchOptions).batch),
    "manager": (
        "a run with --wasm-url",
        lambda plan, _: any(field.name == "wasm_url" and value for field, value in options_in(plan.settings)),
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
        uses = [_use_elsewhere(plan, schema, name, given) for plan, schema in zip(plans, schemas, strict=True)]
        if all(uses):
            flag = next(schema.fields[name].flags[0] for schema in schemas if name in schema.fields)
            raise KoderzError(f"{flag} has no effect here: {uses[0]}")


def require_sandbox(settings: Settings, given: Collection[str]) -> None:
    """Raises KoderzError for the first given option of a sandbox that the settings don't choose."""
    schema = schema_of()
    for name in given:
        owners = schema.owners(name)
        is_of_sandboxes = {owner.partition(".")[0] for owner in owners} == {"sandbox"}
        if is_of_sandboxes and f"sandbox.{settings.sandbox}" not in owners:
            raise KoderzError(f"{flag_of(name)} has no effect here: {use_of_flag(flag_of(name))}")


def _use_elsewhere(plan: Plan, schema: Schema, name: str, given: Collection[str]) -> str:
    """The readers of an option that nothing in the plan reads, in words; empty if something does."""
    is_general = name in fields_of(Settings)
    parameters = {each for arm in plan.arms for each in arm.solver.parameters}
    takes_part = name in parameters or not owners_of(plan.record).isdisjoint(schema.owners(name))
    if not takes_part and not is_general:
        return use_of_flag(schema.fields[name].flags[0] if name in schema.fields else flag_of(name))
    if name not in schema.fields or (is_general and takes_part):
        return ""
    reader, is_there = READERS.get(schema.fields[name].about.reader, _ANY_RUN)
    return "" if is_there(plan, given) else f"only {reader} reads it"


def _providers(plan: Plan) -> set[str]:
    """The providers of the models that the plan's arms ask."""
    return {parse_model_name(name).provider for arm in plan.arms for name in arm.models.values() if name != NOBODY}
