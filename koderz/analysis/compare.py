"""The command `compare` as a library: from names of runs to a comparison and the result of gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from koderz.analysis.blocks import Block, Heading, Text, as_markdown
from koderz.analysis.brief import board_blocks, brief_blocks, headline, whole_blocks
from koderz.analysis.comparison import Comparison, of_sides, side_blocks
from koderz.analysis.completion import with_faults_failed
from koderz.analysis.failures import failures_of
from koderz.analysis.gates import Gates, alarm_notes, caution_on, false_alarms, ruling
from koderz.analysis.junit import CaseSuite, of_comparison, of_run
from koderz.analysis.leaderboard import Leaderboard, leaderboard, leaderboard_blocks, row_of
from koderz.analysis.logs import named_alike
from koderz.analysis.measures import measure_named, usual_measure
from koderz.analysis.pairs import (
    Side,
    believed,
    clustered,
    pairs_to_compare,
    require_equal_resources,
    sides_of,
)
from koderz.analysis.runs import FaultsAs, Run, load_run, refuse_simulated_runs, resolve, run_paths
from koderz.analysis.sequential import as_if_stopped, title_of, told_blocks
from koderz.analysis.statistics import ALPHA
from koderz.errors import KoderzError
from koderz.settings.options import without_effect
from koderz.settings.systems import added
from koderz_tracker.records import Measure

_LOOK_BACK = 50  # runs, in search of two that share tasks


@dataclass(frozen=True, slots=True)
class Compared:
    """The answer of `compare`: a comparison of two sides or a leaderboard, with the result of its gates."""

    title: str
    content: Callable[[], Iterator[Block]]  # whole
    found: Callable[[], Mapping[str, Any]]  # for JSON
    shut: Sequence[str] = ()  # the gates that failed, and why
    hanging: Sequence[str] = ()  # the gates whose answer hangs on faults, and why
    caution: str = ""  # see `caution_on`
    alarms: Mapping[str, float] = field(default_factory=dict)  # see `false_alarms`
    notes: Sequence[str] = ()  # on the gates
    # baseline and candidate of each pair that is compared; of an arm alone, that one
    sides: Sequence[Side] = ()
    # the content without methods, where there is a shorter one
    brief: Callable[[], Iterator[Block]] | None = None

    def blocks(self, *, details: bool = True) -> Iterator[Block]:
        """The answer as blocks to read; `details`: with its methods, causes of failures and all notes."""
        yield from (self.content if details or self.brief is None else self.brief)()
        yield from map(Text, self.notes)

    def markdown(self, *, details: bool = True) -> Iterator[str]:
        """The answer as Markdown for a CI job's summary page; the result of the gates comes first."""
        verdict = [Text(f"Gate failed: {why}") for why in self.shut]
        verdict += [Text(f"Gate undecided: {why}") for why in self.hanging]
        verdict += [Text(f"Warning: {self.caution}")] if self.caution else []
        return as_markdown(
            [Heading(f"koderz: {self.title}"), *verdict, *self.blocks(details=details)]
        )

    def cases(self, threshold: float | None) -> Iterator[CaseSuite]:
        """The compared tasks for JUnit. Raises KoderzError for a comparison that isn't of two sides."""
        if len(self.sides) == 1:
            yield from of_run(self.sides[0].run, threshold, [self.sides[0].arm])
        elif not self.sides:
            raise KoderzError(
                "--junit has the tasks of one run, or of a baseline and a candidate; name these"
            )
        for a, b in zip(self.sides[0::2], self.sides[1::2], strict=False):
            yield of_comparison(a, b, threshold)

    def document(self) -> Mapping[str, Any]:
        """The answer as JSON."""
        return {
            **self.found(),
            "gates_failed": list(self.shut),
            "gates_undecided": list(self.hanging),
            "gates_warning": self.caution or None,
            "false_alarms": self.alarms,
        }


