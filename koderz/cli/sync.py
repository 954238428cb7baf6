"""The sinks of runs brought up to date: `koderz sync`, and the wait for them after a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import is_live, print_json, say, sink_title, warn
from koderz.cli.flags import Quiet, SummaryJson, Trust, named_runs
from koderz.cli.options import with_settings
from koderz.errors import KoderzError
from koderz.runs.sinks import (
    QUICK,
    Choice,
    Synced,
    choose_work,
    leave_runs,
    left_behind,
    left_out,
    sync_runs,
)
from koderz.settings.schema import OF_SINKS
from koderz.streams import plain
from koderz_tracker.sinks import JSON
from koderz_tracker.sinks.process import Status, Watch

if TYPE_CHECKING:
    from koderz.runs.session import SessionResult
    from koderz.settings.schema import Settings

EXIT_BEHIND = 3
_SHOWN_AFTER, _SAID_AFTER = 0.5, 1.0  # seconds: what is quicker needs no bar, or no line
# seconds after which the prompt comes back, even if the memory store lacks something
_PROMPT = 15.0


@with_settings("results", *OF_SINKS)
def sync(
    given: dict[str, Any],
    runs: Annotated[
        list[str] | None,
        named_runs(metavar="[RUN]...", help="Which runs. Default: all that lack something."),
    ] = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="All runs that lack something, which is the default.")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="From the beginning; without RUN, what a sink holds is made anew first.",
        ),
    ] = False,
    json: SummaryJson = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Bring the sinks of runs up to date: MLflow, the memory store, the summary file.

    What a sink has is left as it is, so it does no harm to repeat this. A sink that was turned off for a run
    stays off unless --sink names it. Exit code 3 if a sink stays behind.

    Examples:
        koderz sync
        koderz sync latest --sink mlflow
    """
    from koderz.engines.sources import read_sources

    if all_runs and runs:
        raise KoderzError("name runs, or say --all")
    settings = read_sources(given, names=("results", *OF_SINKS), trust_config=trust_config).settings
    refused = given.get("no_sinks", ())
    refused = (*refused, *left_out(settings.chosen_sinks, warn, named="sinks" in given))
    choice = Choice(
        settings, runs=runs or (), named="sinks" in given, refused=refused, rebuild=rebuild
    )
    found = []
    for synced in sync_runs(
        choose_work(choice), choice, lambda run: showing(quiet=quiet, title=lambda: run)
    ):
        found.append(synced)
        if not json:
            say(
                f"{synced.run_id}  {synced.sink:<8} {synced.state}{f': {synced.reason}' if synced.reason else ''}"
            )
    settle_claims(settings.results, [synced.run_id for synced in found if synced.sink == "memory"])
    if json:
        print_json(found)
    elif not found:
        warn("nothing to do: every sink that is on has all of the runs")
    raise typer.Exit(EXIT_BEHIND if any(synced.state == "behind" for synced in found) else 0)


def catch_up_session(session: SessionResult, *, quiet: bool, wait: bool) -> None:
    """Waits for the memory store after a session, or with `wait` for all its sinks; the rest goes on alone.

    With `wait` there is progress. A sink that stays behind is a warning. Ctrl-C leaves the rest to `koderz sync`: the
    run itself is done, so that is no failure.
    """
    sinks, run = session.sinks, session.folder.name
    if sinks is None:
        return
    try:
        if wait:
            with showing(quiet=quiet) as watch:
                behind = sinks.wait(watch)
        else:
            behind = sinks.wait_for(QUICK, _PROMPT)
    except KeyboardInterrupt:
        warn(
            f"the run is complete, but not all sinks have it; bring them up to date with: koderz sync {run}"
        )
        return
    for name, reason in behind.items():
        warn(f"warning: {left_behind(name, reason, run)}")
    for name, note in sinks.notes().items():
        warn(f"note: {sink_title(name)} has this run {note}")
    if wait and not behind and not quiet:
        warn(
            f"sinks: {', '.join([JSON] * (session.summary_path is not None) + [*sinks.sinks])} up to date"
        )
    if not wait and sinks.leave() and not quiet:
        warn(
            f"the sinks catch up in the background; see how far they are with: koderz benchmark show {run}"
        )
    settle_claims(
        session.folder.parent, [run], session.summary.decision if "memory" in sinks.sinks else None
    )


