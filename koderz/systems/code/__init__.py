"""The system `code`: suites whose answers are Python programs."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.code"

SYSTEM = System(
    name="code",
    suites={
        "humaneval": f"{_HERE}.humaneval:HumanEval",
        "humaneval+": f"{_HERE}.humaneval:HumanEvalPlus",
        "mbpp": f"{_HERE}.mbpp:Mbpp",
        "mbpp+": f"{_HERE}.mbpp:MbppPlus",
    },
    options=dict.fromkeys(
        ("suite.humaneval", "suite.humaneval+", "suite.mbpp", "suite.mbpp+"), "koderz.suites.options:CodeOptions"
    ),
)
