"""Conformance tests of systems: functions that raise AssertionError if a system breaks the rules.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_toys_is_a_system(check):
        check(toy_system.SYSTEM)

What a system names has to pass the checks of its kind besides, such as those in `koderz.testing.suites`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from koderz.analysis.export import Format, RegistryFormat
from koderz.engines.sources import REGISTRIES
from koderz.settings.options import fields_of
from koderz.settings.systems import System, own_systems
from koderz_tracker.parts import Part
from koderz_tracker.registry import find
from koderz_tracker.sinks import Sink

Check = Callable[[System], None]

KINDS = [each.name for each in fields(System) if each.name not in ("name", "commands", "options")]
"""Kinds of what a system adds, which are the members of `System`."""


def names_lead_to_what_they_say(system: System) -> None:
    """Everything that it names can be loaded, and is of its kind."""
    for kind in KINDS:
        for name, target in system.names(kind).items():
            found = find(kind, name, {name: target}, "")
            assert found is not None, f"{kind} {name}: {target} is nothing"
            _require_kind(kind, name, found)


def options_are_those_of_their_owners(system: System) -> None:
    """Each dataclass of options is frozen, belongs to what the system adds, and has a sentence of help a field."""
    for key, target in system.options.items():
        kind, _, name = key.partition(".")
        struct = find("options", key, {key: target}, "")
        assert is_dataclass(struct), f"options {key}: {target} is no dataclass"
        assert name in system.names(REGISTRIES[kind].plural), (
            f"options {key}: the system adds no {kind} {name}"
        )
        for option in fields_of(struct).values():  # type: ignore[arg-type]
            assert option.about.help.endswith("."), (
                f"{key}: the option {option.flag} has no sentence of help"
            )


def options_are_the_same_once_loaded(system: System) -> None:
    """Options that the system names, so that help need not load their owner, are those that the owner has."""
    for kind, registry in REGISTRIES.items():
        for name, target in system.names(registry.plural).items():
            if named := system.options.get(f"{kind}.{name}"):
                own = registry.adapted(find(kind, name, {name: target}, ""), name).options
                loaded = find("options", name, {name: named}, "")
                assert own is loaded, (
                    f"{kind} {name}: its options are {own}, and the system names {loaded}"
                )


def commands_can_be_loaded(system: System) -> None:
    """Each command is a module with a Typer `app`, or a function, and has a line of help."""
    for name, (target, text) in system.commands.items():
        module, _, attribute = target.partition(":")
        assert (attribute or "app") in vars(import_module(module)), (
            f"{target} has no {attribute or 'app'}"
        )
        assert text.strip().endswith("."), f"the command {name} has no sentence of help"


def names_are_its_own(system: System) -> None:
    """Nothing of it has the name of what another system of koderz adds."""
    for other in own_systems():
        if other is not system:
            for kind in [*KINDS, "commands"]:
                both = {*system.names(kind)} & {*other.names(kind)}
                assert not both, f"{kind}: {other.name} has {min(both)}, too"


CHECKS: tuple[Check, ...] = (
    names_lead_to_what_they_say,
    options_are_those_of_their_owners,
    options_are_the_same_once_loaded,
    commands_can_be_loaded,
    names_are_its_own,
)
"""All of them. None depends on another."""


def _require_kind(kind: str, name: str, found: Any) -> None:
    """Raises AssertionError if something isn't what a member of a system names."""
    registry = next((each for each in REGISTRIES.values() if each.plural == kind), None)
    if registry and not name.endswith("*"):
        registry.adapted(found, name)
    elif kind == "sinks":
        assert issubclass(found, Sink), f"the sink {name} is no subclass of Sink"
    elif kind == "summaries":
        assert isinstance(found, Part), f"the summary {name} is no Part"
    elif kind == "formats":
        assert isinstance(found, RegistryFormat) or Format.of(found, name)
    elif kind == "checks":
        assert inspect.iscoroutinefunction(found), f"the check {name} is no async function"
    elif kind != "agents":
        assert callable(found), f"{kind} {name} can't be called"
