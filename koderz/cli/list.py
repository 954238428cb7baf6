"""`koderz benchmark list`: the runs of the results folder, a line an arm."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import counted, elapsed, print_json, warn
from koderz.cli.flags import Results
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.analysis.rows import ArmRow, RunRow
    from koderz_tracker.rewards import RewardsSummary

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
    rewards: Annotated[
        bool, typer.Option("--rewards", help="Also journals of rewards, which koderz judge serve --record writes.")
    ] = False,
    *,
    results: Results,
) -> None:
    """List runs with their success rates, or what else their system is measured by, costs and times, the newest first.

    A run that goes on is shown as running. Simulated runs are marked: their figures say nothing about any real model.
    """
    from koderz.analysis.blocks import Table, Text
    from koderz.analysis.catalogue import SORTS, chosen, load_catalogue, ordered
    from koderz.cli.tables import print_blocks
    from koderz_tracker.records import PASSES
    from koderz_tracker.rewards import reward_folders, summed_up
    from koderz_tracker.sinks.process import at_work, wake

    if sort not in SORTS:
        raise KoderzError(f"--sort: invalid value {sort!r}; choose from {', '.join(SORTS)}")
    moment = _moment(since) if since else None
    wake(results, os.environ)
    found = load_catalogue(results)
    rows = ordered(chosen(found.rows, model=model, mode=mode, suite=suite, since=moment, tags=tag or ()), sort)[:limit]
    given = [summed_up(folder) for folder in reversed(reward_folders(results))] if rewards else []
    if json:
        print_json([*rows, *given])
    elif rows:
        lines = [line for row in rows for line in _lines(row)]
        rate = "RATE" if all(row.headline.measure == PASSES for row in rows) else "RATE OR AVERAGE"
        heads = ["RUN", "MODEL", "SUITE", "ARM", rate, "95% INTERVAL", "PASSED", "COST", "TIME", "STATUS", "TAGS"]
        if not any(row.tags for row in rows):
            heads, lines = heads[:-1], [line[:-1] for line in lines]
        optional = [head for head in _OPTIONAL if head in heads]
        under = dict.fromkeys((head for head in _UNDER if head in heads), "RUN")
        table = Table(heads, lines, optional, ruled=False, under=under)
        print_blocks([table, *map(Text, _sinks(rows, at_work(results)))])
    if given and not json:
        print_blocks([Table(_OF_REWARDS, [*map(_rewards_line, given)], ruled=False)])
    for line in found.unreadable[:_MOST_NOTES]:
        warn(f"note: {line}")
    if len(found.unreadable) > _MOST_NOTES:
        warn(f"note: and {len(found.unreadable) - _MOST_NOTES} more that can't be read")
    if not rows and not given:
        message = (
            f"none of the {len(found.rows)} runs in {results} fits" if found.rows else f"{results} holds no run yet"
        )
        warn(message if found.rows else f"{message}; make one with: koderz benchmark 0 10")


_OF_REWARDS = ["REWARDS", "SUITES", "SCORED", "MEAN", "FAULTS", "TAMPERED"]


def _rewards_line(of: RewardsSummary) -> tuple[str, ...]:
    mean, rate = (
        "-" if share is None else f"{share:{form}}"
        for share, form in ((of.mean_reward, ".3f"), (of.tamper_rate, ".1%"))
    )
    return of.run_id, ", ".join(of.suites), f"{of.scored:,}", mean, f"{of.faults:,}", rate


def _moment(text: str) -> str:
    """The time that a user gave, in the form of summaries."""
    if matched := re.fullmatch(r"(\d{1,5})([hdw])", text):
        return (datetime.now() - timedelta(**{_UNITS[matched[2]]: int(matched[1])})).isoformat()
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None).isoformat()
    except ValueError:
        raise KoderzError(f"--since {text}: write a date such as 2026-01-31, or a span such as 12h, 7d or 2w") from None


_OPTIONAL = ("TIME", "TAGS", "SUITE", "MODEL", "95% INTERVAL", "COST", "PASSED")
_UNDER = ("TAGS", "SUITE", "MODEL")


def _lines(row: RunRow) -> Iterator[tuple[str, ...]]:
    """One row for each arm; columns about the whole run are filled in the first."""
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
            _status(row) if first else "",
            (" ".join(f"#{tag}" for tag in row.tags) or "-") if first else "",
        )


def _summed_up(row: RunRow, arm: ArmRow) -> tuple[str, str, str]:
    """An arm's figure by the headline of its run, its interval, and the number of experiments that passed."""
    from msgspec.structs import replace

    from koderz.analysis.measures import shown, summed_up
    from koderz_tracker.records import PASSES

    passed = f"{arm.passed}/{arm.judged}"
    if row.headline.measure == PASSES:
        interval = f"{arm.interval[0]:.1f} to {arm.interval[1]:.1f}" if arm.interval else "-"
        return "-" if arm.rate is None else f"{arm.rate:.1f}%", interval, passed
    found = arm.average
    if found is None:
        return "-", "-", "-"
    limits = [shown(limit, replace(found.measure, unit="")) for limit in found.interval or ()]
    rate = passed if row.headline.passed else "-"
    return summed_up(found.mean, found.measure), " to ".join(limits) or "-", rate


def _status(row: RunRow) -> str:
    judged = sum(arm.judged for arm in row.arms)
    parts = [row.status]
    if row.stopped_early:
        parts = [*([row.status] if row.status not in ("decided", "complete") else []), row.stopped_early]
    elif judged + row.faults < row.planned:
        parts.append(f"{judged + row.faults}/{row.planned}")
    if row.faults:
        parts.append(f"{counted(row.faults, 'fault')} ({', '.join(row.fault_causes)})")
    if row.damaged_lines:
        parts.append(counted(row.damaged_lines, "damaged line"))
    parts += ["imported"] * row.imported
    return " ".join(parts)


def _sinks(rows: Sequence[RunRow], now: Mapping[str, Collection[str]]) -> Iterator[str]:
    """A line on the sinks that lack some of these runs. `now` has the sinks being fed, by run."""
    found: dict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        for name in row.behind if row.status != "running" else ():
            state = "being fed" if name in now.get(row.run_id, ()) else row.sinks[name]
            found[f"{name} is {state}"].append(row)
    if found:
        lines = (f"{state} for {_which(state.partition(' ')[0], lacking)}" for state, lacking in found.items())
        yield f"Sinks: {'; '.join(lines)}. They catch up with: koderz sync"


def _which(sink: str, rows: Sequence[RunRow]) -> str:
    """The run, or the number of runs, with the share that a sink has."""
    shares = sorted({row.progress.get(sink, 0) for row in rows})
    span = f"{shares[0]}%" if len(shares) == 1 else f"{shares[0]} to {shares[-1]}%"
    return f"{rows[0].run_id if len(rows) == 1 else counted(len(rows), 'run')} (at {span})"
