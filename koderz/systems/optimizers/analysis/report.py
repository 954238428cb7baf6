"""The report's section on optimizers: gains, searches, prompts, costs, and what validation had promised."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from koderz.analysis import statistics
from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.compare import Compared
from koderz.analysis.intervals import FEWEST_TO_RESAMPLE, Interval
from koderz.analysis.sections import Content, Curve, Curves, Section, SideBySide
from koderz.errors import KoderzError
from koderz.systems.optimizers.analysis.checkpoint import State
from koderz.systems.optimizers.analysis.gains import (
    FEWEST_SEARCHES,
    About,
    Gain,
    GainRow,
    Search,
    claim,
    gain_over_seeds,
    rows_of,
    searches_of,
)
from koderz.systems.optimizers.analysis.trials import SEARCHING, PlannedTrial, Trial, differences
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.payload import NO_RECORD, DatasetRecords
from koderz_tracker.messages import text_of
from koderz_tracker.records import Plan
from koderz_tracker.runs import read_plan
from koderz_tracker.sequential import STOPS
from koderz_tracker.stories import Stories

_PURPOSES = (*SEARCHING, "test")


class TestedRow(Protocol):
    """A tested row."""

    @property
    def method(self) -> str | None: ...
    @property
    def interval_method(self) -> str | None: ...


_PROMPT = 4000  # characters that are shown of one
_HEADS = "DATASET,MODEL,OPTIMIZER,N,BASELINE,TEST,UNREAD,GAIN [95 %],ADJ. P,CALLS,$,VERDICT"
_OPTIONAL = ("N", "ADJ. P", "MODEL")


def section_of(plan: Plan, folder: Path) -> Section | None:
    """The section for the run in `folder`; None before any search has ended."""
    stories = Stories(folder, os.environ)
    stories.refresh()
    state = State(plan)
    for experiment_id in state.cells:
        for line in stories.of(experiment_id):
            state.fold(line)
    rows = rows_of(plan, searches_of(folder))
    return Section("Optimizers", [*_contents(state, rows)]) if rows else None


def row_blocks(rows: Sequence[GainRow]) -> Iterator[Text | Table]:
    """The reasons why some rows aren't comparable, a table of all, and those that beat random search."""
    for reason in dict.fromkeys(reason for row in rows for reason in row.reasons):
        having = [row for row in rows if reason in row.reasons]
        which = (
            "" if len(having) == len(rows) else f"{', '.join(dict.fromkeys(map(named, having)))}: "
        )
        yield Text(f"Not comparable: {which}{reason}")
    yield Table(
        _HEADS.split(","),
        [_cells(row) for row in rows],
        _OPTIONAL,
        ruled=False,
        under={"MODEL": "DATASET"},
    )
    yield from map(Text, _prices(rows))
    yield from map(Text, _beside_random(rows))
    yield from map(Text, methods_of(rows))
    if any(row.about == "prompts" for row in rows):
        count = min(len(row.seeds) for row in rows if row.about == "prompts")
        why = (
            "to see how much results vary"
            if count == 1
            else "for verdicts on optimizers, not on the prompts found"
        )
        yield Text(
            f"{'One seed' if count == 1 else f'{count} seeds'}: use --seeds {FEWEST_SEARCHES} {why}."
        )


def _beside_random(rows: Sequence[GainRow]) -> Iterator[str]:
    """A sentence on the optimizers beside random search for each dataset and model."""
    models = {row.model for row in rows}
    for (dataset, model), here in groupby(rows, lambda row: (row.dataset, row.model)):
        beside = [row for row in here if row.vs_random]
        place = dataset if len(models) == 1 else f"{dataset}, {model}"
        sure = [
            row
            for row in beside
            if row.vs_random and (row.vs_random["beats"] or row.vs_random["prompts_better"])
        ]
        for row in sure:
            yield f"{place}: {_better(row)} by {abs(_over_random(row)):.3f}"
        unsure = [row for row in beside if row not in sure]
        if unsure:
            n = min(row.n for row in unsure)
            why = (
                f"too few items ({n}) to tell"
                if n < FEWEST_TO_RESAMPLE
                else f"no difference shown on {n} items"
            )
            yield f"{place}: {why}; {', '.join(_placed(unsure))}"


