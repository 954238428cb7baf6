"""The content of the page as plain values: arms side by side, a row an experiment, and stories packed into chunks."""

from __future__ import annotations

import base64
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from msgspec.structs import replace

from koderz.analysis.measures import SUCCESS, declared, shown
from koderz.analysis.pairs import Side, sides_of
from koderz.analysis.runs import Run
from koderz.analysis.story import (
    Experiments,
    Story,
    StoryStep,
    shortened,
    thought_of,
    told_asked,
    told_frames,
    told_grades,
    told_reply,
    told_servers,
    told_tool,
)
from koderz.errors import JournalError
from koderz.types import NOBODY
from koderz_tracker.breakdown import Mean
from koderz_tracker.records import Fault, Measure
from koderz_tracker.results import Result


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Side):
    """One arm of one run, with a title that tells it from all others."""

    title: str
    colour: int  # 1 to 8, one an arm as far as that goes

    def solved_by(self, attempt: int) -> float:
        """The per cent of the experiments passed within so many attempts."""
        solved = sum(result.success and result.iterations <= attempt for result in self.results)
        return 100 * solved / len(self.results)

    @property
    def is_complete(self) -> bool:
        """Whether every experiment of the run was judged."""
        return self.run.status == "complete"

    @property
    def mark(self) -> str:
        """A note that the run is not complete; empty if it is."""
        run = self.run
        if run.is_decided and run.early:
            asked = run.asked_of(self.arm)
            return f"{run.early}{asked and f'; averages are {asked}'}"
        return (
            "" if self.is_complete else f"{run.status}, {len(run.results)} of {run.planned} judged"
        )

    @property
    def name(self) -> str:
        """The entry's model and arm."""
        return _name(self)

    @property
    def heading(self) -> str:
        """The entry's model, or its arm if that asks none."""
        return self.arm if self.model == NOBODY else self.model

    @property
    def begun(self) -> str:
        """The day and minute at which the run began."""
        return self.run.start_time[:16].replace("T", " ")

    @property
    def interval(self) -> str:
        """The 95 % interval in per cent, with the number of clusters, or the reason for having none."""
        found, clusters = self.figures.success_rate_interval, self.figures.clusters
        if found is None:
            return self.figures.success_rate_interval_method or "–"
        return f"{found[0]:.1f} to {found[1]:.1f}" + (
            f", in {clusters} clusters" if clusters else ""
        )

    @property
    def bounds(self) -> str:
        """The bounds of the success rate in per cent, its faults all failed and all passed; empty without faults."""
        found = self.figures.success_rate_bounds
        return "{:.1f} to {:.1f}".format(*found) if found and self.measure is SUCCESS else ""

    @property
    def passed(self) -> str:
        """The word for experiments that pass; empty if they neither pass nor fail."""
        return self.run.headline.passed if self.is_summed_up else ""

    @property
    def value(self) -> tuple[str, str]:
        """The figure that stands for the entry, and its unit."""
        if self.measure is SUCCESS:
            return f"{self.figures.rate:.1f}", "%"
        found = self.average
        number, _, unit = shown(found.mean, self.measure).partition(" ") if found else ("–", "", "")
        return number, f" {unit}" if unit and unit != "share" else ""

    @property
    def about_value(self) -> str:
        """A description of that figure, with its interval and the share of unread answers."""
        unread = f"; {self.figures.unread.text}" if self.figures.unread else ""
        if self.measure is SUCCESS:
            bounds = f"; {self.figures.bounds_text}" if self.figures.bounds_text else ""
            return f"{self.figures.interval_text}{bounds}{unread}"
        how = {"arithmetic": "mean", "geometric": "geometric mean"}.get(
            self.measure.averaged, self.measure.averaged
        )
        interval = f"; 95% interval {self.limits}" if self.average and self.average.interval else ""
        return f"{self.measure.name}, {how}{interval}{unread}"

    @property
    def limits(self) -> str:
        """The 95 % interval of that figure, without its unit; for success in per cent."""
        if self.measure is SUCCESS:
            return self.interval
        bare = replace(self.measure, unit="")
        return (
            " to ".join(
                shown(limit, bare) for limit in (self.average and self.average.interval) or ()
            )
            or "–"
        )

    @property
    def rank(self) -> tuple[str, float]:
        """A sort key: arms of one measure together, the best first, those without a value last."""
        if self.measure is SUCCESS:
            return "", -self.figures.rate
        sign = -1 if self.measure.direction == "higher" else 1
        return self.measure.name, sign * self.average.mean if self.average else math.inf

    @property
    def cost_a_pass(self) -> str:
        each = self.figures.cost_per_success
        return "–" if each is None else f"${each:.4f}"

    @property
    def attempts(self) -> int:
        """The largest number of attempts in an experiment."""
        return max((result.iterations for result in self.results), default=0)


