"""Optimizers: solvers that search for a better prompt with an evaluator."""
