"""The system `serving`: completion servers under load, and how fast they answer."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.serving"

SYSTEM = System(
    name="serving",
    suites={"serving": f"{_HERE}.suite:ServingSuite"},
    solvers={"serve-bench": f"{_HERE}.suite:serve_bench"},
    options={"suite.serving": f"{_HERE}.options:ServingOptions"},
    loads={"completions": f"{_HERE}.started:CompletionsLoad"},
    commands={
        "perf serve-bench": (
            f"{_HERE}.commands:serve_bench",
            "Put a server of completions under load, and time it.",
        )
    },
    accounts={"serving": f"{_HERE}.commands:ServingAccount"},
)