def _over_random(row: GainRow) -> float:
    return float(row.vs_random["gain"]) if row.vs_random else 0.0


def _better(row: GainRow) -> str:
    """A claim on an optimizer that is better than random search: on itself, or on the prompts it found."""
    if row.vs_random and row.vs_random["beats"]:
        return f"{row.optimizer} beats random search"
    return f"of {row.optimizer}, {prompts_in(len(row.seeds))} better than random search's"


def _placed(rows: Sequence[GainRow]) -> Iterator[str]:
    """A phrase on the optimizers at each distance from random search, which only the first names."""
    than = "random search"
    for gain, level in groupby(
        sorted(rows, key=_over_random, reverse=True), lambda row: round(_over_random(row), 3)
    ):
        *others, last = [row.optimizer for row in level]
        who = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        side = "above" if gain > 0 else "below"
        where = f"{abs(gain):.3f} {side}" if gain else "level with"
        yield f"{who} {where} {than}"
        than = "it"


def methods_of(rows: Sequence[TestedRow]) -> Iterator[str]:
    """A sentence on the methods of p-values and intervals."""
    tests = dict.fromkeys(row.method for row in rows if row.method)
    intervals = dict.fromkeys(row.interval_method for row in rows if row.interval_method)
    if [*tests] == [*intervals] == [STOPS]:
        yield f"Tests and intervals: {STOPS}."
    elif tests:
        suffix = f"; intervals: {' or '.join(intervals)}" if intervals else ""
        yield f"Tests: {' or '.join(tests)}{suffix}; both corrected for the optimizers beside each other."


def prompts_in(count: int) -> str:
    """A phrase for the prompts of a number of searches, with its verb."""
    return "this prompt is" if count == 1 else f"these {count} prompts are"


def verdict_in(verdict: str, prompts: int) -> str:
    """A verdict in words; one on found prompts states their number."""
    subject, _, word = verdict.partition(" ")
    return f"{prompts_in(prompts)} {word}" if subject == "prompts" else verdict


def _prices(rows: Sequence[GainRow]) -> Iterator[str]:
    """A sentence on the cost of a metric call for each dataset and model where optimizers differ in it."""
    for (dataset, model), here in groupby(rows, lambda row: (row.dataset, row.model)):
        costs = {
            row.optimizer: row.cost_usd / row.metric_calls
            for row in here
            if row.metric_calls and row.cost_known
        }
        if not costs or min(costs.values()) == max(costs.values()):
            continue
        least, most = min(costs, key=costs.__getitem__), max(costs, key=costs.__getitem__)
        yield (
            f"{dataset}, {model}: equal metric calls are not equal dollars. With all else that is asked for, 1,000 of "
            f"them cost ${1000 * costs[least]:.4f} with {least} and ${1000 * costs[most]:.4f} with {most}."
        )


def named(row: GainRow) -> str:
    """A description of a row in words."""
    return f"{row.optimizer} on {row.dataset} for {row.model}"


def _cells(row: GainRow) -> list[str]:
    limits = row.interval_adjusted or row.interval
    interval = f" [{limits[0]:+.3f}, {limits[1]:+.3f}]" if limits else ""
    verdict = verdict_in(row.verdict, len(row.seeds))
    seen = row.verdict == "no evidence" and row.detectable is not None
    return [
        row.dataset,
        row.model,
        row.optimizer,
        str(row.n),
        _number(row.baseline),
        _number(row.score),
        "-" if row.unread is None else f"{100 * row.unread:.1f} %",
        "-" if row.gain is None else f"{row.gain:+.3f}{interval}",
        "-" if row.p_adjusted is None else p_cell(row.p_adjusted),
        f"{row.metric_calls:,}",
        f"{'' if row.cost_known else '≥'}{row.cost_usd:.4f}",
        f"{verdict} (from {row.detectable:.3f} on it would show)" if seen else verdict,
    ]