@dataclass(slots=True)
class Row:
    """One experiment; `chunk` and `place` say where its story lies in the page, once it is packed."""

    entry: int
    result: Result  # of a fault: the verdict "fault", caused by its reason
    chunk: int | None = None
    place: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The content of the page except for the stories."""

    runs: Sequence[Run]
    entries: Sequence[Entry]
    rows: Sequence[Row] = field(repr=False)

    @classmethod
    def of(cls, runs: Sequence[Run]) -> View:
        """The view of these runs. Arms without judged experiments are left out of the charts, not of the table."""
        sides = [
            side for run in sorted(runs, key=lambda run: run.start_time) for side in sides_of(run)
        ]
        colours: dict[tuple[str, str], int] = {}
        entries = [
            Entry(
                side.run,
                side.arm,
                title,
                colours.setdefault((side.model, side.arm), len(colours) % COLOURS + 1),
            )
            for side, title in zip(sides, _titles(sides), strict=True)
        ]
        rows = [
            Row(number, result)
            for number, entry in enumerate(entries)
            for result in (*entry.results, *map(_unjudged, entry.run.faulted(entry.arm)))
        ]
        return cls(runs, entries, rows)

    @property
    def judged(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.results]

    @property
    def priced(self) -> bool:
        """Whether anything in the view cost money."""
        return any(row.result.cost for row in self.rows)

    @property
    def simulated(self) -> bool:
        return any(run.simulated for run in self.runs)


def headline(entries: Sequence[Entry]) -> list[Entry]:
    """The newest complete entry of each model, arm and suite; if none is complete, the newest."""
    found = by_series(sorted(entries, key=lambda entry: entry.is_complete))
    newest = {series[-1] for series in found}
    return [entry for entry in entries if entry in newest]


def series_of(entry: Entry) -> tuple[str, str, str]:
    """The key of a series: model, arm and suite."""
    return entry.model, entry.arm, entry.run.suite


def shown_in(panel: str, entries: Iterable[Entry]) -> list[Entry]:
    """The entries whose system shows a panel of the page."""
    every = ((entry, entry.run.headline.panels) for entry in entries)
    return [entry for entry, panels in every if panels is None or panel in panels]


def by_series(entries: Iterable[Entry]) -> list[list[Entry]]:
    """The entries of each series."""
    found: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault(series_of(entry), []).append(entry)
    return list(found.values())


def by_tasks(entries: Iterable[Entry]) -> list[list[Entry]]:
    """The entries judged on the same tasks of one version of a dataset; only their figures may be joined."""
    found: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        digest = entry.run.environment.get("dataset_digest")
        found.setdefault((entry.run.suite, digest, frozenset(entry.by_task())), []).append(entry)
    return list(found.values())


def average(found: Mean, measure: Measure) -> str:
    """A mean as text on the page, with its interval."""
    limits = [shown(limit, measure) for limit in found.interval or ()]
    return shown(found.mean, measure) + (f" ({' to '.join(limits)})" if limits else "")


def measured(entries: Sequence[Entry]) -> dict[str, Measure]:
    """The measures besides success of which these arms have averages."""
    known = declared([entry.run for entry in entries])
    return {
        name: known[name]
        for name in known
        if any(name in entry.figures.measures for entry in entries)
    }


COLOURS = 8


def _titles(sides: Sequence[Side]) -> list[str]:
    """For each side the shortest name that is unique: model and arm, then day, minute, id."""
    stages = [
        [_name(side) for side in sides],
        [f"{_name(side)} · {side.run.start_time[:10]}" for side in sides],
        [f"{_name(side)} · {side.run.start_time[:16].replace('T', ' ')}" for side in sides],
    ]
    counts = [Counter(names) for names in stages]
    return [
        next(
            (names[i] for names, count in zip(stages, counts, strict=True) if count[names[i]] == 1),
            None,
        )
        or f"{stages[-1][i]} · {side.run.name[6:14]}"
        for i, side in enumerate(sides)
    ]


def _name(side: Side) -> str:
    """The side's name, with its status if its run isn't complete."""
    status = side.run.status
    return f"{named(side)}{'' if status == 'complete' else f' ({status})'}"


def named(side: Side) -> str:
    """The model and the arm; the arm alone if it names its model or asks none."""
    return (
        side.arm if side.model == NOBODY or side.model in side.arm else f"{side.model} · {side.arm}"
    )


def _unjudged(fault: Mapping[str, Any]) -> Result:
    return Result(
        experiment_id=str(fault.get("experiment_id", "")),
        problem_id=str(fault.get("problem_id", "")),
        success=False,
        iterations=0,
        cost=float(fault.get("cost", 0.0)),
        sample=int(fault.get("sample", 0)),
        verdict="fault",
        cause=str(fault.get("reason", "")),
        tokens=0,
    )


_SMALL, _LARGE = 1_000_000, 10_000_000  # bytes of a page on 328 experiments, and on 10,000
_CHUNK = 24  # stories that are compressed together: the prompts of one task are much alike
_ASKERS = {"user": "Asked", "system": "System prompt"}
_MARKUP = 80  # bytes of the element around a chunk, and of two more numbers in each of its rows
_TEXT_CHARS = 6000  # of one text; what is beyond is cut out of its middle

Block = tuple[str, str, str]
"""The kind of a block (said, code, diff, verdict-…), its heading and its text."""


def budget_of(experiments: int) -> int:
    """The number of bytes that the page may have."""
    share = min(max((experiments - 328) / (10_000 - 328), 0.0), 1.0)
    return int(_SMALL + share * (_LARGE - _SMALL))


def pack_stories(view: View, budget: int, flipped: Collection[tuple[int, str]] = ()) -> list[str]:
    """Packs stories into chunks in base64, at most `budget` characters, and notes the place of each in its row.

    `flipped`, numbers of entries with tasks, go first, then what was not passed, and tasks stay together. A run
    without a journal has no stories.
    """
    # One reader for each run, by the numbers of its entries.
    by_run: dict[str, _StoryReader] = {}
    readers = {}
    for number, entry in enumerate(view.entries):
        folder = entry.run.folder
        if folder is None:
            continue
        if entry.run.name not in by_run:
            try:
                by_run[entry.run.name] = _StoryReader(Experiments(folder))
            except JournalError:  # the summary is whole all the same
                continue
        readers[number] = by_run[entry.run.name]
    wanted = [row for row in view.rows if row.entry in readers]
    wanted.sort(key=lambda row: _urgency(row, flipped))
    chunks: list[str] = []
    for first in range(0, len(wanted), _CHUNK):
        rows = wanted[first : first + _CHUNK]
        chunk = packed_json([readers[row.entry].blocks(row) for row in rows])
        budget -= len(chunk) + _MARKUP
        if budget < 0:
            break
        for place, row in enumerate(rows):
            row.chunk, row.place = len(chunks), place
        chunks.append(chunk)
    return chunks


def _urgency(row: Row, flipped: Collection[tuple[int, str]]) -> tuple[bool, bool, str, int, int]:
    task = row.result.problem_id
    return (
        (row.entry, task) not in flipped,
        row.result.verdict == "passed",
        task,
        row.entry,
        row.result.sample,
    )


def packed_json(value: object) -> str:
    """A value for the page's script: deflated JSON in base64, in which no character has a meaning in HTML."""
    return base64.b64encode(zlib.compress(orjson.dumps(value), 9)).decode()


