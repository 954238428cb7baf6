"""A run as a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterator

from koderz.analysis.blocks import Block, Heading, Table, Text, as_html
from koderz.analysis.comparison_view import side_blocks
from koderz.analysis.pairs import sides_of
from koderz.analysis.runs import Run

_MOST_CAUSES = 5


def run_html(run: Run) -> str:
    """Its arms with their figures, and why experiments failed."""
    return as_html(_blocks(run))


def _blocks(run: Run) -> Iterator[Block]:
    yield Heading(run.name)
    if run.simulated:
        yield Text("SIMULATED MODEL: these figures say nothing about any real one")
    for side in sides_of(run):
        yield from side_blocks(side)
        causes = sorted(side.figures.causes.items(), key=lambda item: (-item[1], item[0]))[:_MOST_CAUSES]
        if causes:
            yield Table(["Not passed", ""], [[cause, str(count)] for cause, count in causes])
