"""A comparison or a leaderboard on half a screen: the verdict, what it rests on, and what would turn it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.comparison import (
    Comparison,
    comparison_blocks,
    described,
    figures_of,
    named_tasks,
    size_shown,
    spans_of_faults,
)
from koderz.analysis.judged import text_of_difference
from koderz.analysis.leaderboard import Leaderboard, standings_table
from koderz.analysis.measures import SUCCESS, interval_text, shown
from koderz.analysis.notes import cautions_on, differing_values
from koderz.analysis.pairs import Side, match
from koderz.analysis.statistics import p_text

_MORE = "Methods, causes of failures and notes: --details"


def headline(one: Comparison) -> str:
    """The verdict of a comparison with its figures, in words: who passes what, the difference, and whether it shows."""
    if one.difference is None or one.p_holm is None:
        return one.verdict
    figures = f"{_figures(one)}: {shown(one.difference / one.scale, one.measure, signed=True)}"
    if one.interval_holm:
        low, high = one.interval_holm
        limits = interval_text((low / one.scale, high / one.scale), one.measure, signed=True)
        figures += f" ({100 * (1 - one.alpha):g}% interval {limits})"
    could_turn = one.completion and one.completion.could_turn
    if one.judged or one.unequal_resources or one.is_at_any_stop or could_turn:
        return f"{figures}. {one.verdict}"
    p = f"{p_text(one.p_holm)}{', Holm-corrected' if one.p_holm != one.p_value else ''}"
    if one.significant:
        return f"{figures}. B is {'worse' if one.worse_by > 0 else 'better'} ({p})."
    if not one.smallest_difference:
        return f"{figures}. No difference is shown ({p})."
    return f"{figures}. Too few tasks to tell ({p}); from {size_shown(one)} on it would show."


def headlines(comparison: Comparison) -> Iterator[Text]:
    """The verdict of each pair of arms that are compared, and an empty line."""
    each = list(comparison.arms.values()) or [comparison]
    for one in each:
        yield Text(f"{f'{one.b.arm}: ' if len(each) > 1 else ''}{headline(one)}")
    yield Text("")


def whole_blocks(comparison: Comparison) -> Iterator[Block]:
    """The same verdicts, then everything that is known of the comparison."""
    yield from headlines(comparison)
    yield from comparison_blocks(comparison)


def _figures(one: Comparison) -> str:
    compared = (one.a_compared, one.b_compared)
    if one.measure.name == SUCCESS.name:
        if all(each.experiments == each.tasks for each in compared):
            a, b = (f"{each.successes} of {each.tasks}" for each in compared)
        else:
            a, b = (f"{each.success_rate or 0:.1f}%" for each in compared)
        return f"B passes {b}, A {a}"
    a, b = ("nothing" if each.mean is None else shown(each.mean, one.measure) for each in compared)
    return f"{one.measure.name}: B {b}, A {a}"


def brief_blocks(comparison: Comparison) -> Iterator[Block]:
    """The blocks of a comparison without methods, causes of failures and what changes nothing about the verdict."""
    each = list(comparison.arms.values()) or [comparison]
    yield from headlines(comparison)
    yield Text(f"A (baseline)  {described(comparison.a)}")
    yield Text(f"B (candidate) {described(comparison.b)}")
    for one in each:
        if len(each) > 1:
            yield Heading(f"Arm: {one.b.arm}")
        yield figures_of(one)
        if one.judged:
            yield from map(Text, text_of_difference(one.judged))
        yield from spans_of_faults(one)
        yield from (Text(f"Unequal resources: {phrase}") for phrase in one.unequal_resources)
        if one.gained:
            yield Text(f"B gained: {named_tasks(one.gained)}")
        if one.lost:
            yield Text(f"B lost: {named_tasks(one.lost)}")
    for note in dict.fromkeys(
        note for one in each for note in cautions_on(one.a, one.b, match(one.a, one.b, one.measure))
    ):
        yield Text(f"note: {note}")
    yield from differing_values("Settings that differ", comparison.settings)
    yield Text("")
    yield Text(_MORE)


def names_of(sides: Sequence[Side]) -> Mapping[Side, str]:
    """A short name for each: its model, its arm where arms differ, and its run's digits where that isn't enough."""
    arms = len({side.arm for side in sides}) > 1
    names = {side: f"{side.model} {side.arm}" if arms else side.model for side in sides}
    taken = Counter(names.values())
    digits = {
        side: (side.run.run_id or side.run.name).removeprefix("bench_").partition("_")[0]
        for side in sides
    }
    return {
        side: f"{name} ({digits[side]})" if taken[name] > 1 else name
        for side, name in names.items()
    }


def board_blocks(board: Leaderboard, *, matrix: bool = True) -> Iterator[Block]:
    """The blocks of a leaderboard: its tiers in a sentence, standings, and the pairs as one matrix."""
    names = names_of([standing.side for standing in board.standings])
    yield Text(_tiers(board, names))
    yield standings_table(board)
    if len(board.standings) > 1 and matrix:
        yield pairs_table(board, names)
        yield Text(
            f"+ the row is better than the column, - worse, = no difference shown, ? no claim; {len(board.pairwise)} "
            f"tests, Holm-corrected, at {board.alpha:g}"
        )
    yield from (Text(f"Unequal resources: {phrase}") for phrase in board.unequal_resources)
    yield from (Text(f"note: {note}") for note in board.notes)


def _tiers(board: Leaderboard, names: Mapping[Side, str]) -> str:
    tiers: dict[int, list[str]] = {}
    for standing in board.standings:
        tiers.setdefault(standing.tier, []).append(names[standing.side])
    first, *others = (", ".join(each) for _, each in sorted(tiers.items()))
    if not others:
        return (
            f"No difference between these {len(names)} is shown."
            if len(names) > 1
            else f"{first} stands alone."
        )
    best = "Best, with no difference shown among them" if len(tiers[1]) > 1 else "Best"
    return (
        "; ".join([f"{best}: {first}", *(f"tier {n}: {each}" for n, each in enumerate(others, 2))])
        + "."
    )


def pairs_table(board: Leaderboard, names: Mapping[Side, str]) -> Table:
    """Every pair of standings in one cell each: whether the row's is shown to be better than the column's."""
    signs: dict[tuple[str, str], str] = {}
    for pair in board.pairwise:
        better, worse = ("+", "-") if pair.significant else ("=", "=")
        if pair.completion and pair.completion.could_turn:
            better = worse = "?"
        signs |= {(pair.a, pair.b): better, (pair.b, pair.a): worse}
    sides = [standing.side for standing in board.standings]
    rows = [
        [str(n), names[a], *("" if a is b else signs.get((a.label, b.label), "?") for b in sides)]
        for n, a in enumerate(sides, 1)
    ]
    return Table(["", "Row against column", *(str(n) for n in range(1, len(sides) + 1))], rows)
