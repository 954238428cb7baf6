"""Options of suites whose answers are programs, and of the simulated model that writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from koderz.errors import KoderzError
from koderz.settings.options import option
from koderz.types import FeedbackKind, Judging


def cluster_column() -> Any:
    """The option that names the column of a suite's rows by which these are clustered, see `Row.cluster_by`."""
    return option(
        None,
        "The column of the dataset that says which tasks belong together, such as their passage or customer. "
        "Default: cluster, where it is there.",
        "NAME",
    )


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How rows of a file are read."""

    cluster_column: str | None = cluster_column()


def require_no_column(options: Any, instead: str = "without one, there are no rows") -> None:
    """Raises KoderzError if the options name a column where no rows are read; `instead`: what there is."""
    if options and options.cluster_column:
        raise KoderzError(
            f"--cluster-column names a column of a file of rows (--dataset FILE); {instead}"
        )


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """How programs are asked for and judged."""

    feedback: FeedbackKind = option(
        "tests",
        "What an attempt is told of the previous one: tests (the failing test), examples (only those of the "
        "docstring), none (that it failed).",
        "KIND",
    )
    cot: bool = option(True, "Skip the request to think step by step (ablation).")
    test_timeout: float | None = option(
        None,
        "CPU time limit of a program with its tests. Default: the suite's, mostly 6.",
        "SECONDS",
        bounds=(0.1, 3600),
    )
    test_memory: int | None = option(
        None,
        "Memory limit of a program. Default: the suite's, mostly 1024.",
        "MB",
        bounds=(64, 1_000_000),
    )

    cluster_column: str | None = cluster_column()

    def limits(self, own: Judging) -> Judging:
        """How answers are judged where `own` is the suite's way."""
        timeout, memory_mb = self.test_timeout or own.timeout, self.test_memory or own.memory_mb
        return Judging(timeout, memory_mb, self.feedback, own.call_timeout)


USUAL = CodeOptions()


@dataclass(frozen=True, slots=True)
class SimulatedOptions:
    """How good the simulated model is, how slow, and how often it fails."""

    simulated_skill: float = option(0.6, "How often it is right, 0 to 1.", "X", bounds=(0, 1))
    simulated_latency: float = option(0.0, "Mean latency of a reply.", "SECONDS", bounds=(0, 3600))
    simulated_fault_rate: float = option(
        0.0, "Share of calls that fail, 0 to 1.", "X", bounds=(0, 1)
    )
