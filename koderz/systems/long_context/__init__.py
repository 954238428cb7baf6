"""The system `long_context`: long texts and questions about them in RULER, OOLONG and BrowseComp-Plus."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.long_context"

SYSTEM = System(
    name="long_context",
    suites={
        "ruler": f"{_HERE}.ruler.suite:Ruler",
        "oolong": f"{_HERE}.oolong.suite:Oolong",
        "oolong-real": f"{_HERE}.oolong.suite:OolongReal",
        "oolong-pairs": f"{_HERE}.oolong.suite:OolongPairs",
        "browsecomp-plus": f"{_HERE}.browsecomp_plus.suite:BrowseCompPlus",
        "completion": f"{_HERE}.rlm:CompletionSuite",
    },
    solvers={"compaction": f"{_HERE}.compaction:compaction", "rlm": f"{_HERE}.recursive.rlm:rlm"},
    options={
        "suite.ruler": f"{_HERE}.ruler.options:RulerOptions",
        "suite.oolong": f"{_HERE}.options:OolongOptions",
        **dict.fromkeys(
            ("suite.oolong-real", "suite.oolong-pairs"), "koderz.suites.options:RowOptions"
        ),
        "suite.browsecomp-plus": f"{_HERE}.options:ResearchOptions",
        "solver.rlm": f"{_HERE}.options:RlmOptions",
    },
    documents={"long-context": f"{_HERE}.results:LongContextResults"},
    commands={
        "rlm": (f"{_HERE}.commands", "Run benchmarks of long texts by recursive language models."),
        "wasm": (
            f"{_HERE}.wasm.commands",
            "Build the WASM image, or serve sessions of code over HTTP.",
        ),
    },
)
