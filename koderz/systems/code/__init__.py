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
        "livecodebench": f"{_HERE}.livecodebench.suite:LiveCodeBench",
        "bigcodebench": f"{_HERE}.bigcodebench.suite:BigCodeBench",
    },
    options={
        **dict.fromkeys(
            ("suite.humaneval", "suite.humaneval+", "suite.mbpp", "suite.mbpp+"),
            "koderz.suites.options:CodeOptions",
        ),
        "suite.bigcodebench": f"{_HERE}.options:BigCodeBenchOptions",
        "suite.livecodebench": f"{_HERE}.options:LiveCodeBenchOptions",
    },
    summaries={"passed_as_process": f"{_HERE}.livecodebench.part:PROCESS"},
)
