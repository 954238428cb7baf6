"""The breakdown of a run's results as a table: how good, and at what cost, by what its tasks have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from koderz.analysis.blocks import Block, Table, Text
from tracker.breakdown import Slice, Spread

HEADER = ("", "Arm", "n", "Success", "95%", "Score", "Cost $", "Calls", "Depth", "Tokens", "Seconds")
_OPTIONAL = ("Seconds", "95%", "Depth", "Cost $")


def breakdown_blocks(slices: Sequence[Slice]) -> Iterator[Block]:
    """What each figure is, and a table of them."""
    yield Text("By arm and task; cost, calls, depth, tokens and seconds of a task: median / p95")
    yield Table(HEADER, list(breakdown_rows(slices)), optional=_OPTIONAL)


def breakdown_rows(slices: Sequence[Slice]) -> Iterator[Sequence[str]]:
    """A row for each slice; the first of several arms says what they are about."""
    for (by, value), same in groupby(slices, key=lambda one: (one.by, one.value)):
        for number, one in enumerate(same):
            low, high = one.success_rate_interval or (0.0, 100.0)
            yield (
                "" if number else f"{by} {value}".strip() or "all",
                one.arm,
                str(one.results),
                f"{one.success_rate:.0f}%",
                f"{low:.0f}-{high:.0f}%",
                f"{one.score.mean:.2f}" if one.score else "",
                _spread(one.cost, ".4f"),
                _spread(one.calls, "g"),
                _spread(one.depth, "g"),
                _spread(one.tokens, ",.0f"),
                _spread(one.seconds, ".1f"),
            )


def _spread(found: Spread, form: str) -> str:
    return f"{found.median:{form}} / {found.p95:{form}}"
