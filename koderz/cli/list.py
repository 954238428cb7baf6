"""`koderz benchmark list`: the runs of the results folder, a line an arm."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import counted, elapsed, print_json, shortened, sink_title, warn
from koderz.cli.flags import Results
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from pathlib import Path

    from koderz.analysis.blocks import Block
    from koderz.analysis.catalogue import ArmRow, RunRow
    from koderz_tracker.recorded import RewardsSummary

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_MOST_NOTES = 3


_Since = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Only runs begun since: 2026-01-31, 12h, 7d or 2w."),
]
_Sort = Annotated[
    str, typer.Option(metavar="KEY", help="started, rate, cost or time, highest first; or model.")
]


def list_runs(
    model: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only models with this in their name.")
    ] = None,
    mode: Annotated[str | None, typer.Option(metavar="MODE", help="Only this mode.")] = None,
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Only this suite.")] = None,
    since: _Since = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Only runs with this tag; repeatable.")
    ] = None,
    sort: _Sort = "started",
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of runs.", min=1)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list of runs.")] = False,
    rewards: Annotated[
        bool,
        typer.Option(
            "--rewards", help="Also journals of rewards, which koderz judge serve --record writes."
        ),
    ] = False,
    *,
    results: Results,
) -> None:
    """List runs with their success rates, or what else their system is measured by, costs and times, the newest first.

    A run that goes on is shown as running. Simulated runs are marked: their figures say nothing about any real model.

    Examples:
        koderz benchmark list
        koderz benchmark list --suite humaneval --limit 5
    """
    from koderz.analysis.blocks import Table, Text
    from koderz.analysis.catalogue import SORTS, chosen, load_catalogue, ordered
    from koderz.cli.tables import print_blocks
    from koderz_tracker.recorded import reward_folders, summed_up
    from koderz_tracker.sinks.process import at_work, wake

    if sort not in SORTS:
        raise KoderzError(f"--sort: invalid value {sort!r}; choose from {', '.join(SORTS)}")
    moment = _moment(since) if since else None
    wake(results, os.environ)
    is_cut = (
        limit is not None and sort == "started" and not (model or mode or suite or moment or tag)
    )
    found = load_catalogue(results, limit if is_cut else None)
    rows = ordered(
        chosen(found.rows, model=model, mode=mode, suite=suite, since=moment, tags=tag or ()), sort
    )[:limit]
    given = [summed_up(folder) for folder in reversed(reward_folders(results))] if rewards else []
    if json:
        print_json([*rows, *given])
    elif rows:
        print_blocks(
            [
                *_listing(rows),
                *map(Text, [*_under_way(rows, results), *_sinks(rows, at_work(results))]),
            ]
        )
    if given and not json:
        print_blocks([Table(_OF_REWARDS, [*map(_rewards_line, given)], ruled=False)])
    for line in found.unreadable[:_MOST_NOTES]:
        warn(f"note: {line}")
    if len(found.unreadable) > _MOST_NOTES:
        warn(f"note: and {len(found.unreadable) - _MOST_NOTES} more that can't be read")
    if not rows and not given:
        message = (
            f"none of the {len(found.rows)} runs in {results} fits"
            if found.rows
            else f"{results} holds no run yet"
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
        raise KoderzError(
            f"--since {text}: write a date such as 2026-01-31, or a span such as 12h, 7d or 2w"
        ) from None


_HEADS = (
    "RUN",
    "MODEL",
    "SUITE",
    "ARM",
    "RATE",
    "95% INTERVAL",
    "PASSED",
    "COST",
    "TIME",
    "STATUS",
    "TAGS",
)
_OPTIONAL = ("TIME", "TAGS")
_SHORT_HEADS = ("RUN", "SUITE", "MODEL", "RATE", "95% INTERVAL", "PASSED", "COST")
_UNDER_HEADS = ("  STARTED", "STATUS", "  ARM", "", "", "", "")
_SPARED = ("PASSED", "COST")  # short heads that may go
_LEAST, _GAP = (9, 11), 2  # columns of a suite and of a model that are cut; and between two columns


def _listing(rows: Sequence[RunRow]) -> Iterator[Block]:
    """A table of the runs, a line an arm. Where whole ids leave no room for what each line has to say, they are cut."""
    from koderz.analysis.blocks import Table, Text
    from koderz.cli.tables import fits, terminal_width
    from koderz_tracker.records import PASSES

    lines = [line for row in rows for line in _lines(row)]
    rate = "RATE" if all(row.headline.measure == PASSES for row in rows) else "RATE OR AVERAGE"
    heads = [rate if head == "RATE" else head for head in _HEADS]
    if not any(row.tags for row in rows):
        heads, lines = heads[:-1], [line[:-1] for line in lines]
    optional = [head for head in _OPTIONAL if head in heads]
    table = Table(heads, lines, optional, ruled=False)
    width = terminal_width()
    if width is None or fits(table, width):
        yield table
        return
    short = [_UNDER_HEADS, *(line for row in rows for line in _short_lines(row))]
    short_heads, fitting, hidden = _narrowed(short, width)
    # Suites and models are cut to the room that the other columns leave.
    columns = [
        [head, *cells] for head, cells in zip(short_heads, zip(*fitting, strict=True), strict=True)
    ]
    widths = [max(map(len, cells)) for cells in columns]
    room = width - (sum(widths) - widths[1] - widths[2]) - _GAP * (len(widths) - 1)
    suites = max(_LEAST[0], min(widths[1], max(room // 3, room - widths[2])))
    models = max(_LEAST[1], room - suites)
    yield Table(
        short_heads,
        [
            (run, shortened(suite, suites), _ending(model, models), *others)
            for run, suite, model, *others in fitting
        ],
        ruled=False,
    )
    yield from map(Text, _footnotes(rows, hidden))


def _short_lines(row: RunRow) -> Iterator[tuple[str, ...]]:
    """The run by the beginning of its id; below it when it began, its status, and a line for each arm."""
    model = "SIMULATED" if row.simulated else row.model
    yield _short(row.run_id), row.suite, model, "", "", "", ""
    for number, (whole, arm) in enumerate(zip(_lines(row), row.arms, strict=True)):
        _, _, _, name, rate, interval, passed, cost, *_ = whole
        if arm.average is not None:
            rate = rate.removeprefix(f"{arm.average.measure.name} ").removesuffix(
                f" {arm.average.measure.unit}"
            )
        about = ("", "") if number else (f"  {row.started[5:16].replace('T', ' ')}", row.status)
        yield *about, f"  {name}", rate, interval, passed, cost


def _narrowed(
    lines: Sequence[tuple[str, ...]], width: int
) -> tuple[Sequence[str], Sequence[tuple[str, ...]], Sequence[str]]:
    """The heads and lines that fit with suites and models at their shortest, and the heads that had to go."""
    heads = [*_SHORT_HEADS]
    hidden: list[str] = []
    for head in _SPARED:
        columns = zip(*lines, strict=True)
        widths = [max(map(len, (head, *cells))) for head, cells in zip(heads, columns, strict=True)]
        widths[1:3] = [min(each, least) for each, least in zip(widths[1:3], _LEAST, strict=True)]
        if sum(widths) + _GAP * (len(widths) - 1) <= width:
            break
        place = heads.index(head)
        lines = [line[:place] + line[place + 1 :] for line in lines]
        hidden.append(heads.pop(place))
    return heads, lines, hidden


def _short(run_id: str) -> str:
    """The part of a run's id before its time, which names the run as well."""
    found = re.match(r"bench_[0-9a-f]{8}(?=_)", run_id)
    return found[0] if found else run_id