def p_cell(value: float) -> str:
    """A p-value in a table."""
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _contents(state: State, rows: Sequence[GainRow]) -> Iterator[Content]:
    yield from row_blocks(rows)
    ended = [
        cell
        for cell in state.cells.values()
        if (trial := state.trials.get(cell.experiment_id)) and trial.result
    ]
    searched = [cell for cell in ended if cell.optimizer != BASELINE]
    for (dataset, model), cells in groupby(sorted(searched, key=_place), _place):
        curves = [
            curve for cell in cells if (curve := _curve(cell, state.trials[cell.experiment_id]))
        ]
        if curves:
            title = f"Best validation score so far: {dataset}, {model}"
            yield Curves(
                title, "metric calls", "mean over the validation items asked, best so far", curves
            )
    documents = {each["experiment_id"]: each for each in state.document()["task_results"]}
    yield Heading("What validation promised")
    yield Text(
        "Gains over the initial prompt. The best of several is best by luck, too: the test is what counts."
    )
    yield _promises(searched, state.trials, documents)
    yield Heading("Spend by purpose")
    yield _spend([*state.cells.values()], state.trials)
    if texts := differences(state.plan):
        yield Heading("Optimizers and their originals")
        yield from (Text(f"{name}: {text}") for name, text in texts.items())
    yield Heading("Prompts")
    yield Text(
        "The winner by validation of each dataset, model and optimizer beside the initial prompt."
    )
    yield from _prompts(searched, state.trials, documents)


def _place(cell: PlannedTrial) -> tuple[str, str]:
    return cell.dataset, cell.model


def _curve(cell: PlannedTrial, trial: Trial) -> Curve | None:
    found = [(float(calls), mean) for calls, mean in trial.best_so_far()]
    return Curve(cell.optimizer, f"{cell.optimizer}, seed {cell.seed}", found) if found else None


def _promises(
    cells: Sequence[PlannedTrial],
    trials: Mapping[str, Trial],
    documents: Mapping[str, Mapping[str, Any]],
) -> Table:
    rows = []
    for cell in cells:
        trial, gain = trials[cell.experiment_id], documents[cell.experiment_id]["gain"]
        means, result = trial.result["validation"], trial.result
        if result["winner"] not in means or result["initial"] not in means:
            promised = None
        else:
            promised = float(means[result["winner"]] - means[result["initial"]])
        left = None if promised is None or gain is None else gain - promised
        figures = ["-" if value is None else f"{value:+.3f}" for value in (promised, gain, left)]
        winner = "the initial prompt" if trial.result["kept_initial"] else "a candidate"
        rows.append([cell.dataset, cell.model, cell.optimizer, str(cell.seed), winner, *figures])
    heads = [
        "Dataset",
        "Model",
        "Optimizer",
        "Seed",
        "Kept",
        "Promised by validation",
        "Gained on test",
        "Difference",
    ]
    return Table(heads, rows)


def _spend(cells: Sequence[PlannedTrial], trials: Mapping[str, Trial]) -> Table:
    """A table of the calls and US dollars of each optimizer, over all datasets, models and seeds."""
    rows = []
    for optimizer in dict.fromkeys(cell.optimizer for cell in cells):
        own = [
            trial
            for cell in cells
            if cell.optimizer == optimizer and (trial := trials.get(cell.experiment_id)) is not None
        ]
        calls = {purpose: sum(trial.calls[purpose] for trial in own) for purpose in _PURPOSES}
        costs = {purpose: sum(trial.costs[purpose] for trial in own) for purpose in _PURPOSES}
        told = [
            f"{calls[purpose]:,} · ${costs[purpose]:.4f}" if calls[purpose] else "-"
            for purpose in _PURPOSES
        ]
        rows.append([optimizer, *told, f"{sum(calls.values()):,} · ${sum(costs.values()):.4f}"])
    return Table(["Optimizer", *_PURPOSES, "all"], rows)


