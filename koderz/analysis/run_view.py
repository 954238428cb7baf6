"""A run as headings, sentences and tables, for notebooks, and its breakdown for all displays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.measures import declared, named_average, shown

if TYPE_CHECKING:
    from koderz.analysis.runs import Run
    from tracker.breakdown import Slice, Spread
    from tracker.summary import Figures

_MOST_CAUSES = 5
HEADER = ("", "Arm", "n", "Success", "95%", "Score", "Cost $", "Calls", "Depth", "Tokens", "Seconds")
_OPTIONAL = ("Seconds", "95%", "Depth", "Cost $")


def run_blocks(run: Run) -> Iterator[Block]:
    """The blocks of a run: its arms with their figures, and the causes of failures."""
    yield Heading(run.name)
    yield from map(Text, run.cautions)
    for name, arm in run.arms.items():
        yield Text(f"{run.model}, {name}" if len(run.arms) == 1 else name)
        yield figures_table(run, name)
        causes = sorted(arm.summary.causes.items(), key=lambda item: (-item[1], item[0]))[:_MOST_CAUSES]
        if causes:
            yield Table(["Not passed", ""], [[cause, str(count)] for cause, count in causes])
    if run.breakdown:
        yield from breakdown_blocks(run.breakdown)


def figures_table(run: Run, arm: str) -> Table:
    """A table of one arm: success, the suite's measures, and costs."""
    figures = run.arms[arm].summary
    interval, method = figures.success_rate_interval, figures.success_rate_interval_method
    cells = {"Success rate": rate_of(figures)}
    if interval:
        cells[f"95% interval ({method})"] = f"{interval[0]:.1f}% to {interval[1]:.1f}%"
    else:
        cells["95% interval"] = method or ""
    for name, measure in declared([run]).items():
        if mean := figures.measures.get(name):
            cells[named_average(measure)] = shown(mean.mean, measure)
            if mean.interval and mean.interval_method:
                low, high = (shown(limit, measure) for limit in mean.interval)
                cells[f"95% interval ({name}, {mean.interval_method})"] = f"{low} to {high}"
    cells |= {
        "Total cost": f"${figures.total_cost:.4f}",
        "Avg cost": f"${figures.avg_cost:.5f}",
        "Avg iterations": "" if figures.avg_iterations is None else f"{figures.avg_iterations:.1f}",
        "Faults": str(run.faults_of(arm)),
    }
    return Table(list(cells), [list(cells.values())], optional=["Avg iterations", "Avg cost"])


def rate_of(figures: Figures) -> str:
    """A success rate with its counts."""
    judged = figures.total_problems
    return f"{figures.rate:.1f}% ({figures.successes}/{judged})" if judged else "no results"


def breakdown_blocks(slices: Sequence[Slice]) -> Iterator[Block]:
    """A legend, and the table of slices."""
    yield Text("By arm and task; cost, calls, depth, tokens and seconds of a task: median / p95")
    if clusters := slices[0].clusters:
        yield Text(f"Tasks are in {clusters} cluster{'s' * (clusters > 1)}, which the intervals take into account.")
    if any(one.success_rate_interval is None for one in slices):
        yield Text("Where all tasks of a row are of one cluster, there is no interval.")
    yield Table(HEADER, list(breakdown_rows(slices)), optional=_OPTIONAL)


def breakdown_rows(slices: Sequence[Slice]) -> Iterator[Sequence[str]]:
    """A row for each slice; the first of several arms has the slice's name."""
    for (by, value), same in groupby(slices, key=lambda one: (one.by, one.value)):
        for number, one in enumerate(same):
            yield (
                "" if number else f"{by} {value}".strip() or "all",
                one.arm,
                str(one.results),
                f"{one.success_rate:.0f}%",
                "{:.0f}-{:.0f}%".format(*one.success_rate_interval) if one.success_rate_interval else "-",
                f"{one.score.mean:.2f}" if one.score else "",
                _spread(one.cost, ".4f"),
                _spread(one.calls, "g"),
                _spread(one.depth, "g"),
                _spread(one.tokens, ",.0f"),
                _spread(one.seconds, ".1f"),
            )


def _spread(found: Spread, form: str) -> str:
    return f"{found.median:{form}} / {found.p95:{form}}"
