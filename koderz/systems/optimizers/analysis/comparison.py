"""Two runs of optimizers side by side: the winners of each optimizer, dataset and model, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from koderz.analysis import statistics
from koderz.analysis.blocks import Block, Table, Text
from koderz.analysis.compare import Compared
from koderz.analysis.intervals import Interval
from koderz.errors import KoderzError
from koderz.systems.optimizers.analysis.estimates import About, Gain
from koderz.systems.optimizers.analysis.gains import (
    GainRow,
    Search,
    claim,
    gain_over_seeds,
    rows_of,
    searches_of,
)
from koderz.systems.optimizers.analysis.report import methods_of, named, p_cell, row_blocks, verdict_in
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.payload import NO_RECORD, DatasetRecords
from koderz_tracker.records import Plan
from koderz_tracker.runs import read_plan

Place = tuple[str, str, str]
"""Dataset, model and optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One optimizer on one dataset for one model, in both runs. Figures are fractions, averaged over seeds."""

    dataset: str
    model: str
    optimizer: str
    n: int
    a: float
    b: float
    difference: float
    interval: Interval | None
    p: float
    p_adjusted: float
    verdict: str  # better, worse, no evidence, not comparable; of prompts `BETTER_PROMPTS` and `WORSE_PROMPTS`
    detectable: float | None
    reasons: Sequence[str]
    about: About = "prompts"  # what the verdict is about: the optimizer, or the prompts that its searches have found
    method: str | None = None  # of the test
    interval_method: str | None = None
    interval_adjusted: Interval | None = None  # corrected for the optimizers beside it; agrees with the verdict
    clusters: int | None = None  # in which the test items are; None: each stands alone
    prompts: int = 1  # of B, one a seed


def compare_optimizers(folders: Sequence[Path], *, arm: str | None = None, min_gain: float | None = None) -> Compared:
    """One run's rows, or two runs' pairs. `min_gain`: the gain required of each optimizer of the last, as a fraction.

    `arm`: that optimizer alone. Raises KoderzError where nothing is left to compare or judge.
    """
    plans, searches = [read_plan(each) for each in folders], [searches_of(each) for each in folders]
    rows = [row for row in rows_of(plans[-1], searches[-1]) if arm in (None, row.optimizer)]
    pairs = [pair for pair in _pairs(plans, searches) if arm in (None, pair.optimizer)] if len(folders) == 2 else []
    if not (pairs if len(folders) == 2 else rows):
        raise KoderzError(
            "there is no optimizer, dataset and model to compare: none has ended, or none is in both runs"
        )
    shut = _shut(rows, min_gain) if min_gain is not None else []
    names = [each.name for each in folders]
    return Compared(
        "optimizers",
        partial(_pair_blocks, names, pairs) if pairs else partial(row_blocks, rows),
        partial(dict, {"runs": names, "pairs": pairs, "rows": rows}),
        shut,
    )


def _pair_blocks(names: Sequence[str], pairs: Sequence[Pair]) -> Iterator[Block]:
    yield Text(f"A: {names[0]}, B: {names[1]}; B less A on the same test items, corrected by Holm")
    yield _pair_table(pairs)
    yield from map(Text, methods_of(pairs))
    for pair in pairs:
        for reason in pair.reasons:
            yield Text(f"Not comparable: {pair.dataset}, {pair.optimizer}: {reason}")


def _shut(rows: Sequence[GainRow], least: float) -> list[str]:
    found = []
    for row in rows:
        what = named(row)
        if row.gain is None:
            raise KoderzError(f"--min-gain can't be judged: {what} has no gain; {'; '.join(row.reasons)}")
        if row.gain < least:
            found.append(f"{what} gains {row.gain:+.3f}, less than {least:+.3f}")
    return found


def _pairs(plans: Sequence[Plan], searches: Sequence[Sequence[Search]]) -> list[Pair]:
    a, b = (_by_place(each) for each in searches)
    places = [place for place in a if place in b and place[2] != BASELINE]
    pairs: list[Pair] = []
    for family in dict.fromkeys(place[:2] for place in places):
        own = [place for place in places if place[:2] == family]
        gains = [(place, gain_over_seeds(plans, a[place], b[place])) for place in own]
        known = [(place, gain) for place, gain in gains if gain]
        adjusted = statistics.holm([gain.p for _, gain in known])
        pairs += [
            _pair(place, gain, p, len(known), [*_reasons(plans, place[0], a[place], b[place])])
            for (place, gain), p in zip(known, adjusted, strict=True)
        ]
    return pairs


def _by_place(searches: Sequence[Search]) -> dict[Place, list[Search]]:
    """The searches of each place; those that kept the initial prompt have the baseline's scores."""
    bases = {search.place: search for search in searches if search.optimizer == BASELINE}
    found: dict[Place, list[Search]] = {}
    for search in searches:
        found.setdefault((*search.place, search.optimizer), []).append(search.with_scores_of(bases.get(search.place)))
    return found


def _reasons(plans: Sequence[Plan], dataset: str, a: Sequence[Search], b: Sequence[Search]) -> Iterator[str]:
    if any(plan.config.get("test_mode") for plan in plans):
        yield "test mode"
    if any(plan.until_decided for plan in plans):
        yield "a run stops once it is decided, and is compared by its decision alone"
    caps = {search.result["budget_calls"] for search in (*a, *b)}
    if len(caps) > 1 or len({plan.config.get("max_experiment_cost") for plan in plans}) > 1:
        yield "unequal caps"
    about = [plan.suite_details(DatasetRecords).get(dataset, NO_RECORD) for plan in plans]
    if len({test.digest if (test := each.splits.get("test")) else "" for each in about}) > 1:
        yield "the test items differ"
    if len({each.metric for each in about}) > 1:
        yield "the metrics differ"


def _pair(place: Place, gain: Gain, p_adjusted: float, count: int, reasons: Sequence[str]) -> Pair:
    dataset, model, optimizer = place
    adjusted = gain.together(count, p_adjusted)
    verdict = "not comparable" if reasons else claim(gain, p_adjusted, adjusted, "better", "worse")
    return Pair(
        dataset=dataset,
        model=model,
        optimizer=optimizer,
        n=gain.n,
        a=gain.a,
        b=gain.b,
        difference=gain.gain,
        interval=gain.interval,
        p=gain.p,
        p_adjusted=p_adjusted,
        verdict=verdict,
        detectable=gain.detectable,
        reasons=reasons,
        about=gain.about,
        method=gain.method,
        interval_method=gain.interval_method,
        interval_adjusted=adjusted[0] if adjusted else None,
        clusters=gain.clusters,
        prompts=gain.prompts,
    )


def _pair_table(pairs: Sequence[Pair]) -> Table:
    header = ("Dataset", "Model", "Optimizer", "n", "A", "B", "B - A [95 %]", "adjusted p", "verdict")
    rows = [
        (each.dataset, each.model, each.optimizer, str(each.n), f"{each.a:.3f}", f"{each.b:.3f}",
         _with_interval(each.difference, each.interval_adjusted or each.interval), p_cell(each.p_adjusted),
         verdict_in(each.verdict, each.prompts))
        for each in pairs
    ]  # fmt: skip
    return Table(header, rows, optional=("Model",))


def _with_interval(value: float, interval: Interval | None) -> str:
    return f"{value:+.3f}" + (f" [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else "")
