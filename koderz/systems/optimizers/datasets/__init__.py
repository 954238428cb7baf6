"""Graded items, for optimizers of prompts: published datasets, a user's own, and two that are made up."""

BASELINE = "none"
"""The solver that has the initial prompt alone, on the test split alone: what every other is compared with."""
