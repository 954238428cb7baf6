"""Suites whose answers are Python programs."""
