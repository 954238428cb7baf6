"""`koderz benchmark report`: runs as one self-contained web page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import counted, say, warn
from koderz.cli.flags import Faults, Results, named_runs
from koderz.errors import KoderzError
from koderz.settings.options import without_effect

if TYPE_CHECKING:
    from koderz.analysis.runs import Run

_LATEST = 20  # runs of a report that names none
_QUICK = 500  # experiments that a report takes no time for


def report(
    runs: Annotated[
        list[str] | None,
        named_runs(metavar="[RUN…]", help="Which runs. Default: the latest ones."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to.")
    ] = Path("report.html"),
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Without RUN: how many of the latest. Default: 20.", min=1),
    ] = None,
    allow_simulated: Annotated[
        bool, typer.Option("--allow-simulated", help="Show simulated runs beside real ones.")
    ] = False,
    faults: Faults = None,
    *,
    results: Results,
) -> None:
    """Write a report: results with intervals, comparison, cost, iterations, difficulty, trend and every story.

    One HTML file without any network: at most 1 MB for 328 experiments, 10 MB for 10,000. Stories that don't fit name
    the command that prints them.

    Examples:
        koderz benchmark report latest -o report.html
    """
    from koderz.analysis.completion import with_faults_failed
    from koderz.analysis.runs import resolve
    from koderz.systems.reports.page import write_report

    found: Sequence[Run]
    if runs and limit is not None:
        raise without_effect("--limit", "a report that names no run")
    if runs:
        found = resolve(list(dict.fromkeys(runs)), results, allow_simulated=allow_simulated)
    else:
        found = _latest(results, limit or _LATEST, mixed=allow_simulated)
    if faults == "fail":
        found = [*map(with_faults_failed, found)]
    is_long = sum(len(run.results) for run in found) > _QUICK
    written = write_report(
        found, output, progress=partial(_tell_step, output) if is_long else lambda _: None
    )
    extent = f"{counted(len(found), 'run')}, {counted(written.experiments, 'experiment')}"
    say(f"{written.path}: {extent}, {written.bytes / 1e6:.1f} MB")
    if written.stories < written.experiments:
        warn(
            f"note: {written.stories} stories fit; each of the others names the command that prints it"
        )


def _tell_step(output: Path, step: str) -> None:
    warn(f"{output}: {step} …")


def _latest(results: Path, limit: int, *, mixed: bool) -> Sequence[Run]:
    """The newest runs that are of the same kind as the very newest: real or simulated."""
    from koderz.analysis.runs import load_run, run_paths

    found: list[Run] = []
    left_out = 0
    for path in reversed(run_paths(results)):
        try:
            run = load_run(path)
        except KoderzError as error:
            warn(f"note: left out: {error}")
            continue
        newest = found[0] if found else run
        if not run.results or bool(run.generated) != bool(newest.generated):
            continue
        if run.simulated != newest.simulated and not mixed:
            left_out += 1
            continue
        found.append(run)
        if len(found) == limit:
            break
    if left_out:
        kind = "real" if found[0].simulated else "simulated"
        warn(f"note: {left_out} {kind} runs are left out; to mix them in: --allow-simulated")
    if not found:
        raise KoderzError(
            f"{results} holds no run with results yet; make one with: koderz benchmark 0 10"
        )
    return found