def compare_runs(
    names: Sequence[str],
    results: Path,
    *,
    arm: str | None = None,
    measure: str | None = None,
    alpha: float = ALPHA,
    allow_simulated: bool = False,
    exact: bool = False,
    gates: Gates | None = None,
    unequal_resources: bool = False,
    faults: FaultsAs | None = None,
    cluster: str | None = None,
) -> Compared:
    """Compares the named runs, or the last two that share tasks, by a measure (default: their systems' own).

    `exact`, `unequal_resources` and `faults` as in `koderz.compare`; `cluster`: the field that `clustered` takes.
    Raises KoderzError for what can't be compared.
    """
    gates = gates or Gates()
    if gates.confidence is not None and gates.max_drop is None:
        raise KoderzError("--confidence is that of --max-drop; name the drop that is allowed")
    runs = runs_to_compare(names, results, allow_simulated=allow_simulated)
    runs = clustered(runs, cluster) if cluster else runs
    folders = [run.folder for run in runs if run.folder and run.mode == runs[0].mode]
    compare_own: OwnComparison | None = (
        added("comparisons", runs[0].mode) if len(folders) == len(runs) <= 2 else None
    )
    if compare_own and not allow_simulated:
        refuse_simulated_runs(runs)
    if compare_own and not replace(gates, min_gain=None).are_asked:
        if faults:
            raise without_effect("--faults", "a comparison of success rates or scores")
        return compare_own(folders, arm=arm, min_gain=gates.min_gain)
    if gates.min_gain is not None:
        raise KoderzError(
            "--min-gain judges a run of optimizers, or the second of two, and goes with no other gate"
        )
    runs = [with_faults_failed(run) for run in runs] if faults == "fail" else runs
    has_many = len(runs) > 2 or (len(runs) == 1 and len(runs[0].arms) > 2 and arm is None)
    by = measure_named(measure or usual_measure(runs, ranked=has_many), runs)
    if has_many and gates.are_asked:
        raise KoderzError(
            "gates judge one candidate; name one run or --arm, or the baseline and then the candidate"
        )
    if has_many and not (len(runs) == 1 and any(each.baseline for each in runs[0].arms.values())):
        if not allow_simulated:
            refuse_simulated_runs(runs)
        every = [side for run in runs for side in sides_of(run, arm)]
        return _ranked(
            every if allow_simulated else believed(every),
            alpha,
            by,
            exact=exact,
            unequal_resources=unequal_resources,
        )
    sides = pairs_to_compare(runs, arm, allow_simulated=allow_simulated)
    if not sides:
        return _alone(sides_of(runs[0], arm)[-1], gates)
    if not gates.are_asked:  # of which some judge B alone
        _require_common_tasks(runs)
    if not unequal_resources:
        require_equal_resources(*sides)
    return _gated(of_sides(sides, alpha, by, exact=exact), gates, exact=exact)


def _require_common_tasks(runs: Sequence[Run]) -> None:
    """Raises KoderzError for two runs with results that share no task."""
    tasks = [_tasks(run) for run in runs]
    if len(runs) == 2 and all(tasks) and not tasks[0] & tasks[1]:
        a, b = (
            f"{run.name} ({run.suite}, {len(own)} tasks)"
            for run, own in zip(runs, tasks, strict=True)
        )
        raise KoderzError(f"{a} and {b} have no task in common, so there is nothing to compare")


def _gated(comparison: Comparison, gates: Gates, *, exact: bool) -> Compared:
    """A comparison with the result of its gates."""
    ruled = ruling(gates, comparison.b, comparison, exact=exact)
    return Compared(
        comparison.verdict,
        partial(whole_blocks, comparison),
        partial(comparison_document, comparison),
        ruled.shut,
        ruled.hanging,
        caution_on(gates, comparison.b),
        false_alarms(gates, comparison),
        [*alarm_notes(gates, comparison)],
        [side for one in comparison.arms.values() or [comparison] for side in (one.a, one.b)],
        brief=partial(brief_blocks, comparison),
    )


def _ranked(
    sides: Sequence[Side], alpha: float, measure: Measure, *, exact: bool, unequal_resources: bool
) -> Compared:
    """The leaderboard of these sides."""
    if not unequal_resources:
        require_equal_resources(sides)
    board = leaderboard(sides, alpha, measure, exact=exact)
    found = partial(leaderboard_document, board)
    return Compared(
        "leaderboard",
        partial(leaderboard_blocks, board),
        found,
        brief=partial(_board_in_brief, board),
    )


def _board_in_brief(board: Leaderboard) -> Iterator[Block]:
    yield from board_blocks(board)
    yield Text("Methods, tests and notes: --details")


def compare_as_if_stopped(
    names: Sequence[str],
    results: Path,
    *,
    arm: str | None = None,
    measure: str | None = None,
    alpha: float = ALPHA,
    allow_simulated: bool = False,
    cluster: str | None = None,
) -> Compared:
    """Looks at complete runs, or the arms of one, as if they had been stopped once they were decided.

    Of several arms that they share, at the last. Raises KoderzError for what can't be compared so.
    """
    runs = runs_to_compare(names, results)
    runs = clustered(runs, cluster) if cluster else runs
    if len(runs) > 2:
        raise KoderzError("--sequential looks at two runs, or at the arms of one")
    sides = pairs_to_compare(runs, arm, allow_simulated=allow_simulated)
    if not sides:
        raise KoderzError(f"{runs[0].name} is one arm alone; name a second run to compare it with")
    by = measure_named(measure or usual_measure(runs), runs)
    decision = as_if_stopped(*sides[-1], by, alpha)
    return Compared(
        title_of(decision), partial(told_blocks, decision, by), lambda: {"sequential": decision}
    )


