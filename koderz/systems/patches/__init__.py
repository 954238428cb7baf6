"""The system `patches`: patches that should make a repository faster, and the measuring of their effect."""

from __future__ import annotations

import koderz.systems.workspaces  # noqa: F401 without which nothing is measured
from koderz.settings.systems import System

_HERE = "koderz.systems.patches"
_SUITES = {
    "koderz-perf-mini": f"{_HERE}.suite:Mini",
    "koderz-perf-pypi": f"{_HERE}.suite:Pypi",
    "gso": f"{_HERE}.suite:Gso",
    "iso": f"{_HERE}.suite:Iso",
}

SYSTEM = System(
    name="patches",
    suites=_SUITES,
    solvers={
        "patching": f"{_HERE}.patching:patching",
        "patch:base": f"{_HERE}.patching:base",
        "patch:human": f"{_HERE}.patching:human",
        "patch:given": f"{_HERE}.patching:user_patch",
    },
    options={
        **{f"suite.{name}": f"{_HERE}.options:PerformanceOptions" for name in _SUITES},
        "solver.patching": f"{_HERE}.patching:PatchingOptions",
    },
    summaries={"perf": f"{_HERE}.part:PERF"},
    sections={"perf": f"{_HERE}.report:section_of"},
    accounts={"perf": f"{_HERE}.screen:PerfAccount"},
    formats={"gso": f"{_HERE}.formats:gso", "iso": f"{_HERE}.formats:iso"},
    commands={"perf": (f"{_HERE}.commands", "Measure whether patches make repositories faster.")},
)
