"""The report: runs as one self-contained web page, without network, with all text of models escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from koderz.analysis.runs import Run
from koderz.errors import KoderzError, StorageError
from koderz_tracker.files import write_whole


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """The contents of a written page."""

    path: Path
    bytes: int
    experiments: int
    stories: int  # those told in full; each of the others names the command that prints it


def write_report(
    runs: Sequence[Run], output: Path, *, progress: Callable[[str], object] = lambda _: None
) -> WrittenReport:
    """Writes the page on these runs, whole or not at all. `progress` hears what is begun, a phrase a step.

    At most 1 MB for up to 328 experiments, growing to 10 MB for 10,000 and more: failures are told first. Raises
    KoderzError where no experiment of any run has ended, StorageError where the disk refuses.
    """
    from koderz.analysis.report.page import Pages
    from koderz.analysis.report.stories import budget_of, pack_stories
    from koderz.analysis.report.view import View

    view = View.of(runs)
    if not view.rows:
        raise KoderzError(f"nothing to report: no experiment of {runs[0].name if runs else 'any run'} has ended yet")
    progress(f"comparing {len(view.entries)} arm{'s' * (len(view.entries) != 1)}")
    pages = Pages(view)
    without = len(pages.render(()))
    progress(f"packing the stories of {len(view.rows):,} experiments")
    page = pages.render(pack_stories(view, budget_of(len(view.rows)) - without, pages.flipped))
    try:
        write_whole(output, [page])
    except OSError as error:
        raise StorageError(f"{output} can't be written ({error.strerror})") from None
    return WrittenReport(output, len(page), len(view.rows), sum(row.chunk is not None for row in view.rows))
