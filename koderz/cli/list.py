"""`koderz benchmark list`: the runs of the results folder, a line an arm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import counted, elapsed, print_json, warn
from koderz.cli.flags import Results
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.analysis.rows import ArmRow, RunRow

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_MOST_NOTES = 3


def list_runs(
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Only models with this in their name.")] = None,
    mode: Annotated[str | None, typer.Option(metavar="MODE", help="Only this mode.")] = None,
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Only this suite.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only runs begun since: 2026-01-31, 12h, 7d or 2w.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Only runs with this tag; repeatable.")] = None,
    sort: Annotated[
        str, typer.Option(metavar="KEY", help="started, rate, cost or time, highest first; or model.")
    ] = "started",
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of runs.", min=1)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list of runs.")] = False,
    *,
    results: Results,
) -> None:
    """List runs with their success rates, or what else their system is measured by, costs and times, the newest first.

    A run that goes on is shown as running. Simulated runs are marked: their figures say nothing about any real model.
    """
    from koderz.analysis.blocks import Table
    from koderz.analysis.catalogue import SORTS, chosen, load_catalogue, ordered
    from koderz.cli.tables import print_blocks
    from tracker.records import PASSES
    from tracker.sinks.process import at_work, wake

    if sort not in SORTS:
        raise KoderzError(f"--sort: invalid value {sort!r}; choose from {', '.join(SORTS)}")
    moment = _moment(since) if since else None
    wake(results, os.environ)
    found = load_catalogue(results)
    rows = ordered(chosen(found.rows, model=model, mode=mode, suite=suite, since=moment, tags=tag or ()), sort)[:limit]
    if json:
        print_json(rows)
    elif rows:
        optional = _OPTIONAL if any(row.cost for row in rows) else ("COST", *_OPTIONAL)
        now = at_work(results)
        lines = [line for row in rows for line in _lines(row, now.get(row.run_id, ()))]
        rate = "RATE" if all(row.headline.measure == PASSES for row in rows) else "RATE OR AVERAGE"
        heads = ["RUN", "MODEL", "SUITE", "ARM", rate, "95% INTERVAL", "PASSED", "COST", "TIME", "STATUS"]
        print_blocks([Table(heads, lines, optional, ruled=False)])
    for line in found.unreadable[:_MOST_NOTES]:
        warn(f"note: {line}")
    if len(found.unreadable) > _MOST_NOTES:
        warn(f"note: and {len(found.unreadable) - _MOST_NOTES} more that can't be read")
    if not rows:
        said = f"none of the {len(found.rows)} runs in {results} fits" if found.rows else f"{results} holds no run yet"
        warn(said if found.rows else f"{said}; make one with: koderz benchmark 0 10")


def _moment(text: str) -> str:
    """The time that a user means, as summaries write it."""
    if matched := re.fullmatch(r"(\d{1,5})([hdw])", text):
        return (datetime.now() - timedelta(**{_UNITS[matched[2]]: int(matched[1])})).isoformat()
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None).isoformat()
    except ValueError:
        raise KoderzError(f"--since {text}: write a date such as 2026-01-31, or a span such as 12h, 7d or 2w") from None


_OPTIONAL = ("SUITE", "TIME", "PASSED", "95% INTERVAL", "COST")


def _lines(row: RunRow, now: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A line an arm; what belongs to the whole run stands in the first. `now`: the sinks that are being fed."""
    for number, arm in enumerate(row.arms):
        first = number == 0
        yield (
            row.run_id if first else "",
            ("SIMULATED" if row.simulated else row.model) if first else "",
            row.suite if first else "",
            f"{arm.solver} (SIMULATED)" if arm.simulated and not row.simulated else arm.solver,
            *_summed_up(row, arm),
            f"{'' if row.cost_known else '≥'}${arm.cost:.4f}",
            elapsed(row.seconds) if first else "",
            _status(row, now) if first else "",
        )


def _summed_up(row: RunRow, arm: ArmRow) -> tuple[str, str, str]:
    """What an arm came to by the headline of its run, its interval, and how many experiments passed."""
    from msgspec.structs import replace

    from koderz.analysis.measures import shown, summed_up
    from tracker.records import PASSES

    passed = f"{arm.passed}/{arm.judged}"
    if row.headline.measure == PASSES:
        interval = f"{arm.interval[0]:.1f} to {arm.interval[1]:.1f}" if arm.interval else "-"
        return "-" if arm.rate is None else f"{arm.rate:.1f}%", interval, passed
    found = arm.average
    if found is None:
        return "-", "-", "-"
    limits = [shown(limit, replace(found.measure, unit="")) for limit in found.interval or ()]
    told = passed if row.headline.passed else "-"
    return summed_up(found.mean, found.measure), " to ".join(limits) or "-", told


def _status(row: RunRow, now: Sequence[str]) -> str:
    judged = sum(arm.judged for arm in row.arms)
    parts = [row.status]
    if judged + row.faults < row.planned:
        parts.append(f"{judged + row.faults}/{row.planned}")
    if row.faults:
        parts.append(counted(row.faults, "fault"))
    if row.damaged_lines:
        parts.append(counted(row.damaged_lines, "damaged line"))
    if row.behind and row.status != "running":
        states = {name: "" if name in now else f"{row.sinks[name]} at " for name in row.behind}
        parts.append(f"({', '.join(f'{name} {state}{row.progress[name]}%' for name, state in states.items())})")
    parts += ["imported"] * row.imported + [f"#{tag}" for tag in row.tags]
    return " ".join(parts)
