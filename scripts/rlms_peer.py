"""Measures the local REPL of rlms, whose folder is the first argument; prints JSON. Started by scripts/bench_rlm.

In a process of its own: `rlm` is also the name of a package in this folder.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, sys.argv[1])

from rlm.clients.base_lm import BaseLM  # type: ignore[import-not-found,unused-ignore]
from rlm.core.lm_handler import LMHandler  # type: ignore[import-not-found,unused-ignore]
from rlm.core.types import ModelUsageSummary, UsageSummary  # type: ignore[import-not-found,unused-ignore]
from rlm.environments.local_repl import LocalREPL  # type: ignore[import-not-found,unused-ignore]


class Echo(BaseLM):  # type: ignore[misc,unused-ignore]
    """A model that answers at once."""

    def completion(self, prompt: Any) -> str:
        return str(prompt)

    async def acompletion(self, prompt: Any) -> str:
        return str(prompt)

    def get_usage_summary(self) -> Any:
        return UsageSummary(model_usage_summaries={})

    def get_last_usage(self) -> Any:
        return ModelUsageSummary(total_calls=1, total_input_tokens=0, total_output_tokens=0)


def cpu(doing: Callable[[], Any], times: int) -> float:
    """Milliseconds of CPU, the median of several."""
    found = []
    for _ in range(times):
        before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        doing()
        found.append(1000 * (sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before))
    return statistics.median(found)


def main() -> None:
    handler = LMHandler(Echo("echo"))
    address = handler.start()
    repl = LocalREPL(lm_handler_address=address)
    repl.execute_code("x = 1")
    large = "The quick brown fox jumps over 13 lazy dogs. " * 888_889
    found = {
        "create": cpu(LocalREPL, 20),
        "cell": cpu(lambda: repl.execute_code("x += 1"), 100),
        "sub-call": cpu(lambda: repl.execute_code("for n in range(100): llm_query('a' * 1000)"), 5) / 100,
        "put 40 MB": cpu(lambda: LocalREPL(context_payload=large), 3),
    }
    answered = repl.execute_code("print(llm_query('ready'))").stdout.strip()
    assert answered == "ready", answered
    print(json.dumps(found))


if __name__ == "__main__":
    main()
