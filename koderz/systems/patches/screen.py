"""The account of runs of `koderz perf`: the latest block, verdicts as they are reached, and a line a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.analysis.blocks import Text
from koderz.cli.session import Account
from koderz.cli.tables import print_blocks
from koderz.systems.patches.measuring.verdicts import CONFIDENCE
from koderz.systems.patches.report import figures_of, label_of
from koderz_tracker.records import Experiment, Fault, Once, Record
from koderz_tracker.summary import Summary, summarize

if TYPE_CHECKING:
    from koderz.plans.plan import Plan


class PerfAccount(Account):
    """The account of commits, arms and blocks."""

    def __init__(self) -> None:
        # by experiment: the commit, or else the task, and the arm
        self._names: Mapping[str, str] = {}
        self._doing = ""

    def begin(self, plan: Plan) -> None:
        """Notes the experiments of the plan by their commits."""
        self._names = {
            each.experiment_id: f"{each.task.payload.human_commit[:7] or each.task.id} {each.arm.name}"
            for each in plan.experiments()
        }

    def doing(self) -> str:
        """The latest block."""
        return self._doing

    def line_of(self, record: Record) -> str:
        """A line for a verdict; a block is shown beside the figures instead."""
        if isinstance(record, Once) and "block/" in record.name:
            self._doing = (
                f"{self._names[record.experiment_id]}, block {record.name.rpartition('/')[2]}"
            )
        if not isinstance(record, Experiment | Fault):
            return ""
        told = f"fault: {record.reason}" if isinstance(record, Fault) else told_of(record)
        return f"{self._names[record.experiment_id]}: {record.problem_id}: {told}"

    def results(self, folder: Path) -> None:
        """Prints a line a task, the result of each arm, and a table of the arms' figures."""
        summary = summarize(folder)
        print_blocks([*_lines(summary), figures_of(summary)])


def _lines(summary: Summary) -> Iterator[Text]:
    for name, arm in summary.arms.items():
        yield Text(f"{name}:")
        width = max((len(label_of(result)) for result in arm.results), default=0)
        for result in arm.results:
            yield Text(f"  {label_of(result):{width}}  {told_of(result)}")


_BESIDE = {"base": "base", "human": "human", "aa": "itself"}
_WORDS = {"opt": "optimized", "not": "not optimized"}


def told_of(result: Any) -> str:
    metrics, facts = result.metrics or {}, result.facts
    cause = "opt" if result.success else result.cause
    word = _WORDS.get(cause, cause) if facts.get("opt") else ""
    speedups: list[str] = []
    confidence = f"{100 * CONFIDENCE:.3g} % interval "
    for key in ("base", "human") if word else ("base", "human", "aa"):
        if value := metrics.get(f"speedup_{key}"):
            low, high = (metrics.get(f"speedup_{key}_{end}") for end in ("low", "high"))
            bounds = f" ({confidence}{low:.2f} to {high:.2f})" if low and high else ""
            confidence = "" if bounds else confidence
            speedups.append(f"{value:.2f}× {_BESIDE[key]}{bounds}")
    parts = [": ".join(filter(None, (word, ", ".join(speedups))))]
    if facts.get("metric"):
        parts.append(f"by {facts['metric']}")
    if metrics.get("blocks"):
        parts.append(f"{metrics['blocks']:.0f} blocks")
    if other := facts.get("other_clock"):
        parts.append(
            f"wall and CPU disagree: {other['speedup_base']:.2f}× base by --clock {other['clock']}"
        )
    if facts.get("hack"):
        parts.append(f"hack: {facts['hack']}")
    if facts.get("needs_review"):
        parts.append(facts["needs_review"])
    if facts.get("tampering"):
        parts.append(f"dropped: {len(facts['tampering'])} changes of tests")
    return ", ".join(filter(None, parts))
