"""Systems of koderz' own: what they name is there, and the installed package names them all."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

import pytest

from koderz.settings.systems import OWN, System, own_systems


@pytest.mark.parametrize("system", own_systems(), ids=lambda system: system.name)
def test_system_names_only_what_is_there(system: System) -> None:
    targets = [
        target for kind, names in vars(system).items() if kind not in ("name", "commands") for target in names.values()
    ]
    targets += [home for home, _ in system.commands.values()]
    for target in targets:
        module, _, attribute = target.partition(":")
        assert module.startswith("koderz."), target
        assert hasattr(importlib.import_module(module), attribute or "app"), target


def test_systems_are_entry_points_of_the_package() -> None:
    assert {entry.name for entry in entry_points(group="koderz.systems")} >= {*OWN}
    assert [system.name for system in own_systems()] == [*OWN]
