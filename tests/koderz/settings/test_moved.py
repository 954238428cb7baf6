"""Documented modules that have moved."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from koderz.settings.moved import MOVED
from koderz.systems.rewards import Client


@pytest.mark.parametrize("name", MOVED)
def test_moved_module_is_imported_by_its_earlier_name(name: str) -> None:
    code = (
        f"import {name} as old, {MOVED[name]} as new; print({{n for n in vars(new) if n[0] != '_'}} - {{*vars(old)}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_moved_module_shares_its_classes() -> None:
    old = importlib.import_module("koderz.suites.code.options")
    new = importlib.import_module("koderz.suites.options")
    assert old.CodeOptions is new.CodeOptions


def test_moved_module_has_names_that_are_imported_when_used() -> None:
    assert importlib.import_module("koderz.rewards").Client is Client
