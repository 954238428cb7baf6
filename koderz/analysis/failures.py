"""Failures of attempts by cause, fixes by later attempts, and the use of tokens in solved tasks."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.pairs import Side
from koderz_tracker.index import CODES, load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.records import Attempt
from koderz_tracker.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of failed attempts, named as in verdicts."""

    cause: str
    attempts: int | None  # failed attempts of this cause; None where only outcomes are known
    experiments: int  # with at least one such attempt
    # of these, how many passed in the end; None where none was tried, or only outcomes are known
    fixed: int | None
    ended: int  # how many ended with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """One arm's failed attempts by cause, most frequent first, and the resources of its solved tasks."""

    causes: Sequence[Cause]
    from_attempts: bool  # false: there is no journal, so only how experiments ended is known
    solved_at: Mapping[int, int]  # number of the attempt that passed → experiments
    cost_by_tier: Mapping[str, float]  # US dollars
    # US dollars, failures included; None where nothing was solved
    cost_per_solved_task: float | None
    tokens_to_solution: float | None  # median of the experiments that passed

    @property
    def never_fixed(self) -> list[Cause]:
        """The causes that no later attempt fixed."""
        return [cause for cause in self.causes if cause.fixed == 0]


def failures_of(side: Side) -> Failures:
    """The failures of an arm, from its journal if it exists, else from the ends of experiments."""
    folder = side.run.folder
    results = side.results
    causes = _by_attempts(folder, side.arm, results) if folder else _by_outcome(results)
    solved = [result for result in results if result.success]
    tasks = {result.problem_id for result in solved}
    return Failures(
        causes=sorted(
            causes, key=lambda cause: (-(cause.attempts or cause.experiments), cause.cause)
        ),
        from_attempts=folder is not None,
        solved_at=dict(sorted(Counter(result.iterations for result in solved).items())),
        cost_by_tier=side.figures.cost_by_tier,
        cost_per_solved_task=sum(result.cost for result in results) / len(tasks) if tasks else None,
        tokens_to_solution=statistics.median(result.tokens for result in solved)
        if solved
        else None,
    )


def unrecovered(failures: Failures, most: int) -> str:
    """The causes that no later attempt fixed as a phrase: `refused or syntax errors`."""
    *others, last = [cause.cause for cause in failures.never_fixed[:most]]
    return f"{', '.join(others)} or {last} errors" if others else f"{last} errors"


def causes_table(found: Mapping[str, Failures], most: int | None = None) -> Table:
    """A table of causes for each named side, at most `most` of each; columns without data are left out."""
    rows = [
        [name, cause.cause]
        + [
            "" if n is None else str(n)
            for n in (cause.attempts, cause.experiments, cause.fixed, cause.ended)
        ]
        for name, failures in found.items()
        for cause in failures.causes[:most]
    ]
    heads = ["", "Cause", "Attempts", "Experiments", "Recovered", "Final"]
    shown = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    return Table([heads[n] for n in shown], [[row[n] for n in shown] for row in rows])


def _by_attempts(folder: Path, arm: str, results: Sequence[Result]) -> Iterator[Cause]:
    passed = {result.experiment_id: result.success for result in results}
    # later ones are of before a rescoring
    counted = {result.experiment_id: result.iterations for result in results}
    iterates = any(result.iterations > 1 for result in results)
    attempts: Counter[str] = Counter()
    where: dict[str, set[str]] = defaultdict(set)
    for attempt in _failed_attempts(folder, arm):
        if attempt.number <= counted.get(attempt.experiment_id, 0):
            cause = attempt.cause or attempt.verdict
            attempts[cause] += 1
            where[cause].add(attempt.experiment_id)
    ended = _endings(results)
    for cause in {*attempts, *ended}:
        yield Cause(
            cause=cause,
            attempts=attempts[cause],
            experiments=len(where[cause]),
            fixed=sum(passed[experiment] for experiment in where[cause]) if iterates else None,
            ended=ended[cause],
        )


def _by_outcome(results: Sequence[Result]) -> Iterator[Cause]:
    for cause, count in _endings(results).items():
        yield Cause(cause=cause, attempts=None, experiments=count, fixed=None, ended=count)


def _endings(results: Sequence[Result]) -> Counter[str]:
    return Counter(result.cause or result.verdict for result in results if not result.success)


def _failed_attempts(folder: Path, arm: str) -> Iterator[Attempt]:
    """The failed attempts as judged last; a rescored attempt is in the journal twice."""
    journal = folder / NAME
    spans = [entry.span for entry in load_index(journal) if entry.code == CODES["attempt"]]
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for span, attempt in zip(spans, read_records(journal, spans), strict=True):
        if isinstance(attempt, Attempt) and attempt.arm == arm:
            last[attempt.experiment_id, attempt.number] = span
    for attempt in read_records(journal, last.values()):
        if isinstance(attempt, Attempt) and not attempt.passed:
            yield attempt


def failure_blocks(a: Side, b: Side, *, on_all: bool) -> Iterator[Block]:
    """The failures of both sides of a comparison; `on_all`: of more tasks than are compared."""
    found = {"A": failures_of(a), "B": failures_of(b)}
    if any(failures.causes for failures in found.values()):
        yield Heading(f"Failed attempts by cause{', on all their tasks' if on_all else ''}")
        yield causes_table(found)
    for name, failures in found.items():
        if failures.cost_per_solved_task is None:
            took = "no task was solved"
        else:
            tiers = ", ".join(
                f"{tier} ${cost:.4f}" for tier, cost in failures.cost_by_tier.items() if cost
            )
            by_tier = f" (cost by tier: {tiers})" if tiers else ""
            cost = (
                f"${failures.cost_per_solved_task:.5f} a solved task{by_tier}, "
                if failures.cost_per_solved_task
                else ""
            )
            took = f"{cost}{failures.tokens_to_solution or 0:,.0f} tokens to a solution (median)"
        yield Text(f"{name}: {took}")