def settle_claims(
    results: Path,
    runs: Sequence[str] | None,
    decision: Mapping[str, Any] | None = None,
    findings: Sequence[str] | None = None,
) -> None:
    """Checks the claims on runs that the memory store has taken in, or all, and says which stand otherwise now.

    The final `decision` of a run between two arms becomes a claim. `findings`: what `koderz verify` found wrong with
    a run.
    """
    from koderz_tracker.memory import store_path
    from koderz_tracker.memory.claims import has_claims

    try:
        path = store_path(results)
        if not (path.exists() and runs != [] and (decision or has_claims(path, runs))):
            return
    except KoderzError as error:  # the run is done, and the store can be mended
        warn(f"warning: claims on {', '.join(runs or ['the runs'])} are not checked: {error}")
        return
    from koderz.analysis.claims import lines_after

    for line in lines_after(path, runs, decision, findings):
        warn(line)


def catch_up_runs(folders: Sequence[Path], settings: Settings, *, quiet: bool, wait: bool) -> None:
    """Brings the sinks of finished runs up to date, as `catch_up_session` does for one run.

    A sink that stays behind is one warning, and isn't waited for again.
    """
    choice = Choice(settings, runs=[str(folder) for folder in folders], patient=True)
    work = choose_work(choice) if folders else []
    try:
        if wait:
            with _counting(len(work), quiet=quiet) as showing_next:
                behind = [
                    synced
                    for synced in sync_runs(work, choice, showing_next)
                    if synced.state == "behind"
                ]
        else:
            # The slow work is left to the background; only quick sinks can be known to stay behind.
            until = time.monotonic() + _PROMPT
            submissions = leave_runs(work, choice)
            behind = [
                Synced(each.run, name, "behind", reason)
                for each in submissions
                for name, reason in each.wait_for(QUICK, until - time.monotonic()).items()
            ]
            if any(each.leave() for each in submissions) and not quiet:
                warn(
                    "the sinks catch up in the background; see how far they are with: koderz benchmark list"
                )
    except KeyboardInterrupt:
        warn(
            "the runs are here, but not all sinks have them; bring them up to date with: koderz sync"
        )
        return
    settle_claims(settings.results, [folder.name for folder in folders])
    for name in dict.fromkeys(synced.sink for synced in behind):
        lacking = [synced for synced in behind if synced.sink == name]
        warn(
            f"warning: {left_behind(name, lacking[0].reason, *(synced.run_id for synced in lacking))}"
        )


@contextmanager
def _counting(
    total: int, *, quiet: bool
) -> Iterator[Callable[[str], AbstractContextManager[Watch]]]:
    """One progress display for all runs, which shows the current one."""
    at = 0

    def title() -> str:
        return f"results of run {at} of {total}" if total > 1 else "results"

    with showing(quiet=quiet, title=title) as watch:

        def showing_next(_: str) -> AbstractContextManager[Watch]:
            nonlocal at
            at += 1
            return nullcontext(watch)

        yield showing_next


@contextmanager
def showing(*, quiet: bool, title: Callable[[], str] = lambda: "results") -> Iterator[Watch]:
    """A display of the sinks' progress, to be called with their statuses: bars, or a line at a change."""
    if quiet:
        yield lambda _: None
    elif is_live():
        with _bars(title) as watch:
            yield watch
    else:
        yield _Lines(title)


class _Lines:
    """Prints a line for each sink that takes more than a second when its results are sent, when that fails and when
    it is done; none for how far it is.
    """

    def __init__(self, title: Callable[[], str]) -> None:
        self._title = title
        self._begun = time.monotonic()
        self._said: dict[str, str] = {}  # by sink and title

    def __call__(self, statuses: Mapping[str, Status]) -> None:
        waited = time.monotonic() - self._begun
        if waited < _SAID_AFTER:
            return
        starting = f" (starting, {waited:.0f} s)"
        for name, status in statuses.items():
            sending = f"Sending {self._title()} to {sink_title(name)}"
            words = "done" if status.state == "done" else plain(status.reason)
            if words == self._said.get(sending) or (words == "done" and sending not in self._said):
                continue
            self._said[sending] = words
            if words:
                warn(f"{sending}: {words}")
            else:
                warn(sending if status.records else sending + starting)


@contextmanager
def _bars(title: Callable[[], str]) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24))
    bars = Progress(
        *columns, TextColumn("{task.fields[words]}", markup=False), console=Console(stderr=True)
    )
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
            bars.update(
                task,
                description=f"{title()} to {sink_title(name)}",
                total=total,
                completed=status.records,
                words=words,
            )

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
