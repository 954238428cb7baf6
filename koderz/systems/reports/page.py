"""The report: runs as one self-contained page, which runs our own script alone and escapes all foreign text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from koderz._version import __version__
from koderz.analysis.measures import SUCCESS
from koderz.analysis.pairs import believed
from koderz.analysis.runs import FAULT, HEADER, Run, breakdown_rows
from koderz.analysis.sections import sections_of
from koderz.errors import KoderzError, StorageError
from koderz.systems.reports.charts import spreads, steps
from koderz.systems.reports.panels import (
    SHADE_NAMES,
    HeatMap,
    causes_of,
    decision_charts,
    heat_maps,
    panels,
)
from koderz.systems.reports.versus import Comparisons, comparisons
from koderz.systems.reports.view import (
    Entry,
    View,
    average,
    budget_of,
    headline,
    measured,
    pack_stories,
    packed_json,
    shown_in,
)
from koderz.types import NOBODY
from koderz_tracker.files import write_whole
from koderz_tracker.results import told_ends, told_reuse

_HERE = Path(__file__).parent
_MOST_CARDS = 8
_MOST_NOTED = 3  # incomplete runs, each with a note of its own
_COLUMNS = {
    "task": "Task",
    "label": "Run",
    "verdict": "Verdict",
    "attempts": "Attempts",
    "cost": "Cost",
    "tokens": "Tokens",
    "seconds": "Model time",
}
_SHAPES = (  # beside the colour, which not everybody tells apart
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.5L5.5 0L0 5.5L-5.5 0z",
    "M0 -5L5 4h-10z",
    "M0 5L5 -4h-10z",
    "M-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "M-5 -3L-3 -5L0 -2L3 -5L5 -3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0z",
    "M-5 -2h10v4h-10z",
)
_TEXTS = ("task", "label", "verdict")
_WHOLE = re.compile(r"(\d{4}-\d\d-\d\d(?: \d\d:\d\d)?|\b(?:bench|exp)_\w+)")
"""Dates and ids, which are not broken over lines."""


class Pages:
    """Pages on one view, with and without stories; charts are drawn once."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._charts = [*decision_charts(view.runs), *panels(view.judged)]
        self._comparisons = comparisons(view.judged)
        self._maps = heat_maps(
            [entry for entry in shown_in("difficulty", view.judged) if entry.passed]
        )
        self._added = [*sections_of(view.runs)]

    @property
    def flipped(self) -> set[tuple[int, str]]:
        """The entries' numbers with those of their tasks that are shown side by side with another's."""
        numbers = {entry: number for number, entry in enumerate(self._view.entries)}
        flips = [
            (one, task) for one in self._comparisons.shown for task in (*one.gained, *one.lost)
        ]
        return {(numbers[entry], task) for one, task in flips for entry in (one.a, one.b)}

    def render(self, chunks: Sequence[str]) -> bytes:
        """The page in UTF-8, with the stories packed in these chunks."""
        from jinja2 import Environment, FileSystemLoader

        environment = Environment(
            loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=False
        )
        environment.globals.update(steps=steps, spreads=spreads, shapes=_SHAPES)
        environment.filters["whole"] = _whole
        script = _file("report.js")
        view = self._view
        located = sum(row.chunk is not None for row in view.rows)
        if all(run.folder is None for run in view.runs):
            coverage = (
                "Stories are in the journals of these runs, which weren't at hand when it was made."
            )
        elif located == len(view.rows):
            coverage = "Every experiment's story is in it."
        else:
            part = f"{located:,} of {len(view.rows):,} stories are in it, those of failures first"
            coverage = f"{part}; the others name their command."
        page = environment.get_template("report.html.j2").render(
            **self._values(),
            style=_ours(_file("report.css")),
            script=_ours(script),
            script_hash=_ours(
                f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
            ),
            data=_ours(packed_json(_data(self._view, self._maps, self._comparisons))),
            chunks=[_ours(chunk) for chunk in chunks],
            told=coverage,
        )
        return page.encode("utf-8", "backslashreplace")

    def _values(self) -> dict[str, Any]:
        view = self._view
        newest = list(reversed(view.judged))
        strips = [strip for found in self._maps for strip in found.strips]
        # Names of what the suites measure besides success, each entry's averages with their
        # intervals, and by which methods.
        names = (
            {entry.measure.name for entry in newest}
            if len({entry.measure.name for entry in newest}) == 1
            else set()
        )
        known = {name: measure for name, measure in measured(newest).items() if name not in names}
        means = [
            mean
            for entry in newest
            for name, mean in entry.figures.measures.items()
            if name in known
        ]
        methods = sorted({mean.interval_method for mean in means if mean.interval_method})
        rows = [
            (
                entry,
                [
                    average(mean, known[name])
                    if (mean := entry.figures.measures.get(name))
                    else "–"
                    for name in known
                ],
            )
            for entry in newest
        ]
        return {
            "title": _title(view),
            "subtitle": _subtitle(view),
            "added": [
                (
                    name,
                    section.title,
                    [(type(content).__name__, content) for content in section.contents],
                )
                for name, section in self._added
            ],
            "view": view,
            "notes": _notes(view),
            "cards": _cards(view),
            "newest": newest,
            "has_rates": all(entry.measure is SUCCESS for entry in newest),
            "passed": _head_of_passes(newest),
            "iterating": [
                e for e in shown_in("iterations", newest) if e.figures.avg_iterations is not None
            ],
            "measures": (list(known), rows, " or ".join(methods)),
            "broken_down": [
                (run.name, HEADER, list(breakdown_rows(run.breakdown)))
                for run in view.runs
                if run.breakdown
            ],
            "comparisons": self._comparisons.shown,
            "matrices": self._comparisons.matrices,
            "comparison_note": self._comparisons.note,
            "charts": self._charts,
            "causes": causes_of(view.judged),
            "maps": self._maps,
            "shades": [
                (n, name)
                for n, name in enumerate(SHADE_NAMES)
                if any(strip.paths[n] for strip in strips)
            ],
            "columns": [(key, name, key not in _TEXTS) for key, name in _columns(view)],
            "verdicts": sorted({row.result.verdict for row in view.rows}),
            "version": __version__,
            "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        }


def _ours(text: str) -> Any:
    """Marks text as safe that contains no foreign text, or only escaped or encoded one."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704


@cache
def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _title(view: View) -> str:
    asking = [entry for entry in believed(view.entries) if entry.model != NOBODY]
    models = list(dict.fromkeys(entry.model for entry in asking)) or [NOBODY]
    if len(view.runs) == len(models) == 1:
        return f"{models[0]} on {view.runs[0].source}"
    return " and ".join(models) if len(models) <= 2 else f"{len(models)} models compared"


def _subtitle(view: View) -> str:
    runs = view.runs
    days = sorted(run.start_time[:10] for run in runs if run.start_time)
    when = ""
    if days:
        when = f" · {days[0]}" if days[0] == days[-1] else f" · {days[0]} to {days[-1]}"
    suites = ", ".join(dict.fromkeys(run.suite for run in runs))
    named = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return f"{named} · {suites} · {len(view.rows):,} experiments{when}"


def _notes(view: View) -> list[str]:
    partial = [run for run in view.runs if run.status != "complete"]
    told = [f"{run.name} {run.progress}." for run in partial[:_MOST_NOTED]]
    if more := len(partial) - len(told):
        told.append(f"{more} more {'run is' if more == 1 else 'runs are'} not complete.")
    if partial and len(view.runs) > 1:
        told.append(
            "The headline has each model's newest complete run, or its newest where none is complete."
        )
    notes = [" ".join(told)] if told else []
    if marked := [
        entry.title for entry in view.entries if entry.simulated and not entry.run.simulated
    ]:
        notes.append(
            f"Simulated arms, {', '.join(marked)}: their figures say nothing about any real model."
        )
    if names := sorted({run.generated for run in view.runs} - {""}):
        notes.append(
            f"Generated data, {', '.join(names)}: these figures don't belong beside published ones."
        )
    if names := sorted({name for run in view.runs for name in run.rewarded_in}):
        notes.append(
            f"Rewarded tasks: models were rewarded on tasks of these runs in {', '.join(names)}."
        )
    notes += (
        f"{told}."
        for told in told_ends(sum((Counter(run.unknown_ends) for run in view.runs), Counter()))
    )
    notes += dict.fromkeys(
        f"{note}." for run in view.runs for note in (*run.notes, *run.judge.get("caveats", ()))
    )
    if failed := sum(result.verdict == FAULT for run in view.runs for result in run.results):
        notes.append(
            f"Faults as failures: {failed} of the results are faults, which usually count neither way."
        )
    reused = (
        (each.title, told_reuse(each.figures.reused_calls, each.figures.saved_cost))
        for each in view.judged
    )
    notes += [f"{title}: {told}." for title, told in reused if told]
    if any(not entry.figures.cost_known for entry in view.judged):
        notes.append("What some calls cost is unknown, so that costs are too low.")
    if bare := [run.name for run in view.runs if run.folder is None]:
        notes.append(f"Without a journal there are no stories: {', '.join(bare)}.")
    return notes


def _cards(view: View) -> list[Entry]:
    """The headline entries with values of their own measure, the best of each measure first."""
    chosen = headline(view.judged)
    return sorted([e for e in chosen if e.is_summed_up] or chosen, key=lambda e: e.rank)[
        :_MOST_CARDS
    ]


def _head_of_passes(entries: Sequence[Entry]) -> str:
    """The heading above the numbers of passed experiments; empty if none pass or fail."""
    words = {entry.passed for entry in entries} - {""}
    if len(words) == 1:
        return words.pop().capitalize()
    return "Passed" if words else ""


def _columns(view: View) -> list[tuple[str, str]]:
    return [(key, name) for key, name in _COLUMNS.items() if key != "cost" or view.priced]


def _data(view: View, maps: Sequence[HeatMap], found: Comparisons) -> Mapping[str, Any]:
    numbers = {entry: number for number, entry in enumerate(view.entries)}
    return {
        "versus": [[numbers[one.a], numbers[one.b]] for one in found.shown],
        "columns": [key for key, _ in _columns(view)],
        "entries": [
            {"label": e.title, "run": e.run.name, "model": e.model, "arm": e.arm, "colour": e.colour,
             "bare": e.run.folder is None}
            for e in view.entries
        ],
        "maps": [list(found.tasks) for found in maps],
        "rows": [
            [row.entry, r.problem_id, r.sample, r.verdict, r.cause[:200], r.iterations, round(r.cost, 6), r.tokens,
             round(r.latency, 1), row.chunk, row.place]
            for row in sorted(view.rows, key=lambda row: row.result.verdict == "passed")
            if (r := row.result)
        ],
    }  # fmt: skip


# What the template calls


def _whole(text: str) -> Any:
    """The text, escaped, with dates and ids that are not broken over lines."""
    from markupsafe import escape

    parts = _WHOLE.split(text)
    return _ours(
        "".join(
            f'<span class="id">{p}</span>' if n % 2 else str(escape(p)) for n, p in enumerate(parts)
        )
    )


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
    view = View.of(runs)
    if not view.rows:
        raise KoderzError(
            f"nothing to report: no experiment of {runs[0].name if runs else 'any run'} has ended yet"
        )
    progress(f"comparing {len(view.entries)} arm{'s' * (len(view.entries) != 1)}")
    pages = Pages(view)
    without = len(pages.render(()))
    progress(f"packing the stories of {len(view.rows):,} experiments")
    page = pages.render(pack_stories(view, budget_of(len(view.rows)) - without, pages.flipped))
    try:
        write_whole(output, [page])
    except OSError as error:
        raise StorageError(f"{output} can't be written ({error.strerror})") from None
    return WrittenReport(
        output, len(page), len(view.rows), sum(row.chunk is not None for row in view.rows)
    )