def _prompts(
    cells: Sequence[PlannedTrial],
    trials: Mapping[str, Trial],
    documents: Mapping[str, Mapping[str, Any]],
) -> Iterator[SideBySide]:
    def validation(cell: PlannedTrial) -> float:
        result = trials[cell.experiment_id].result
        return float(result["validation"].get(result["winner"], 0.0))

    places = dict.fromkeys((*_place(cell), cell.optimizer) for cell in cells)
    for place in places:
        best = max(
            (cell for cell in cells if (*_place(cell), cell.optimizer) == place), key=validation
        )
        document = documents[best.experiment_id]
        label = f"{best.optimizer}, seed {best.seed}: {validation(best):.3f} on validation"
        texts = {
            "Initial prompt": _text(document["initial_prompt"]),
            label: _text(document["optimized_prompt"]),
        }
        yield SideBySide(", ".join(place), texts)


def _text(prompt: Mapping[str, Any] | None) -> str:
    messages = (prompt or {}).get("messages") or ()
    text = "\n\n".join(f"{message['role']}:\n{text_of(message)}" for message in messages)
    return text if len(text) <= _PROMPT else f"{text[:_PROMPT]} …"


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
    # better, worse, no evidence, not comparable; of prompts `BETTER_PROMPTS` and `WORSE_PROMPTS`
    verdict: str
    detectable: float | None
    reasons: Sequence[str]
    # what the verdict is about: the optimizer, or the prompts that its searches have found
    about: About = "prompts"
    method: str | None = None  # of the test
    interval_method: str | None = None
    # corrected for the optimizers beside it; agrees with the verdict
    interval_adjusted: Interval | None = None
    clusters: int | None = None  # in which the test items are; None: each stands alone
    prompts: int = 1  # of B, one a seed


def compare_optimizers(
    folders: Sequence[Path], *, arm: str | None = None, min_gain: float | None = None
) -> Compared:
    """One run's rows, or two runs' pairs. `min_gain`: the gain required of each optimizer of the last, as a fraction.

    `arm`: that optimizer alone. Raises KoderzError where nothing is left to compare or judge.
    """
    plans, searches = [read_plan(each) for each in folders], [searches_of(each) for each in folders]
    rows = [row for row in rows_of(plans[-1], searches[-1]) if arm in (None, row.optimizer)]
    pairs = (
        [pair for pair in _pairs(plans, searches) if arm in (None, pair.optimizer)]
        if len(folders) == 2
        else []
    )
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
    header = (
        "Dataset",
        "Model",
        "Optimizer",
        "n",
        "A",
        "B",
        "B - A [95 %]",
        "adjusted p",
        "verdict",
    )
    rows = [
        (each.dataset, each.model, each.optimizer, str(each.n), f"{each.a:.3f}", f"{each.b:.3f}",
         _with_interval(each.difference, each.interval_adjusted or each.interval), p_cell(each.p_adjusted),
         verdict_in(each.verdict, each.prompts))
        for each in pairs
    ]  # fmt: skip
    yield Table(header, rows, optional=("Model",))
    yield from map(Text, methods_of(pairs))
    for pair in pairs:
        for reason in pair.reasons:
            yield Text(f"Not comparable: {pair.dataset}, {pair.optimizer}: {reason}")


def _shut(rows: Sequence[GainRow], least: float) -> list[str]:
    found = []
    for row in rows:
        what = named(row)
        if row.gain is None:
            raise KoderzError(
                f"--min-gain can't be judged: {what} has no gain; {'; '.join(row.reasons)}"
            )
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
        found.setdefault((*search.place, search.optimizer), []).append(
            search.with_scores_of(bases.get(search.place))
        )
    return found


def _reasons(
    plans: Sequence[Plan], dataset: str, a: Sequence[Search], b: Sequence[Search]
) -> Iterator[str]:
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


def _with_interval(value: float, interval: Interval | None) -> str:
    return f"{value:+.3f}" + (f" [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else "")
