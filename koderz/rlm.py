"""Long context on one front: OOLONG, BrowseComp-Plus and RULER, asked by recursive language models.

The names that programs import; `koderz.systems.long_context.rlm` says what they do.
"""

from koderz.systems.long_context.rlm import (
    Rlm,
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
    "Rlm",
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