class _StoryReader:
    """The stories of one run, by experiment."""

    def __init__(self, experiments: Experiments) -> None:
        self._experiments = experiments
        self._outcomes = {outcome.experiment_id: outcome for outcome in experiments.outcomes}

    def blocks(self, row: Row) -> list[Block]:
        outcome = self._outcomes.get(row.result.experiment_id)
        if outcome is None:
            return [("said", "", "The journal has nothing on this experiment any more.")]
        return [
            (kind, heading, shortened(text, _TEXT_CHARS))
            for kind, heading, text in _blocks(self._experiments.story(outcome))
        ]


def _blocks(story: Story) -> Iterator[Block]:
    for step in story.steps:
        yield from _step(step)
    if servers := "\n".join(told_servers(story)):
        yield "said", "MCP servers", servers
    if story.grades:
        heading, *grades = told_grades(story.grades)
        yield "said", heading, "\n".join(grades)
    if isinstance(story.outcome, Fault):
        yield (
            "verdict-fault",
            "Fault",
            "\n".join((story.outcome.reason, told_frames(story.outcome.frames))).rstrip(),
        )
    elif story.outcome.note:
        yield "said", "Note", story.outcome.note


def _step(step: StoryStep) -> Iterator[Block]:
    if call := step.call:
        for who, text in told_asked(call, step.asked):
            yield "said", _ASKERS.get(who, who.capitalize()), text
        if call.reasoning:
            yield "said", "Reasoning", str(call.reasoning)
        tokens = f"{call.tokens_in} + {call.tokens_out} tokens{thought_of(call.tokens_reasoning)}"
        figures = f"{tokens}, {call.latency:.1f} s, ${call.cost:.4f}"
        heading = (
            f"Reply {call.call} of {call.answered_by or call.model} ({call.purpose}; {figures})"
        )
        yield "reply", heading, told_reply(call)
    yield from (("said", *told_tool(tool)) for tool in step.tools)
    if attempt := step.attempt:
        if step.diff:
            yield (
                "diff",
                f"Program of attempt {attempt.number}, against the one before",
                "\n".join(step.diff),
            )
        elif isinstance(attempt.program, str):
            yield "code", f"Program of attempt {attempt.number}", attempt.program
        cause = f" ({attempt.cause})" if attempt.cause else ""
        at = f" at {attempt.task_id}" if attempt.task_id else ""
        kind = "verdict-passed" if attempt.passed else "verdict-failed"
        yield kind, f"Attempt {attempt.number}{at}: {attempt.verdict}{cause}", str(attempt.detail)
