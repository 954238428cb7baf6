#!/usr/bin/env python3
"""OOLONG, BrowseComp-Plus and RULER by recursive language models: `koderz rlm run`, and its names for programs."""

from __future__ import annotations

import sys

from koderz.rlm import (
    create_rlm_pool,
    create_rlm_repl_with_sidecar,
    run_all_benchmarks,
    run_all_benchmarks_async,
    run_deep_research_benchmark,
    run_deep_research_benchmark_async,
    run_oolong_benchmark,
    run_oolong_benchmark_async,
    run_ruler_benchmark,
    run_ruler_benchmark_async,
)

__all__ = [
    "create_rlm_pool",
    "create_rlm_repl_with_sidecar",
    "run_all_benchmarks",
    "run_all_benchmarks_async",
    "run_deep_research_benchmark",
    "run_deep_research_benchmark_async",
    "run_oolong_benchmark",
    "run_oolong_benchmark_async",
    "run_ruler_benchmark",
    "run_ruler_benchmark_async",
]


def main() -> int:
    """Runs the command; returns its exit code."""
    from koderz.cli import main as command_line

    sys.argv[1:1] = ["rlm", "run"]
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
