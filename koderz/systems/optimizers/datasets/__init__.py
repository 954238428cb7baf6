"""Graded items for prompt optimizers: published datasets, a user's own, and two made-up ones."""

BASELINE = "none"
"""The solver with the initial prompt alone, run on the test split alone: the baseline of all others."""

OPTIMIZERS = (
    "few_shot",
    "meta_prompt",
    "evolutionary_optimizer",
    "hierarchical_reflective",
    "random_search",
)
"""The solvers that are compared unless others are named."""
