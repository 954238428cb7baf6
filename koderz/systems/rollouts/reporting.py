"""Reports of a verifier's pytest: which of its tests ran and passed, whatever it ends with.

A plugin goes with each pytest that a verifier calls. It says what each test did; exit codes, skips and expected
failures count for nothing. That reports are forged shows where tests are run turned round, see `turned`.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from koderz.sandbox.workspace import Command, Mount

TESTS = "/tests"
"""The folder of the tests, as a verifier sees it."""

_PLUGIN = Path(__file__).with_name("guest") / "reporting"
_SEEN, _FOLDER = "/opt/koderz/reporting", "/opt/koderz/reports"
_FILE = "reports.jsonl"
_MOST = 64 << 20  # bytes of reports
_PHASES = ("setup", "call", "teardown")


def reporting(command: Command, folder: Path) -> Command:
    """The command with the plugin, whose reports go to an empty folder."""
    given = command.environment
    own = {
        "PYTEST_PLUGINS": ",".join(filter(None, [given.get("PYTEST_PLUGINS", ""), "koderz_reports"])),
        "PYTHONPATH": ":".join(filter(None, [given.get("PYTHONPATH", ""), _SEEN])),
        "KODERZ_REPORTS": f"{_FOLDER}/{_FILE}",
    }
    mounts = [*command.mounts, Mount(_PLUGIN, _SEEN), Mount(folder, _FOLDER, writable=True)]
    return replace(command, environment={**given, **own}, mounts=mounts)


def tests_in(folder: Path) -> dict[str, bool]:
    """Whether each test of /tests passed, by its path there and its name, `test_a.py::test_one`."""
    states: dict[str, dict[str, list[bool]]] = {}
    for told in _told(folder / _FILE):
        path, _, name = str(told.get("test")).partition("::")
        if not path.startswith(f"{TESTS}/"):
            continue
        test = f"{posixpath.relpath(path, TESTS)}::{name}"
        good = told.get("outcome") == "passed" and not told.get("expected")
        states.setdefault(test, {}).setdefault(str(told.get("when")), []).append(good)
    return {test: all(each.get(when) and all(each[when]) for when in _PHASES) for test, each in states.items()}


def _told(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        for line in file.read(_MOST).splitlines():
            try:
                told = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(told, dict):
                yield told
