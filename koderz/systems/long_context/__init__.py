"""The system `long_context`: long texts and questions about them in RULER, OOLONG and BrowseComp-Plus."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.long_context"

SYSTEM = System(
    name="long_context",
    suites={
        "ruler": f"{_HERE}.ruler.suite:ruler",
        "oolong": f"{_HERE}.oolong.suite:oolong",
        "oolong-real": f"{_HERE}.oolong.suite:oolong_real",
        "oolong-pairs": f"{_HERE}.oolong.suite:oolong_pairs",
        "browsecomp-plus": f"{_HERE}.browsecomp_plus.suite:browsecomp_plus",
        "completion": f"{_HERE}.completion:completion",
    },
    solvers={"rlm": f"{_HERE}.recursive.rlm:rlm"},
    options={
        "suite.ruler": f"{_HERE}.ruler.options:RulerOptions",
        "suite.oolong": f"{_HERE}.oolong.options:OolongOptions",
        "suite.browsecomp-plus": f"{_HERE}.browsecomp_plus.options:ResearchOptions",
        "solver.rlm": f"{_HERE}.recursive.options:RlmOptions",
    },
    documents={"long-context": f"{_HERE}.results:LongContextResults"},
    commands={"rlm": (f"{_HERE}.commands", "Run benchmarks of long texts by recursive language models.")},
)
