"""IFEval: instructions whose following a program can verify, as lm-eval verifies it."""
