"""Prompt optimizers: their datasets, their searches, and what is found about them."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.optimizers"

SYSTEM = System(
    name="optimizers",
    suites={"datasets": f"{_HERE}.datasets.suite:DatasetSuite"},
    solvers={
        "none": f"{_HERE}.solvers.baselines:none",
        "random_search": f"{_HERE}.solvers.baselines:random_search",
        "few_shot": f"{_HERE}.solvers.few_shot:few_shot",
        "meta_prompt": f"{_HERE}.solvers.rewriting:meta_prompt",
        "evolutionary_optimizer": f"{_HERE}.solvers.rewriting:evolutionary_optimizer",
        "hierarchical_reflective": f"{_HERE}.solvers.rewriting:hierarchical_reflective",
        "gepa": f"{_HERE}.solvers.gepa:gepa",
    },
    options={"suite.datasets": f"{_HERE}.datasets.options:DatasetOptions"},
    summaries={"optimize": f"{_HERE}.analysis.part:OPTIMIZE"},
    sinks={"checkpoint": f"{_HERE}.analysis.checkpoint:CheckpointSink"},
    sections={"optimize": f"{_HERE}.analysis.report:section_of"},
    comparisons={"optimize": f"{_HERE}.analysis.report:compare_optimizers"},
    commands={
        "optimize": (f"{_HERE}.commands", "Compare prompt optimizers, each with the same budget.")
    },
)
