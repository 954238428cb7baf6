"""The system `questions`: questions that aren't code, one's own and those of published sets."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.questions"

_PUBLISHED = {
    "gsm8k": "Gsm8k",
    "math": "Math",
    "aime": "Aime",
    "mmlu": "Mmlu",
    "mmlu-pro": "MmluPro",
    "gpqa": "Gpqa",
    "arc": "Arc",
    "truthfulqa": "TruthfulQa",
    "ifeval": "IfEval",
    "simpleqa": "SimpleQa",
    "drop": "Drop",
}

SYSTEM = System(
    name="questions",
    suites={"qa": f"{_HERE}.suite:Qa"}
    | {name: f"{_HERE}.published:{kind}" for name, kind in _PUBLISHED.items()},
    options={"suite.qa": f"{_HERE}.options:QaOptions"}
    | {f"suite.{name}": f"{_HERE}.options:QuestionOptions" for name in _PUBLISHED},
    summaries={
        "questions": f"{_HERE}.parts:QUESTIONS",
        "ifeval": f"{_HERE}.parts:IFEVAL",
        "simpleqa": f"{_HERE}.parts:SIMPLEQA",
    },
)
