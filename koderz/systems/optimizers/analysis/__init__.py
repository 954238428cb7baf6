"""Analysis of runs of prompt optimizers: the prompts they found, their gains, and comparisons."""
