"""A package of somebody else's, that adds to koderz by entry points: one file a thing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent

ENTRY_POINTS: Mapping[str, Mapping[str, str]] = {
    "koderz.suites": {
        "toy": "toy_suite:toy",
        "toy-session": "toy_suite:toy_session",
        "toy-timed": "toy_suite:toy_timed",
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
    site = folder / "site"
    package = site / "toys-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in ENTRY_POINTS.items()
    )
    (package / "entry_points.txt").write_text("\n\n".join(groups))
    for file in HERE.glob("toy_*.py"):
        shutil.copy(file, site)
    return {"PYTHONPATH": os.pathsep.join([str(site), str(HERE.parents[1])])}
