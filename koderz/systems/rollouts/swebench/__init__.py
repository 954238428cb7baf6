"""SWE-bench: rows of its datasets, parsers of its logs, and verdicts by its rules."""
