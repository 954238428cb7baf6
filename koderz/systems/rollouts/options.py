"""The options of the suite `rollouts`."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.settings.options import option


@dataclass(frozen=True, slots=True)
class RolloutsOptions:
    """The resources of an agent in its workspace."""

    agent_timeout: float | None = option(
        None, "Time that an agent has. Default: the task's own, else 1800.", "SECONDS", bounds=(1, 86_400)
    )
    agent_memory: int = option(4096, "Memory that an agent's commands share.", "MB", bounds=(64, 1 << 20))
    entry_sandbox: bool = option(
        True, "Have entries that name a sandbox use the run's all the same, as with --sandbox."
    )
    judge_model: str | None = option(
        None,
        "A model whose opinion of diffs stands beside the tests' verdict.",
        "MODEL",
        role="judge",
    )
    max_diff_mb: int = option(10, "The largest diff that is graded.", "MB", bounds=(1, 1024))
