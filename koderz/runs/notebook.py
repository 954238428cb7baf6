"""The progress of a run in a notebook: one line with a bar, redrawn where the cell's output stands."""

from __future__ import annotations

import asyncio
import html
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

from koderz.runs.observer import NullObserver, Observer, SessionView, beside

_EVERY = 0.5  # seconds between two looks at the run


def observer_here() -> Observer:
    """The observer of a run that Python began: one that draws in a notebook, and elsewhere none that says anything."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return NotebookObserver() if hasattr(shell, "kernel") else NullObserver()


class NotebookObserver(Observer):
    """Draws the progress of a session in the output of the cell that began it."""

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        """Shows a bar while the block runs, and its last state afterwards."""
        return beside(self._drawn(view))

    def notice(self, text: str) -> None:
        """Prints a text that the user should see once."""
        sys.stderr.write(f"{text}\n")

    async def _drawn(self, view: SessionView) -> None:
        import IPython.display  # which is there, since a kernel runs this

        ipython: Any = IPython.display  # its functions have no types
        shown = ipython.display(ipython.HTML(_line(view)), display_id=True)
        try:
            while True:
                await asyncio.sleep(_EVERY)
                shown.update(ipython.HTML(_line(view)))
        finally:
            shown.update(ipython.HTML(_line(view)))


def _line(view: SessionView) -> str:
    """The bar, and beside it what has passed, what it cost and what is being asked."""
    tally, progress = view.tracker.tally, view.orchestrator.progress
    done, planned = len(tally.ended), progress.planned
    said = [f"{done}/{planned}", f"{tally.passed} passed", f"${tally.cost:.4f}"]
    said += [f"{tally.faults} fault{'s' * (tally.faults > 1)}"] if tally.faults else []
    said += [f"{progress.in_flight} in flight"] if done < planned else []
    said += [text for text in (view.engine.waits, progress.stopping) if text]
    return f'<progress value="{done}" max="{max(planned, 1)}"></progress> {html.escape(" · ".join(said))}'
