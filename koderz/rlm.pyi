# For type checkers: koderz/settings/moved.py has programs that import koderz.rlm find the module that took its place.
from koderz.systems.long_context.rlm import Rlm as Rlm
from koderz.systems.long_context.rlm import create_rlm_pool as create_rlm_pool
from koderz.systems.long_context.rlm import (
    create_rlm_repl_with_sidecar as create_rlm_repl_with_sidecar,
)
from koderz.systems.long_context.rlm import run_all_benchmarks as run_all_benchmarks
from koderz.systems.long_context.rlm import run_all_benchmarks_async as run_all_benchmarks_async
from koderz.systems.long_context.rlm import (
    run_deep_research_benchmark as run_deep_research_benchmark,
)
from koderz.systems.long_context.rlm import (
    run_deep_research_benchmark_async as run_deep_research_benchmark_async,
)
from koderz.systems.long_context.rlm import run_oolong_benchmark as run_oolong_benchmark
from koderz.systems.long_context.rlm import run_oolong_benchmark_async as run_oolong_benchmark_async
from koderz.systems.long_context.rlm import run_ruler_benchmark as run_ruler_benchmark
from koderz.systems.long_context.rlm import run_ruler_benchmark_async as run_ruler_benchmark_async
