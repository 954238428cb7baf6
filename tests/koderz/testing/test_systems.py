"""The systems of koderz and of another package pass the tests that every system has to pass."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from koderz.engines.sources import REGISTRIES
from koderz.errors import KoderzError
from koderz.settings.systems import System, own_systems
from koderz.testing.systems import CHECKS, Check
from tests import toys
from tests.toys.toy_system import SYSTEM

BROKEN = {
    "names_lead_to_what_they_say": {"sinks": {"letter-file": "toy_outputs:Book"}},
    "options_are_those_of_their_owners": {"options": {"suite.toys": "toy_suite:ToyOptions"}},
    "options_are_the_same_once_loaded": {"options": {"suite.toy": "toy_solver:ToyOptions"}},
    "commands_can_be_loaded": {"commands": {"toys": ("toy_suite", "Play with words.")}},
    "names_are_its_own": {"suites": {"ruler": "toy_suite:Toy"}},
}


@pytest.fixture
def toys_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(toys.__file__).parent))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("system", own_systems(), ids=lambda system: system.name)
def test_system_passes(system: System, check: Check) -> None:
    check(system)


@pytest.mark.parametrize("kind", [kind for kind in REGISTRIES if kind != "model"])  # whose simulated one has suites'
def test_options_of_each_registry_are_known_without_loading_their_owners(kind: str) -> None:
    registry = REGISTRIES[kind]
    for name in registry:
        assert registry.options_of(name) is registry.load(name).options, name


@pytest.mark.usefixtures("toys_path")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_system_of_a_package_passes(check: Check) -> None:
    check(SYSTEM)


@pytest.mark.usefixtures("toys_path")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_system_that_breaks_a_rule_does_not_pass(check: Check) -> None:
    with pytest.raises((AssertionError, KoderzError)):
        check(dataclasses.replace(SYSTEM, **BROKEN[check.__name__]))  # type: ignore[arg-type]
