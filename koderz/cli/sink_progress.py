"""Shows how the sinks catch up with a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.cli.console import LINE_EVERY, is_live, warn
from koderz.runs.sinks import Choice, Synced, choose_work, leave_runs, left_behind, sync_runs
from tracker.sinks.process import Status, Watch
from tracker.terminals import plain

if TYPE_CHECKING:
    from koderz.runs.session import Session
    from koderz.settings.schema import Settings

_SHOWN_AFTER, _SAID_AFTER = 0.5, 1.0  # seconds: what is quicker needs no bar, or no line


def catch_up_session(session: Session, *, quiet: bool, wait: bool) -> None:
    """In a terminal leaves the sinks of a session that is over to the background; elsewhere, or with `wait`, waits.

    Then there is progress, and a sink that stays behind is a warning. Ctrl-C leaves the rest to `koderz sync`: the
    run itself is done, so that is no failure.
    """
    sinks, run = session.sinks, session.folder.name
    if sinks is None:
        return
    if sys.stdout.isatty() and not wait:
        if sinks.leave() and not quiet:
            warn(f"the sinks catch up in the background; see how far they are with: koderz benchmark show {run}")
        return
    try:
        with showing(quiet=quiet) as watch:
            behind = sinks.wait(watch)
    except KeyboardInterrupt:
        warn(f"the run is complete, but not all sinks have it; bring them up to date with: koderz sync {run}")
        return
    for name, reason in behind.items():
        warn(f"warning: {left_behind(name, reason, run)}")


def catch_up_runs(folders: Sequence[Path], settings: Settings, *, quiet: bool, wait: bool) -> None:
    """Brings their sinks level with runs that are over, one run after the other, as `catch_up_session` does for one.

    A sink that stays behind is one warning, and isn't waited for again.
    """
    choice = Choice(settings, runs=[str(folder) for folder in folders], patient=True)
    work = choose_work(choice) if folders else []
    if sys.stdout.isatty() and not wait:
        leave_runs(work, choice)
        if work and not quiet:
            warn("the sinks catch up in the background; see how far they are with: koderz benchmark list")
        return
    behind: dict[str, list[Synced]] = {}
    try:
        with _counting(len(work), quiet=quiet) as showing_next:
            for synced in sync_runs(work, choice, showing_next):
                if synced.state == "behind":
                    behind.setdefault(synced.sink, []).append(synced)
    except KeyboardInterrupt:
        warn("the runs are here, but not all sinks have them; bring them up to date with: koderz sync")
        return
    for name, lacking in behind.items():
        runs = [synced.run_id for synced in lacking]
        warn(f"warning: {left_behind(name, lacking[0].reason, *runs)}")


@contextmanager
def _counting(total: int, *, quiet: bool) -> Iterator[Callable[[str], AbstractContextManager[Watch]]]:
    """One progress for all runs, which says at which of them it is."""
    at = 0

    def title() -> str:
        return f"sinks of run {at} of {total}" if total > 1 else "sinks"

    with showing(quiet=quiet, title=title) as watch:

        def showing_next(_: str) -> AbstractContextManager[Watch]:
            nonlocal at
            at += 1
            return nullcontext(watch)

        yield showing_next


@contextmanager
def showing(*, quiet: bool, title: Callable[[], str] = lambda: "sinks") -> Iterator[Watch]:
    """What draws progress when it is given the sinks' statuses: bars, or a line now and then."""
    if quiet:
        yield lambda _: None
    elif is_live():
        with _bars(title) as watch:
            yield watch
    else:
        yield _Lines(title)


class _Lines:
    """A plain line after a second, and every few seconds."""

    def __init__(self, title: Callable[[], str]) -> None:
        self._title = title
        self._next = time.monotonic() + _SAID_AFTER

    def __call__(self, statuses: Mapping[str, Status]) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_EVERY
        told = (f"{name} {_words(status)}" for name, status in statuses.items())
        warn(f"{self._title()}: {' · '.join(told)}")


@contextmanager
def _bars(title: Callable[[], str]) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24))
    bars = Progress(*columns, TextColumn("{task.fields[words]}", markup=False), console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}
    begin_at = time.monotonic() + _SHOWN_AFTER

    def watch(statuses: Mapping[str, Status]) -> None:
        if not tasks and time.monotonic() < begin_at:
            return
        bars.start()
        for name, status in statuses.items():
            if name not in tasks:
                tasks[name] = bars.add_task("", words="")
            task, total, words = tasks[name], status.total or None, _words(status)
            bars.update(task, description=f"{title()}: {name}", total=total, completed=status.records, words=words)

    try:
        yield watch
    finally:
        if tasks:
            bars.stop()


def _words(status: Status) -> str:
    if status.state == "done":
        return "up to date"
    if status.reason:
        return plain(f"{status.state}: {status.reason}")
    return f"{status.records}/{status.total}" if status.total else "starting"
