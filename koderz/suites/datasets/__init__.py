"""Graded items, for optimizers of prompts: published datasets, a user's own, and two that are made up."""
