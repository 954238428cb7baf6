"""Runs of prompt optimizers: what their searches found, what it gains, and how they compare."""
