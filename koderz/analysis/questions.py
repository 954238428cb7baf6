"""Questions of a researcher, answered from a memory store alone, by the statistics of `koderz benchmark compare`.

Each function takes an open store, its own arguments and the fields of `Chosen`, which say what it is about.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from koderz.analysis.blocks import Block, Table, Text
from koderz.analysis.brief import headline
from koderz.analysis.comparison import Comparison, of_sides
from koderz.analysis.difficulty import rankings
from koderz.analysis.inference import smallest_of
from koderz.analysis.leaderboard import Standing, leaderboard
from koderz.analysis.measures import (
    SUCCESS,
    interval_text,
    measure_named,
    named_average,
    shown,
    usual_measure,
)
from koderz.analysis.memories import Chosen, by_suite, experiments, pooled, recalled_runs, run_named
from koderz.analysis.pairs import (
    Side,
    match,
    pairs_to_compare,
    refuse_simulated,
    require_equal_resources,
    sides_of,
)
from koderz.analysis.runs import Run
from koderz.analysis.statistics import ALPHA, FEWEST_TASKS, smallest_paired_difference
from koderz.errors import KoderzError
from koderz_tracker.memory.detail import cut
from koderz_tracker.memory.memories import Memory, choose
from koderz_tracker.memory.store import Store
from koderz_tracker.records import Measure

PER_SUCCESS = "cost-per-success"
ORDERS = ("newest", "telling")
_LONGEST = 400  # characters of a lesson


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question: a sentence, and rows of which a table shows some columns."""

    sentence: str
    rows: Sequence[Mapping[str, Any]] = ()
    columns: Mapping[str, str] | None = None  # the keys of the rows by their heads in the table
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {"answer": self.sentence, "rows": self.rows, "notes": self.notes}

    def blocks(self) -> Iterator[Block]:
        """The answer as blocks to read."""
        yield Text(self.sentence)
        if self.rows and self.columns:
            yield Table(
                [*self.columns],
                [[_cell(row[key]) for key in self.columns.values()] for row in self.rows],
            )
        yield from (Text(f"note: {note}") for note in self.notes)


