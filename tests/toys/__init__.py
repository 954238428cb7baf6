"""A package of somebody else's, that adds a system to koderz by one entry point."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.toys.toy_system import SYSTEM

HERE = Path(__file__).parent

NOTHING: Mapping[str, str] = MappingProxyType({})

ENTRY_POINTS: Mapping[str, Mapping[str, str]] = {"koderz.systems": {"toys": "toy_system:SYSTEM"}}
"""By group and name, what the package adds: a system, which names everything else."""

SINGLE: Mapping[str, Mapping[str, str]] = {
    f"koderz.{kind}": SYSTEM.names(kind)
    for kind in ("suites", "solvers", "models", "engines", "sinks", "summaries", "formats")
}
"""The same things as entry points of their own, which need no system."""


def installed(folder: Path, entry_points: Mapping[str, Mapping[str, str]] = ENTRY_POINTS) -> Mapping[str, str]:
    """Installs the package into a site folder of its own; the environment in which koderz finds it."""
    site = install(folder / "site", "toys", entry_points)
    for file in HERE.glob("toy_*.py"):
        shutil.copy(file, site)
    return {"PYTHONPATH": os.pathsep.join([str(site), str(HERE.parents[1])])}


def install(
    site: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str] = NOTHING
) -> Path:
    """Writes a package with entry points, and modules by name, into a site folder; returns the folder."""
    package = site / f"{name}-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in entry_points.items()
    )
    (package / "entry_points.txt").write_text("\n\n".join(groups))
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)
    return site
