"""The system of the toys: one value that names everything which the other files of this folder add."""

from __future__ import annotations

from koderz.settings.systems import System

SYSTEM = System(
    name="toys",
    suites={
        "toy": "toy_suite:Toy",
        "toy-session": "toy_suite:ToySession",
        "toy-timed": "toy_suite:Timed",
    },
    solvers={"toy": "toy_solver:toy", "toy-aloud": "toy_solver:aloud", "toy-times-*": "toy_solver:times"},
    models={"toy": "toy_models:Toy"},
    engines={"toy": "toy_engine:ToyEngine"},
    sinks={"letter-file": "toy_outputs:LetterFile"},
    options={
        "suite.toy": "toy_suite:ToyOptions",
        "solver.toy": "toy_solver:ToyOptions",
        "solver.toy-aloud": "toy_solver:AloudOptions",
        "engine.toy": "toy_engine:ToyOptions",
    },
    commands={"toys": ("toy_commands", "Play with words.")},
    accounts={"toy-aloud": "toy_commands:AloudAccount"},
    comparisons={"toy-aloud": "toy_outputs:compare_aloud"},
    sections={"letters": "toy_outputs:section_of"},
    summaries={"letters": "toy_outputs:LETTERS"},
    documents={"toy-book": "toy_outputs:Book"},
    formats={"replies": "toy_outputs:replies", "reply-files": "toy_outputs:reply_files"},
    logs={"tally": "toy_outputs:tally_of"},
    checks={"toys": "toy_commands:check"},
)