def _cell(value: Any) -> str:
    if isinstance(value, tuple):  # the limits of a rate, per cent
        return interval_text(tuple(limit / 100 for limit in value), SUCCESS)
    if isinstance(value, dict):
        return ", ".join(f"{name} {of_name}" for name, of_name in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def find(store: Store, *, order: str = "newest", limit: int = 10, **chosen: Any) -> Answer:
    """The chosen experiments, newest first, or the most telling: those with a lesson, then failures, then the rest."""
    choose("order", order, ORDERS)
    found, notes = experiments(store, Chosen(**chosen))
    found.sort(key=lambda memory: (memory.created_at, memory.id), reverse=True)
    if order == "telling":
        found.sort(
            key=lambda memory: (
                not memory.metadata.get("lesson"),
                bool(memory.metadata.get("success")),
            )
        )
    ends = Counter(str(_experiment_row(memory)["outcome"]) for memory in found)
    counts = ", ".join(f"{n} {word}" for word, n in ends.most_common())
    return Answer(
        sentence=f"{len(found)} experiments fit: {counts}."
        if found
        else "No experiment in this store fits.",
        rows=[_experiment_row(memory) for memory in found[:limit]],
        columns={
            name.title(): name
            for name in ("memory", "task", "arm", "model", "outcome", "when", "lesson")
        },
        notes=notes,
    )


def lessons(store: Store, *, limit: int = 10, **chosen: Any) -> Answer:
    """Distinct lessons, newest first: what failed and what passed afterwards, as --use-memory shows it to models."""
    found, notes = experiments(store, Chosen(**chosen))
    taught: dict[str, Memory] = {}
    for memory in sorted(found, key=lambda memory: -memory.id):
        if lesson := memory.metadata.get("lesson"):
            taught.setdefault(str(lesson), memory)
    rows = [
        _experiment_row(memory) | {"cause": memory.metadata.get("lesson_cause")}
        for memory in taught.values()
    ]
    return Answer(
        sentence=f"{len(rows)} distinct lessons of {len(found)} experiments that fit.",
        rows=rows[:limit],
        columns={
            "Task": "task",
            "Cause": "cause",
            "Model": "model",
            "What failed, and what passed": "lesson",
        },
        notes=notes,
    )


def _experiment_row(memory: Memory) -> dict[str, Any]:
    facts = memory.metadata
    success, lesson = facts.get("success"), str(facts.get("lesson") or "")
    if success is None:
        word = "fault"
    elif success:
        word = "passed"
    else:
        word = facts.get("verdict") or "failed"
    return {
        "memory": memory.id,
        "experiment_id": facts.get("experiment_id"),
        "run": facts.get("benchmark_run_id"),
        "suite": facts.get("suite"),
        "task": facts.get("problem_id"),
        "arm": facts.get("arm") or facts.get("solver"),
        "model": facts.get("model"),
        "outcome": f"{word} ({facts['cause']})" if facts.get("cause") else word,
        "score": facts.get("score"),
        "when": memory.created_at[:19],
        "lesson": cut(lesson, _LONGEST),
    }


def _judged_runs(store: Store, **chosen: Any) -> tuple[list[Run], list[str]]:
    """The chosen runs with results. Raises KoderzError where there are none, and for a choice by outcome."""
    asked = Chosen(**chosen)
    if asked.outcome is not None or asked.cause is not None:
        raise KoderzError(
            "a rate among experiments that are chosen by how they ended means nothing; find and lessons take an "
            "outcome and a cause"
        )
    runs, notes = recalled_runs(store, asked)
    if not any(run.results for run in runs):
        raise KoderzError(
            "no result in this memory store fits; see what there is with: koderz memory find"
        )
    return [run for run in runs if run.results], notes


def _rate(
    successes: int, n: int, rate: float | None, interval: Any, method: str | None
) -> dict[str, Any]:
    """A success rate as JSON, per cent, never without its n and its interval, or why there is none."""
    limits = interval and tuple(interval)
    passed = {"n": n, "successes": successes, "passed": f"{successes} of {n}"}
    return {**passed, "success_rate": rate, "interval": limits, "interval_method": method}


def _rate_of(side: Side) -> dict[str, Any]:
    own = side.figures
    interval, method = own.success_rate_interval, own.success_rate_interval_method
    return _rate(own.successes, own.total_problems, own.success_rate, interval, method)


def best(store: Store, *, by: str | None = None, limit: int = 10, **chosen: Any) -> Answer:
    """Arms and models of each suite, best first by a measure or `cost-per-success`, and those that are level."""
    runs, notes = _judged_runs(store, **chosen)
    sentences, rows, head = list[str](), list[dict[str, Any]](), dict[str, str]()
    for suite, own in by_suite(runs):
        sides, more = pooled(own)
        measure = measure_named(usual_measure(own) if by in (None, PER_SUCCESS) else str(by), own)
        board = leaderboard([*sides], measure=measure)
        notes += [f"{suite}: {note}" for note in (*more, *board.notes)]
        head |= {} if measure.name == SUCCESS.name else {named_average(measure): "mean"}
        spans = {one.side: _span_per_success(one, len(board.standings)) for one in board.standings}
        ranked, level = board.standings, [one for one in board.standings if one.level_with_best]
        if by == PER_SUCCESS:
            ranked = sorted(
                ranked, key=lambda one: (one.side.figures.cost_per_success or 0.0, -one.mean.mean)
            )
            ranked.sort(key=lambda one: one.side.figures.cost_per_success is None)
            level = [
                one
                for one in ranked
                if one is ranked[0] or spans[one.side][0] <= spans[ranked[0].side][1]
            ]
        sentences.append(
            _best_sentence(suite, measure, ranked, level, per_success=by == PER_SUCCESS)
        )
        leading = "best" if len(level) == 1 else "level"
        rows += [
            {
                "suite": suite,
                "place": place,
                "model": one.side.model,
                "arm": one.side.arm,
                **_rate_of(one.side),
                "measure": measure.name,
                "mean": one.mean.mean,
                "mean_interval": one.mean.interval,
                "cost_per_success": one.side.figures.cost_per_success,
                "cost_per_success_interval": spans[one.side],
                "verdict": leading if one in level else "worse",
                "ranks": list(one.ranks),
                "runs": sides[one.side][-5:],
                "simulated": one.side.simulated,
            }
            for place, one in enumerate(ranked[:limit], 1)
        ]
    columns = {
        "Suite": "suite",
        "": "place",
        "Model": "model",
        "Arm": "arm",
        "Passed": "passed",
        "95%": "interval",
    }
    columns |= {**head, "$ a success": "cost_per_success", "Verdict": "verdict"}
    return Answer(sentence=" ".join(sentences), rows=rows, columns=columns, notes=notes)


def _span_per_success(standing: Standing, count: int) -> tuple[float, float]:
    """An interval of the cost a success, US dollars, which holds together with those of all `count` standings.

    The average cost is divided by the rate, each with an interval of Bonferroni's share: it is rather too wide.
    """
    run, limits = standing.side.run, []
    for name, least, most in (("cost", 0.0, math.inf), (SUCCESS.name, 0.0, 1.0)):
        mean = standing.side.mean(measure_named(name, [run]), together=2 * count)
        limits.append((mean and mean.interval) or (least, most))
    (cheapest, dearest), (seldom, often) = limits
    return max(0.0, cheapest) / often if often else 0.0, dearest / seldom if seldom else math.inf


def _best_sentence(
    suite: str,
    measure: Measure,
    ranked: Sequence[Standing],
    level: Sequence[Standing],
    *,
    per_success: bool,
) -> str:
    def named(one: Standing) -> str:
        own = one.side.figures
        figure = shown(one.mean.mean, measure)
        if per_success:
            figure = (
                f"${own.cost_per_success:.5f} a success"
                if own.cost_per_success is not None
                else "no success"
            )
        return f"{one.side.label} ({figure}, {own.successes} of {own.total_problems})"

    first, others = named(ranked[0]), [one for one in level if one is not ranked[0]]
    if len(ranked) == 1:
        return f"On {suite}, {first} stands alone."
    if not others:
        return f"Best on {suite}: {first}; {len(ranked) - 1} shown to be worse."
    names = ", ".join(map(named, others[:3])) + (
        f" and {len(others) - 3} more" if len(others) > 3 else ""
    )
    tie = f"A tie on {suite}: {first} can't be told from {names}."
    return tie if per_success else f"{tie} {_could_show(others[0].side, ranked[0].side, measure)}"


def _could_show(a: Side, b: Side, measure: Measure) -> str:
    """A sentence on the difference that the tasks of two sides could have shown at all."""
    matched = match(a, b, measure)
    on = (
        f"{len(matched.tasks)} tasks in common" if matched.paired else "tasks that they don't share"
    )
    size = smallest_of(matched, ALPHA)
    if not size:
        return f"On {on} no difference could have been shown."
    return (
        f"On {on} a difference shows from about {shown(size, measure, signed=True).lstrip('+')} on."
    )


def hardest(store: Store, *, cause: str | None = None, limit: int = 10, **chosen: Any) -> Answer:
    """Tasks by how seldom they pass, in any arm or the chosen one: how often they were tried, and why they failed.

    With a cause, those tasks that failed so at least once.
    """
    runs, notes = _judged_runs(store, **chosen)
    sides = [side for run in runs for side in sides_of(run)]
    causes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for side in sides:
        for result in side.results:
            if not result.success:
                causes[side.run.suite, result.problem_id][result.cause or result.verdict] += 1
    rows, sentences = list[dict[str, Any]](), list[str]()
    for ranking in rankings(sides, SUCCESS.name):
        of_tasks = {
            each.problem_id: causes[ranking.suite, each.problem_id] for each in ranking.problems
        }
        meant = [
            each
            for each in ranking.problems
            if cause is None or _failed_so(of_tasks[each.problem_id], cause)
        ]
        never = [each.experiments for each in meant if not each.successes]
        tries = f", tried {min(never)} to {max(never)} times" if never else ""
        sentences.append(
            f"{len(never)} of {len(meant)} tasks of {ranking.suite} never passed{tries}."
        )
        rows += [
            {
                "suite": ranking.suite,
                "task": each.problem_id,
                "runs": each.runs,
                **_rate(
                    each.successes,
                    each.experiments,
                    each.success_rate,
                    each.interval,
                    each.interval_method,
                ),
                "causes": dict(of_tasks[each.problem_id].most_common(5)),
                "passed_by": list(each.solved_by)[:5],
                "failed_by": list(each.unsolved_by)[:5],
            }
            for each in meant[:limit]
        ]
    columns = {
        "Task": "task",
        "Passed": "passed",
        "95%": "interval",
        "Not passed": "causes",
        "By": "passed_by",
    }
    return Answer(sentence=" ".join(sentences), rows=rows, columns=columns, notes=notes)


def _failed_so(causes: Counter[str], cause: str) -> bool:
    return any(cause in (each, each.partition(":")[0]) for each in causes)


def compare(
    store: Store, a: str, b: str | None = None, *, measure: str | None = None, **chosen: Any
) -> Answer:
    """Two runs, arms or models, or the arms of one run, by their memories: the verdict of compare with its interval."""
    found, notes = compared(store, a, b, measure=measure, **chosen)
    rows, sentences = list[dict[str, Any]](), list[str]()
    for one in list(found.arms.values()) or [found]:
        could = (
            ""
            if one.significant or one.smallest_difference
            else f" {_could_show(one.a, one.b, one.measure)}"
        )
        sentences.append(f"A: {one.a.label}, B: {one.b.label}. {headline(one)}{could}")
        told = (
            "difference",
            "p_value",
            "p_holm",
            "method",
            "significant",
            "smallest_difference",
            "a_only",
            "b_only",
        )
        rows.append(
            {
                "a": one.a.label,
                "b": one.b.label,
                "verdict": headline(one),
                "measure": one.measure.name,
                "n": one.pairs or one.a_compared.tasks + one.b_compared.tasks,
                "paired": one.paired,
                "interval": one.interval_holm,
                "interval_method": one.interval_holm_method,
                **{name: getattr(one, name) for name in told},
            }
        )
        notes += [note for note in one.notes if note not in notes]
    return Answer(sentence=" ".join(sentences), rows=rows, notes=notes)


def compared(
    store: Store, a: str, b: str | None = None, *, measure: str | None = None, **chosen: Any
) -> tuple[Comparison, list[str]]:
    """The comparison of what two names mean in the store, or of one run's arms; and notes.

    Raises KoderzError for a name that means nothing, and where nothing can be compared.
    """
    names, notes = [a] if b is None else [a, b], list[str]()
    ids = [_run_or_none(store, name) for name in names]
    simulated = bool(chosen.pop("allow_simulated", False))
    if all(ids):
        arm = chosen.pop("arm", None)
        runs = [
            _judged_runs(store, **{**chosen, "run": run, "allow_simulated": True})[0][0]
            for run in ids
        ]
        pairs = pairs_to_compare(runs, arm, allow_simulated=simulated)
    elif any(ids) or b is None:
        raise KoderzError(
            f"{' and '.join(names)}: name two runs of the store, one with several arms, two models or arms"
        )
    else:
        runs, notes = _judged_runs(store, **chosen, allow_simulated=simulated)
        pairs = [
            pair for _, own in by_suite(runs) for pair in _pairs_named([*pooled(own)[0]], a, b)
        ]
        if not simulated:
            refuse_simulated(pairs)
    if not pairs:
        there = dict.fromkeys(side.label for run in runs for side in sides_of(run))
        raise KoderzError(
            f"{' and '.join(names)} give no two arms to compare; there are {', '.join([*there][:12])}"
        )
    require_equal_resources(*pairs)
    every = [side.run for pair in pairs for side in pair]
    return of_sides(pairs, ALPHA, measure_named(measure or usual_measure(every), every)), notes


def _run_or_none(store: Store, name: str) -> str | None:
    with suppress(KoderzError):
        return run_named(store, name)
    return None


def _pairs_named(sides: Sequence[Side], a: str, b: str) -> list[tuple[Side, Side]]:
    """The sides that two names mean: of two models in the same arm, of two arms of the same model."""
    of_a, of_b = (
        [side for side in sides if name in (side.model, side.arm, side.label)] for name in (a, b)
    )
    if len(of_a) == len(of_b) == 1:
        return [(of_a[0], of_b[0])]
    return [(x, y) for x in of_a for y in of_b if (x.arm == y.arm) != (x.model == y.model)]


def tried(
    store: Store,
    plan: str = "",
    *,
    suite: str | None = None,
    model: str | None = None,
    solver: str | None = None,
    arm: str | None = None,
    settings: Mapping[str, str] | None = None,
    limit: int = 5,
    **chosen: Any,
) -> Answer:
    """The earlier arms nearest to a plan: what differed, what they gave, and what difference they could have shown.

    `plan` in words names suites, models, solvers, arms and settings (`temperature 0.8`), in any order.
    """
    options = {"suite": suite, "model": model, "solver": solver, "arm": arm, **(settings or {})}
    runs, notes = _judged_runs(store, **chosen)
    sides = [(side, _facts(side)) for run in runs for side in sides_of(run)]
    spoken, unknown = _wishes_in(plan, [facts for _, facts in sides])
    wishes = {
        **spoken,
        **{name.replace("-", "_"): value for name, value in options.items() if value is not None},
    }
    if not wishes:
        raise KoderzError(
            "say what is planned by names that earlier runs know: a suite, model, solver or setting"
        )
    near = [
        (
            side,
            {
                name: facts.get(name)
                for name, value in wishes.items()
                if not _alike(facts.get(name), value)
            },
        )
        for side, facts in reversed(sides)  # of those that are as near, the newest
    ]
    near = sorted(
        (each for each in near if len(each[1]) < len(wishes)), key=lambda each: len(each[1])
    )
    rows = [
        {
            "run": side.run.name,
            "suite": side.run.source,
            "model": side.model,
            "arm": side.arm,
            **_rate_of(side),
            "differs": differs,
            "cost": side.figures.total_cost,
            "could_show": _smallest_rate_difference(side),
        }
        for side, differs in near[:limit]
    ]
    sentence = "Nothing like it was tried, as far as this store knows."
    if rows:
        first, same = rows[0], not rows[0]["differs"] and not unknown
        begin = "Tried before:" if same else "Not tried as planned; the nearest:"
        but = "" if same else f" ({_differing(first)})"
        sentence = f"{begin} {first['model']} {first['arm']} in {first['run']}{but} passed {first['passed']}."
    notes += [f"no earlier run knows of {', '.join(unknown)}"] if unknown else []
    columns = {"Run": "run", "Model": "model", "Arm": "arm", "Passed": "passed", "95%": "interval"}
    columns |= {"Differs": "differs", "Shows from (points)": "could_show"}
    return Answer(sentence=sentence, rows=rows, columns=columns, notes=notes)


def _differing(row: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{name} was {value}" for name, value in row["differs"].items())
        or "of what is known"
    )


def _smallest_rate_difference(side: Side) -> float | None:
    """The difference in points that another arm on these tasks would have to make to be shown; None: none would.

    As many tasks are taken to flip as with an arm of the same rate whose outcomes have nothing to do with these.
    """
    rate, tasks = (
        (side.figures.successes + 1) / (side.figures.total_problems + 2),
        len(side.by_task()),
    )
    smallest = (
        smallest_paired_difference(tasks, 2 * rate * (1 - rate)) if tasks >= FEWEST_TASKS else None
    )
    return smallest and round(100 * smallest, 1)


def _facts(side: Side) -> dict[str, Any]:
    """The facts by which a plan may name an arm: its run's settings, its suite, model, solver and name."""
    settings = {
        name: value
        for name, value in side.run.config.items()
        if isinstance(value, str | int | float)
    }
    return settings | {
        "suite": side.run.source,
        "model": side.model,
        "solver": side.solver,
        "arm": side.arm,
    }


def _alike(value: Any, wanted: str) -> bool:
    with suppress(ValueError):
        return float(wanted) == float(value) and not isinstance(value, bool)
    return str(value).lower().replace("_", "-") == wanted.lower().replace("_", "-")


def _wishes_in(plan: str, known: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[str]]:
    """The values that a plan in words asks for, as far as earlier arms know the words; and names that none knows."""
    words, settings = re.findall(r"[^\s,;=]+", plan), {name for facts in known for name in facts}
    wishes, unknown = dict[str, str](), list[str]()
    while words:
        word = words.pop(0)
        name = word.strip("-").replace("-", "_").lower()
        of_arms = (
            key
            for key in ("suite", "model", "solver", "arm")
            if any(_alike(each[key], word) for each in known)
        )
        if name in settings and words:
            wishes[name] = words.pop(0)
        elif key := next(of_arms, None):
            wishes[key] = word
        elif re.search(r"[\d/:_-]", word):  # a name, not a word between names
            unknown.append(word)
    return wishes, unknown