def _ending(text: str, width: int) -> str:
    """The text cut to so many characters: a model's name at its beginning, where its provider is."""
    if len(text) <= width or text.startswith("  "):
        return shortened(text, width)
    return f"…{text[1 - width :]}"


def _footnotes(rows: Sequence[RunRow], hidden: Sequence[str]) -> Iterator[str]:
    """Sentences on what short lines have no room for: whole ids, measures, and more on the status of runs."""
    from koderz_tracker.records import PASSES

    left_out = ["TIME", *(["TAGS"] if any(row.tags for row in rows) else []), *hidden]
    yield "(runs by the beginning of their ids; a pipe shows all columns)"
    yield f"(hidden to fit: {', '.join(left_out)})"
    averages = {row.suite: row.headline.measure for row in rows if row.headline.measure != PASSES}
    if averages:
        yield f"In place of a rate: {', '.join(f'{name} of {suite}' for suite, name in averages.items())}."
    for row in rows:
        status = _status(row)
        if status != row.status:
            yield f"{_short(row.run_id)}: {status}"


def _lines(row: RunRow) -> Iterator[tuple[str, ...]]:
    """One row for each arm; columns about the whole run are filled in the first."""
    model = "SIMULATED" if row.simulated else row.model
    at_least = "" if row.cost_known else "≥"
    for number, arm in enumerate(row.arms):
        first = number == 0
        yield (
            row.run_id if first else "",
            model if first else "",
            row.suite if first else "",
            f"{arm.solver} (SIMULATED)" if arm.simulated and not row.simulated else arm.solver,
            *_summed_up(row, arm),
            "-"
            if row.imported and not (row.cost_known or arm.cost)
            else f"{at_least}${arm.cost:.4f}",
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
        parts = [
            *([row.status] if row.status not in ("decided", "complete") else []),
            row.stopped_early,
        ]
    elif judged + row.faults < row.planned:
        parts.append(f"{judged + row.faults}/{row.planned}")
    if row.faults:
        # Where success sums the run up: the bounds of each arm's rate, its faults all failed and all passed.
        from koderz_tracker.records import PASSES

        of_arms = [
            f"{f'{arm.solver} ' if len(row.arms) > 1 else ''}{arm.bounds[0]:.1f} to {arm.bounds[1]:.1f}%"
            for arm in row.arms
            if arm.bounds
        ]
        with_faults = (
            f", with these {', '.join(of_arms)}"
            if of_arms and row.headline.measure == PASSES
            else ""
        )
        parts.append(f"{counted(row.faults, 'fault')} ({', '.join(row.fault_causes)}){with_faults}")
    if row.damaged_lines:
        parts.append(counted(row.damaged_lines, "damaged line"))
    parts += ["imported"] * row.imported
    return " ".join(parts)


def _under_way(rows: Sequence[RunRow], results: Path) -> Iterator[str]:
    """A line for each run that has batches at its provider."""
    from koderz.cli.progress import batch_lines
    from koderz_tracker.journal import NAME as JOURNAL

    for row in rows:
        if row.status not in ("complete", "decided"):
            for line in (
                batch_lines(results / row.run_id)
                if (results / row.run_id / JOURNAL).is_file()
                else ()
            ):
                yield f"{row.run_id}: {line}"


def _sinks(rows: Sequence[RunRow], now: Mapping[str, Collection[str]]) -> Iterator[str]:
    """A line for each sink that lacks some of these runs. `now` has the sinks being fed, by run."""
    lacking: dict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        for name in row.behind if row.status != "running" else ():
            lacking[name].append(row)
    for name, runs in lacking.items():
        fed = sum(name in now.get(row.run_id, ()) for row in runs)
        title = sink_title(name)
        if fed == len(runs):
            yield f"{counted(fed, 'run')} {'is' if fed == 1 else 'are'} being sent to {title}"
            continue
        some = f", {fed} being sent" if fed else ""
        yield f"{counted(len(runs), 'run')} {'is' if len(runs) == 1 else 'are'} not in {title} yet{some}: koderz sync"
