"""A package of somebody else's, that adds to koderz by entry points: one file a thing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parent

NOTHING: Mapping[str, str] = MappingProxyType({})

ENTRY_POINTS: Mapping[str, Mapping[str, str]] = {
    "koderz.suites": {
        "toy": "toy_suite:Toy",
        "toy-session": "toy_suite:ToySession",
        "toy-timed": "toy_suite:Timed",
    },
    "koderz.solvers": {"toy": "toy_solver:toy"},
    "koderz.models": {"toy": "toy_models:open_model"},
    "koderz.engines": {"toy": "toy_engine:open_toy"},
    "koderz.summaries": {"letters": "toy_outputs:LETTERS"},
    "koderz.sinks": {"letter-file": "toy_outputs:LetterFile"},
    "koderz.formats": {"replies": "toy_outputs:replies", "reply-files": "toy_outputs:reply_files"},
}
"""By group and name, what each file of this folder adds."""


def installed(folder: Path) -> Mapping[str, str]:
    """Installs the package into a site folder of its own; the environment in which koderz finds it."""
    site = install(folder / "site", "toys", ENTRY_POINTS)
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
