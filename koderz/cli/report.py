"""`koderz benchmark report`: runs as one self-contained web page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import counted, say, warn
from koderz.cli.flags import Results, named_runs
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.analysis.runs import Run


def report(
    runs: Annotated[
        list[str] | None,
        named_runs(metavar="[RUN…]", help="Which runs. Default: the latest ones."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to.")] = Path("report.html"),
    limit: Annotated[int, typer.Option(metavar="N", help="Without RUN: how many of the latest.", min=1)] = 20,
    allow_simulated: Annotated[
        bool, typer.Option("--allow-simulated", help="Show simulated runs beside real ones.")
    ] = False,
    *,
    results: Results,
) -> None:
    """Write a report: results with intervals, comparison, cost, iterations, difficulty, trend and every story.

    One HTML file without any network: at most 1 MB for 328 experiments, 10 MB for 10,000. Stories that don't fit name
    the command that prints them.

    Examples:
        koderz benchmark report latest -o report.html
    """
    from koderz.analysis.report import write_report
    from koderz.analysis.runs import resolve

    found: Sequence[Run]
    if runs:
        found = resolve(list(dict.fromkeys(runs)), results, allow_simulated=allow_simulated)
    else:
        found = _latest(results, limit, mixed=allow_simulated)
    written = write_report(found, output)
    extent = f"{counted(len(found), 'run')}, {counted(written.experiments, 'experiment')}"
    say(f"{written.path}: {extent}, {written.bytes / 1e6:.1f} MB")
    if written.stories < written.experiments:
        warn(f"note: {written.stories} stories fit; each of the others names the command that prints it")


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
        raise KoderzError(f"{results} holds no run with results yet; make one with: koderz benchmark 0 10")
    return found
