"""The screen of `koderz perf run`: the blocks as they are measured, a verdict as it is reached, and a line a task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.cli.console import say, warn
from koderz.cli.session import SessionScreen
from tracker.records import Experiment, Fault, Once, Record

if TYPE_CHECKING:
    from koderz.runs.observer import SessionView


class PerfScreen(SessionScreen):
    """Shows commits, arms and blocks."""

    def __init__(self, *, quiet: bool, json: bool) -> None:
        super().__init__(quiet=quiet, json=json, figures=show_figures)
        self._names: Mapping[str, str] = {}  # by experiment: the commit, or else the task, and the arm
        self._doing = ""

    @asynccontextmanager
    async def showing(self, view: SessionView) -> AsyncIterator[None]:
        self._names = {
            each.experiment_id: f"{each.task.payload.human_commit[:7] or each.task.id} {each.arm.name}"
            for each in view.plan.experiments()
        }
        async with super().showing(view):
            yield

    def doing(self) -> str:
        """The last block."""
        return self._doing

    def recorded(self, record: Record) -> None:
        """A verdict is a line; a block stands beside the figures."""
        if isinstance(record, Once) and record.name.startswith("block/"):
            self._doing = f"{self._names[record.experiment_id]}, block {record.name.partition('/')[2]}"
        elif isinstance(record, Experiment | Fault) and not self._quiet:
            told = f"fault: {record.reason}" if isinstance(record, Fault) else told_of(record)
            warn(f"{self._names[record.experiment_id]}: {record.problem_id}: {told}")


def show_figures(folder: Path) -> None:
    """A line a task: what each arm came to."""
    from tracker.summary import summarize

    summary = summarize(folder)
    for name, arm in summary.arms.items():
        say(f"{name}:")
        width = max((len(result.problem_id) for result in arm.results), default=0)
        for result in arm.results:
            say(f"  {result.problem_id:{width}}  {told_of(result)}")
        for key, figures in arm.more.get("opt_at_k", {}).items() if name != "baseline" else ():
            low, high = figures["interval"] or (0.0, 1.0)
            say(f"  Opt@{key}: {100 * figures['value']:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %")


def told_of(result: Any) -> str:
    metrics, facts = result.metrics or {}, result.facts
    parts = ["opt" if result.success else result.cause] if facts.get("opt") else []
    for key, shown in (("base", "of base"), ("human", "of human"), ("aa", "of itself")):
        value = metrics.get(f"speedup_{key}")
        if value and (key != "aa" or not parts):
            low, high = metrics.get(f"speedup_{key}_low"), metrics.get(f"speedup_{key}_high")
            bounds = f" [{low:.2f}, {high:.2f}]" if low and high else ""
            parts.append(f"{value:.2f}x {shown}{bounds}")
    if facts.get("metric"):
        parts.append(f"by {facts['metric']}")
    if metrics.get("blocks"):
        parts.append(f"{metrics['blocks']:.0f} blocks")
    if facts.get("hack"):
        parts.append(f"hack: {facts['hack']}")
    if facts.get("tampering"):
        parts.append(f"dropped: {len(facts['tampering'])} changes of tests")
    return ", ".join(parts)
