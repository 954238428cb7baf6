"""Demands of a CI job on the runs of a command: gates on their figures, and their tasks as JUnit's XML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.cli.console import warn, writing
from koderz.cli.flags import JUNIT, LEAST
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.analysis.compare import Compared
    from koderz.analysis.gates import Gates, Ruling
    from koderz.analysis.junit import CaseSuite
    from koderz.analysis.runs import Run
    from koderz.runs.session import SessionResult

EXIT_GATE, EXIT_UNDECIDED = 1, 3
_ENDED = ("complete", "decided", "incomplete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The gates of a command, and where it writes JUnit's XML. Raises KoderzError for what can't be asked."""

    least: Sequence[str] | None = None
    least_points: Sequence[str] | None = None
    task_threshold: float | None = None
    junit: Path | None = None

    def __post_init__(self) -> None:
        if self.least or self.least_points:
            _ = self.gates  # which reads the limits, before anything is spent

    @property
    def gates(self) -> Gates:
        from koderz.analysis.gates import Gates, least_of

        return Gates(**least_of(self.least, self.least_points), task_threshold=self.task_threshold)

    def code_of(self, run: Run, arm: str | None = None, code: int = 0) -> int:
        """The exit code of a run by its gates, of which each is about one arm: this, or the last one.

        `code` is the run's own: it stays where no gate shuts, and where the run is one that none can judge.
        """
        if not (self.least or self.least_points or self.task_threshold is not None):
            return code
        from koderz.analysis.gates import caution_on, ruling
        from koderz.analysis.pairs import sides_of

        side = sides_of(run, arm)[-1]
        try:
            ruled = ruling(self.gates, side, None)
        except KoderzError as error:
            if not code:
                raise
            warn(f"no gate has judged: {error}")
            return code
        return told_code(ruled, caution_on(self.gates, side), code)

    def code_after(
        self, sessions: Sequence[SessionResult], code: Callable[[SessionResult], int]
    ) -> int:
        """The highest exit code of sessions, whose tasks are written as JUnit's XML first."""
        from koderz.analysis.runs import of_summary

        runs = [of_summary(each.summary, each.summary_path or each.folder) for each in sessions]
        if self.junit:
            from koderz.analysis.junit import of_run

            save_junit(
                self.junit, (suite for run in runs for suite in of_run(run, self.task_threshold))
            )
        judged = [
            self.code_of(run, code=code(each)) if each.ended.status in _ENDED else code(each)
            for run, each in zip(runs, sessions, strict=True)
        ]
        return max(judged)


def demands_in(flags: dict[str, Any]) -> Demands:
    """Takes the options of gates and of JUnit out of a command's flags."""
    return Demands(**{name: flags.pop(name) for name in (*JUNIT, *LEAST) if name in flags})


def told_code(ruled: Ruling | Compared, caution: str, code: int = 0) -> int:
    """The exit code of gates, which are told on standard error. `code` is that of what they judge."""
    if caution:
        warn(f"warning: {caution}")
    if ruled.shut:
        warn(f"gate failed: {'; '.join(ruled.shut)}")
        return EXIT_GATE
    if ruled.hanging:
        warn(f"gate undecided: {'; '.join(ruled.hanging)}")
    return code or (EXIT_UNDECIDED if ruled.hanging else 0)


def save_junit(path: Path, suites: Iterable[CaseSuite]) -> None:
    """Writes JUnit's XML. Raises StorageError where that fails."""
    from koderz.analysis.junit import write_junit

    with writing(path):
        write_junit(path, suites)
