"""Agents at work on prepared repositories."""

from __future__ import annotations

from koderz.systems.rollouts.results import Benchmark, get_task_score, load_benchmark

__all__ = ["Benchmark", "get_task_score", "load_benchmark"]
