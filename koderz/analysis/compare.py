"""From the names that someone gives to what `compare` answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from koderz.analysis.blocks import Block, Heading, Text, as_markdown
from koderz.analysis.comparison import Comparison, last_comparable, of_sides
from koderz.analysis.comparison_view import comparison_blocks, leaderboard_blocks, side_blocks
from koderz.analysis.failures import failures_of
from koderz.analysis.gates import Gates, caution_on, why_shut
from koderz.analysis.leaderboard import Leaderboard, leaderboard, row_of
from koderz.analysis.measures import SUCCESS, measure_named
from koderz.analysis.pairs import own_arms, sides_of, sides_to_compare
from koderz.analysis.runs import resolve
from koderz.analysis.statistics import ALPHA
from koderz.errors import KoderzError
from koderz.settings.registry import Registry

COMPARISONS = Registry(
    "comparison", "koderz.comparisons", {"optimize": "koderz.analysis.optimizers.comparison:compare_optimizers"}
)
"""By the mode of runs that are compared in a way of their own: functions of the folders of one run or two.

They take `arm` and `min_gain`, see `compare_runs` and `Gates`, and return what is `Compared`.
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """What `compare` answers, such as a comparison of two sides or the standing of many; and what its gates say."""

    title: str
    told: Callable[[], Iterator[Block]]
    found: Callable[[], Mapping[str, Any]]  # for JSON
    shut: Sequence[str] = ()  # the gates that failed, and why
    caution: str = ""  # see `caution_on`

    def blocks(self) -> Iterator[Block]:
        """What is to be read of it."""
        return self.told()

    def markdown(self) -> Iterator[str]:
        """Lines for a CI job's summary page; what the gates say comes first."""
        verdict = [Text(f"Gate failed: {why}") for why in self.shut]
        verdict += [Text(f"Warning: {self.caution}")] if self.caution else []
        return as_markdown([Heading(f"koderz: {self.title}"), *verdict, *self.blocks()])

    def document(self) -> Mapping[str, Any]:
        """What JSON has."""
        return {**self.found(), "gates_failed": list(self.shut), "gates_warning": self.caution or None}


def compare_runs(
    names: Sequence[str],
    results: Path,
    *,
    arm: str | None = None,
    measure: str = SUCCESS.name,
    alpha: float = ALPHA,
    allow_simulated: bool = False,
    gates: Gates | None = None,
) -> Compared:
    """Compares the runs named, or the last two that share tasks, by a measure.

    Raises KoderzError for what can't be compared.
    """
    gates = gates or Gates()
    runs = (
        resolve(names, results, allow_simulated=allow_simulated)
        if names
        else last_comparable(results, allow_simulated=allow_simulated)
    )
    folders = [run.folder for run in runs if run.folder and run.mode == runs[0].mode]
    has_own = len(folders) == len(runs) <= 2 and COMPARISONS.has(runs[0].mode)
    if has_own and not replace(gates, min_gain=None).are_asked:
        own: Compared = COMPARISONS.find(runs[0].mode)(folders, arm=arm, min_gain=gates.min_gain)
        return own
    if gates.min_gain is not None:
        raise KoderzError("--min-gain judges a run of optimizers, or the second of two, and goes with no other gate")
    by = measure_named(measure, runs)
    has_many = len(runs) > 2 or (len(runs) == 1 and len(runs[0].arms) > 2 and arm is None)
    if has_many and gates.are_asked:
        raise KoderzError("gates judge one candidate; name one run or --arm, or the baseline and then the candidate")
    if has_many and not (len(runs) == 1 and any(each.baseline for each in runs[0].arms.values())):
        board = leaderboard([side for run in runs for side in sides_of(run, arm)], alpha, by)
        return Compared("leaderboard", partial(leaderboard_blocks, board), partial(_leaderboard_document, board))
    sides = sides_to_compare(runs[0], runs[1], arm) if len(runs) == 2 else own_arms(runs[0], arm)
    if not sides:
        side = sides_of(runs[0], arm)[-1]
        if not gates.are_asked:
            raise KoderzError(f"{side.label} is one arm alone, {side.arm}; name a second run to compare it with")
        return Compared(
            side.label,
            partial(side_blocks, side),
            lambda: {"b": row_of(side)},
            why_shut(gates, side, None),
            caution_on(gates, side),
        )
    comparison = of_sides(sides, alpha, by)
    return Compared(
        comparison.verdict,
        partial(comparison_blocks, comparison),
        partial(comparison_document, comparison),
        why_shut(gates, comparison.b, comparison),
        caution_on(gates, comparison.b),
    )


def own_answer(mode: str, folder: Path) -> Compared | None:
    """What one run has come to, where runs of its mode are compared in a way of their own; None before it has."""
    if COMPARISONS.has(mode):
        with suppress(KoderzError):
            own: Compared = COMPARISONS.find(mode)([folder])
            return own
    return None


def comparison_document(one: Comparison) -> dict[str, Any]:
    """A comparison for JSON: `pairs, a_only, b_only, mcnemar_p, difference, interval, paired, …`."""
    return {
        **{item.name: getattr(one, item.name) for item in fields(one)},
        "a": {**row_of(one.a), "failures": failures_of(one.a)},
        "b": {**row_of(one.b), "failures": failures_of(one.b)},
        "verdict": one.verdict,
        "arms": {name: comparison_document(arm) for name, arm in one.arms.items()},
    }


def _leaderboard_document(board: Leaderboard) -> dict[str, Any]:
    return {
        "leaderboard": [
            {
                **row_of(standing.side),
                "mean": standing.mean.mean,
                "mean_interval": standing.mean.interval,
                "mean_interval_method": standing.mean.interval_method,
                "level_with_best": standing.level_with_best,
            }
            for standing in board.standings
        ],
        "measure": board.measure,
        "pairwise": board.pairwise,
        "alpha": board.alpha,
        "notes": board.notes,
    }