def runs_to_compare(
    names: Sequence[str], results: Path, *, allow_simulated: bool = False
) -> list[Run]:
    """The named runs, whose arms are looked at one by one for simulated models, or the last two that share tasks."""
    if names:
        return resolve(names, results, allow_simulated=True)
    return last_comparable(results, allow_simulated=allow_simulated)


def last_comparable(results: Path, *, allow_simulated: bool = False) -> list[Run]:
    """The last two runs that share tasks, baseline first; a comparative run alone if no other shares its tasks.

    Raises KoderzError where there are none.
    """
    recent: list[Run] = []
    for path in reversed(run_paths(results)[-_LOOK_BACK:]):
        run = load_run(path)
        for later in recent:
            if (allow_simulated or later.simulated == run.simulated) and _tasks(later) & _tasks(
                run
            ):
                return named_alike([run, later])
        recent.append(run)
    alone = [run for run in recent if len(run.arms) > 1 and run.results]
    if alone:
        return alone[:1]
    raise KoderzError(
        f"{results} holds no two runs on the same tasks; make some with: koderz benchmark 0 10 --mode comparative"
    )


def _tasks(run: Run) -> set[str]:
    return {result.problem_id for result in run.results}


def _alone(side: Side, gates: Gates) -> Compared:
    """The result of gates on a single arm. Raises KoderzError if no gate is asked for."""
    if not gates.are_asked:
        raise KoderzError(
            f"{side.label} is one arm alone, {side.arm}; name a second run to compare it with"
        )
    rows, ruled = partial(side_blocks, side), ruling(gates, side, None)
    caution = caution_on(gates, side)
    return Compared(
        side.label,
        rows,
        lambda: {"b": row_of(side)},
        ruled.shut,
        ruled.hanging,
        caution,
        sides=[side],
    )


def own_answer(mode: str, folder: Path) -> Compared | None:
    """The results of one run whose mode has a comparison of its own; None before it has results."""
    compare_own: OwnComparison | None = added("comparisons", mode)
    if compare_own:
        with suppress(KoderzError):
            return compare_own([folder])
    return None


class OwnComparison(Protocol):
    """A comparison of runs of a mode in a way of its own, which a system names in `comparisons`."""

    def __call__(
        self, folders: Sequence[Path], *, arm: str | None = None, min_gain: float | None = None
    ) -> Compared:
        """The answer for one run or two, given their folders; see `compare_runs` and `Gates` for the rest."""
        ...


def comparison_document(one: Comparison) -> dict[str, Any]:
    """A comparison for JSON: `pairs, a_only, b_only, mcnemar_p, difference, interval, paired, …`."""
    return {
        **{item.name: getattr(one, item.name) for item in fields(one)},
        "a": {**row_of(one.a), "failures": failures_of(one.a)},
        "b": {**row_of(one.b), "failures": failures_of(one.b)},
        "verdict": one.verdict,
        "headline": headline(one),
        "arms": {name: comparison_document(arm) for name, arm in one.arms.items()},
    }


def leaderboard_document(board: Leaderboard) -> dict[str, Any]:
    """A leaderboard for JSON; each pair also has the tiers of its two arms."""
    tiers = {standing.side.label: standing.tier for standing in board.standings}
    return {
        "leaderboard": [
            {
                **row_of(standing.side),
                "mean": standing.mean.mean,
                "mean_interval": standing.mean.interval,
                "mean_interval_method": standing.mean.interval_method,
                "level_with_best": standing.level_with_best,
                "mean_interval_together": standing.together.interval,
                "mean_interval_together_method": standing.together.interval_method,
                "ranks": standing.ranks,
                "tier": standing.tier,
            }
            for standing in board.standings
        ],
        "measure": board.measure,
        "pairwise": [
            {
                **{item.name: getattr(pair, item.name) for item in fields(pair)},
                "a_tier": tiers[pair.a],
                "b_tier": tiers[pair.b],
            }
            for pair in board.pairwise
        ],
        "alpha": board.alpha,
        "notes": board.notes,
        "unequal_resources": board.unequal_resources,
    }
