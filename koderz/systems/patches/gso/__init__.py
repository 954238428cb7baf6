"""Evaluations of patches as GSO has them: its logs, its speed-ups and its reports."""
