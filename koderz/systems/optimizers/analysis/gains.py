"""The gains of optimizers: how far their winners, the initial prompt and random search lie apart on the test items.

A search is drawn as its items are: with another seed an optimizer finds another prompt. From `FEWEST_SEARCHES` on, a
difference is one of optimizers, whose interval holds for other searches and other items alike. Below, too little is
known of how far searches lie apart, so the difference is one of the prompts that were found, on other items.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from koderz.analysis import statistics
from koderz.analysis.inference import interval_of, is_shown, method_of, p_of, smallest_of
from koderz.analysis.intervals import FEWEST_TO_RESAMPLE, Interval
from koderz.analysis.pairs import matched
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.payload import NO_RECORD, DatasetRecords
from koderz_tracker import records
from koderz_tracker.index import CODES, load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.records import Measure
from koderz_tracker.results import Clusters, count_of, members, method_in, no_interval
from koderz_tracker.runs import read_plan
from koderz_tracker.sequential import STOPS

RANDOM = "random_search"
BETTER_PROMPTS, WORSE_PROMPTS = "prompts better", "prompts worse"
"""Verdicts on the found prompts, used if there are too few searches for one on the optimizer."""

_MOST_FAULTY = 0.02  # share of test items that can't be judged
_KINDS = ("once", "grade", "experiment")


@dataclass(frozen=True, slots=True)
class Search:
    """A completed experiment: one optimizer on one dataset, for one model, with one seed."""

    experiment: records.Experiment
    seed: int
    result: Mapping[str, Any]  # what the evaluator put on record
    scores: Scores  # of the winner on the test items; empty where it is the initial prompt
    unread: frozenset[str]  # test items that couldn't be judged
    clusters: Mapping[str, str]  # of the test items that share a passage or the like with others
    optimizer: str  # its name for users

    @property
    def place(self) -> tuple[str, str]:
        """The search's dataset and model."""
        return self.experiment.problem_id, self.experiment.model

    @property
    def unread_share(self) -> float | None:
        """The share of the winner's test replies whose answer couldn't be read; None if not on record."""
        share = self.result.get("unread")
        return None if share is None else float(share)

    def with_scores_of(self, base: Search | None) -> Search:
        """The search with the baseline's scores if its winner is the initial prompt, which isn't asked again."""
        if self.scores or base is None:
            return self
        result = {**self.result, "unread": base.result.get("unread")}
        return replace(self, scores=base.scores, unread=base.unread, result=result)


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRow:
    """One optimizer on one dataset, for one model, over its seeds."""

    dataset: str
    model: str
    optimizer: str
    n: int
    baseline: float | None
    score: float | None
    gain: float | None
    interval: Interval | None
    p: float | None
    p_adjusted: float | None
    # helps, hurts, no evidence, not comparable; of prompts `BETTER_PROMPTS` and `WORSE_PROMPTS`
    verdict: str
    detectable: float | None
    vs_random: Mapping[str, Any] | None
    metric_calls: int
    reasoning_calls: int
    cost_usd: float
    cost_known: bool
    faults: int
    seeds: Sequence[Mapping[str, Any]]
    # share of the winners' test replies whose answer couldn't be read; None: not known
    unread: float | None = None
    baseline_unread: float | None = None  # the same of the initial prompt
    reasons: Sequence[str] = field(default=())  # why it isn't comparable
    # what the verdict is about: the optimizer, or the prompts that its searches have found
    about: About = "prompts"
    method: str | None = None  # of the test
    interval_method: str | None = None
    # corrected for the optimizers beside it; agrees with the verdict
    interval_adjusted: Interval | None = None
    clusters: int | None = None  # in which the test items are; None: each stands alone


def searches_of(folder: Path) -> list[Search]:
    """The completed experiments of the run in `folder`, in the order of their ends."""
    journal = folder / NAME
    plan = read_plan(folder)
    wanted = {CODES[kind] for kind in _KINDS}
    results: dict[str, Mapping[str, Any]] = {}
    grades: dict[str, list[records.Grade]] = defaultdict(list)
    ended: dict[str, records.Experiment] = {}
    for line in read_records(
        journal, [entry.span for entry in load_index(journal) if entry.code in wanted]
    ):
        if (
            isinstance(line, records.Once)
            and line.name == "result"
            and isinstance(line.value, dict)
        ):
            results[line.experiment_id] = line.value
        elif isinstance(line, records.Grade) and line.labels.get("split") == "test":
            grades[line.experiment_id].append(line)
        elif isinstance(line, records.Experiment):
            ended[line.experiment_id] = line
    first = int(plan.config.get("seed") or 0)
    datasets = plan.suite_details(DatasetRecords)
    titles = {arm.name: arm.title for arm in plan.arms}
    return [
        Search(
            experiment,
            first + experiment.sample,
            results[name],
            {grade.item: grade.score for grade in grades[name] if "fault" not in grade.labels},
            frozenset(grade.item for grade in grades[name] if "fault" in grade.labels),
            datasets.get(experiment.problem_id, NO_RECORD).clusters,
            titles.get(experiment.arm, experiment.arm),
        )
        for name, experiment in ended.items()
        if name in results
    ]


def rows_of(plan: records.Plan, searches: Sequence[Search]) -> list[GainRow]:
    """A row for each optimizer of each dataset and model, Holm-corrected within each of these."""
    rows: list[GainRow] = []
    for dataset in plan.tasks:
        for model in dict.fromkeys(plan.model_of(arm.name) for arm in plan.arms):
            here = [search for search in searches if search.place == (dataset, model)]
            names = [
                arm.title
                for arm in plan.arms
                if plan.model_of(arm.name) == model and arm.solver != BASELINE
            ]
            groups = [_Group(plan, here, name) for name in dict.fromkeys(names)]
            groups = [group for group in groups if group.searches]
            helped = _holm([group.gain for group in groups])
            beaten = _holm([group.over_random for group in groups])
            counts = sum(p is not None for p in helped), sum(p is not None for p in beaten)
            rows += [
                _row(group, p, of_random, counts)
                for group, p, of_random in zip(groups, helped, beaten, strict=True)
            ]
    return rows


def gain_over_seeds(
    plans: Sequence[records.Plan],
    a: Sequence[Search],
    b: Sequence[Search],
    *,
    is_fixed: bool = False,
) -> Gain | None:
    """B less A, each averaged over its searches; None if they have no item in common.

    `plans`: those of their runs. `is_fixed`: A is the initial prompt, and no search.
    """
    untested = STOPS if any(plan.until_decided for plan in plans) else ""
    of_a, of_b = ([search.scores for search in side] for side in (a, b))
    return gain_of(of_a, of_b, b[0].clusters, is_fixed=is_fixed, untested=untested)


class _Group:
    """The searches of one optimizer on one dataset for one model, beside the baseline and random search."""

    def __init__(self, plan: records.Plan, here: Sequence[Search], optimizer: str) -> None:
        self.optimizer = optimizer
        self.plan, self.here = plan, here
        self.base = next((search for search in here if search.optimizer == BASELINE), None)
        self.searches = self._of(optimizer)
        base = [self.base] if self.base else []
        self.gain = (
            gain_over_seeds([plan], base, self.searches, is_fixed=True)
            if base and self.searches
            else None
        )
        others = self._of(RANDOM) if optimizer != RANDOM else []
        self.over_random = (
            gain_over_seeds([plan], others, self.searches) if others and self.searches else None
        )

    def _of(self, optimizer: str) -> list[Search]:
        found = [
            search.with_scores_of(self.base)
            for search in self.here
            if search.optimizer == optimizer
        ]
        return sorted(found, key=lambda search: search.seed)

    def reasons(self) -> Iterator[str]:
        """The reasons why the group isn't comparable."""
        if self.plan.config.get("test_mode"):
            yield "test mode (5 items a split)"
        if self.plan.until_decided:
            yield "the run stops once it is decided, and is compared by its decision alone"
        if self.base is None:
            yield "no baseline: the experiment of none has not ended"
        used = [*self.searches, *([self.base] if self.base else [])]
        unread = frozenset(item for search in used for item in search.unread)
        total = len(unread) + (self.gain.n if self.gain else 0)
        if len(unread) > _MOST_FAULTY * total:
            yield f"{len(unread)} of {total} test items could not be judged"
        if len({search.result["budget_calls"] for search in self.here}) > 1:
            yield "unequal caps"
        leakage = self.plan.suite_details(DatasetRecords).get(self._dataset, NO_RECORD).leakage
        if leakage and leakage.policy == "keep" and (leakage.exact or leakage.near):
            yield "items that leak from one split into another were kept"

    @property
    def _dataset(self) -> str:
        return self.here[0].experiment.problem_id if self.here else ""


def _holm(gains: Sequence[Gain | None]) -> list[float | None]:
    adjusted = iter(statistics.holm([gain.p for gain in gains if gain]))
    return [next(adjusted) if gain else None for gain in gains]


def _row(
    group: _Group, p_adjusted: float | None, p_random: float | None, counts: tuple[int, int]
) -> GainRow:
    gain, reasons = group.gain, tuple(group.reasons())
    outcomes = [search.experiment for search in group.searches]
    adjusted = gain.together(counts[0], p_adjusted) if gain else None
    shares = [search.unread_share for search in group.searches]
    read_shares = [share for share in shares if share is not None]
    return GainRow(
        dataset=outcomes[0].problem_id,
        model=outcomes[0].model,
        optimizer=group.optimizer,
        n=gain.n if gain else 0,
        baseline=gain.a if gain else None,
        score=gain.b if gain else None,
        gain=gain.gain if gain else None,
        interval=gain.interval if gain else None,
        p=gain.p if gain else None,
        p_adjusted=p_adjusted,
        verdict="not comparable"
        if reasons or gain is None
        else claim(gain, p_adjusted, adjusted, "helps", "hurts"),
        detectable=gain.detectable if gain else None,
        vs_random=_vs_random(group.over_random, p_random, counts[1], comparable=not reasons),
        metric_calls=sum(search.result["metric_calls"] for search in group.searches),
        reasoning_calls=sum(search.result["reasoning_calls"] for search in group.searches),
        cost_usd=sum(outcome.cost for outcome in outcomes),
        cost_known=all(outcome.cost_known for outcome in outcomes),
        faults=sum(search.result["faults"] for search in group.searches),
        seeds=[_seed(group, search) for search in group.searches],
        unread=fmean(read_shares) if read_shares and len(read_shares) == len(shares) else None,
        baseline_unread=group.base.unread_share if group.base else None,
        reasons=reasons,
        about=gain.about if gain else "prompts",
        method=gain.method if gain else None,
        interval_method=gain.interval_method if gain else None,
        interval_adjusted=adjusted[0] if adjusted else None,
        clusters=gain.clusters if gain else None,
    )


def _vs_random(
    gain: Gain | None, p_adjusted: float | None, count: int, *, comparable: bool
) -> dict[str, Any] | None:
    """An optimizer against random search: `beats` is about optimizers, `prompts_better` about found prompts."""
    if gain is None:
        return None
    adjusted = gain.together(count, p_adjusted)
    words = claim(gain, p_adjusted, adjusted, "beats", "") if comparable else ""
    return {
        "gain": gain.gain,
        "interval": gain.interval,
        "p_adjusted": p_adjusted,
        "beats": words == "beats",
        "prompts_better": words == BETTER_PROMPTS,
        "about": gain.about,
        "method": gain.method,
        "interval_method": gain.interval_method,
        "interval_adjusted": adjusted[0] if adjusted else None,
    }


def claim(
    gain: Gain,
    p_adjusted: float | None,
    adjusted: tuple[Interval, str] | None,
    better: str,
    worse: str,
) -> str:
    """The claim about a difference that its corrected p-value and interval support.

    `better` and `worse` are said of optimizers; of the prompts that were found there are words of their own.
    """
    if adjusted is None or p_adjusted is None or p_adjusted >= statistics.ALPHA:
        return "no evidence"
    (low, high), _ = adjusted
    if gain.about == "prompts":
        better, worse = BETTER_PROMPTS, WORSE_PROMPTS
    if low > 0:
        return better
    return worse if high < 0 else "no evidence"


def _seed(group: _Group, search: Search) -> dict[str, Any]:
    own = (
        gain_of([group.base.scores], [search.scores], search.clusters, is_fixed=True)
        if group.base
        else None
    )
    result = search.result
    return {
        "seed": search.seed,
        "experiment_id": search.experiment.experiment_id,
        "score": own.b if own else search.experiment.score,
        "gain": own.gain if own else None,
        "validation": result["validation"].get(result["winner"]),
        "validation_n": result["validation_n"],
        "metric_calls": result["metric_calls"],
        "kept_initial": result["kept_initial"],
        "finish_reason": result["finish_reason"],
    }


FEWEST_SEARCHES = 5
"""The fewest searches of an optimizer for a claim about it; below, a variance is known to a factor of 8 at best."""

Scores = Mapping[str, float]
"""Scores by the ids of test items."""

Limits = Callable[[float, bool], tuple[Interval, str] | None]
"""The interval at an alpha and its method. It excludes 0 exactly if a difference is shown, the second argument."""

About = Literal["optimizer", "prompts"]


@dataclass(frozen=True, slots=True, eq=False)
class Gain:
    """B less A on the items that both have, as fractions, averaged over searches."""

    n: int
    a: float
    b: float
    gain: float
    interval: Interval | None  # 95 %; None below 20 items
    interval_method: str | None  # without an interval, why, where that is known
    p: float
    method: str  # of the test
    # the smallest difference that so many items and searches show with a power of 0.8
    detectable: float | None
    about: About  # what a claim may be about
    prompts: int  # of B, one a search
    clusters: int | None  # in which the items are; None: each stands alone
    limits: Limits = field(repr=False)

    def together(self, count: int, p_adjusted: float | None) -> tuple[Interval, str] | None:
        """The interval as one of `count` that hold together, by Bonferroni's inequality, and its method."""
        if self.interval is None or p_adjusted is None:
            return None
        return self.limits(statistics.ALPHA / count, p_adjusted < statistics.ALPHA)


def gain_of(
    a: Sequence[Scores],
    b: Sequence[Scores],
    clusters: Clusters | None = None,
    *,
    is_fixed: bool = False,
    untested: str = "",
) -> Gain | None:
    """B's scores less A's, item by item; None if they have no item in common.

    `a` and `b` have the scores of each search; `is_fixed`: A is no search, but one prompt that was there before;
    `untested`: the reason for which nothing is tested, and there is no interval.
    """
    items = [item for item in (a[0] if a else ()) if all(item in scores for scores in (*a, *b))]
    if not items or not b:
        return None
    of = clusters or {}
    count = count_of(items, of)
    reason = untested or no_interval(len(items), count).replace("tasks", "items")
    fewest = len(b) if is_fixed else min(len(a), len(b))
    about: About = (
        "optimizer" if fewest >= FEWEST_SEARCHES and len(items) > 1 and not reason else "prompts"
    )
    p, method, limits, detectable = (_of_searches if about == "optimizer" else _of_items)(
        a, b, items, of
    )
    known = (
        None
        if reason or len(items) < FEWEST_TO_RESAMPLE
        else limits(statistics.ALPHA, p < statistics.ALPHA)
    )
    interval, interval_method = known or (None, reason or None)
    before, after = (fmean(scores[item] for scores in side for item in items) for side in (a, b))
    return Gain(
        n=len(items),
        a=before,
        b=after,
        gain=after - before,
        interval=interval,
        interval_method=interval_method,
        p=1.0 if reason else p,
        method=untested or method,
        detectable=None if reason else detectable,
        about=about,
        prompts=len(b),
        clusters=count,
        limits=limits,
    )


Estimated = tuple[float, str, Limits, float | None]
"""The p-value of no difference, the test's name, the intervals, and the smallest difference that could be shown."""


def _of_items(
    a: Sequence[Scores], b: Sequence[Scores], items: Sequence[str], clusters: Clusters
) -> Estimated:
    """The estimate for other items and the same prompts."""
    one = len(a) == len(b) == 1
    before, after = (
        {item: [fmean(scores[item] for scores in side)] for item in items} for side in (a, b)
    )
    pairs = matched(
        Measure(name="score", direction="higher", two_valued=one), before, after, clusters
    )
    p = p_of(pairs) or 0.0
    differences = {after[item][0] - before[item][0] for item in items}

    def limits(alpha: float, shown: bool) -> tuple[Interval, str] | None:
        if len(differences) == 1:
            (all_alike,) = differences
            return (all_alike, all_alike), "all items differ alike"
        return interval_of(pairs, alpha, shown=shown and is_shown(pairs, 0.0, alpha))

    return p, method_of(pairs), limits, smallest_of(pairs, statistics.ALPHA) or None


def _of_searches(
    a: Sequence[Scores], b: Sequence[Scores], items: Sequence[str], clusters: Clusters
) -> Estimated:
    """The estimate for other searches and other items."""
    place = {item: number for number, item in enumerate(items)}
    found = crossed(
        [[scores[item] for item in items] for scores in a],
        [[scores[item] for item in items] for scores in b],
        [[place[item] for item in group] for group in members(items, clusters)],
    )
    method = method_in("Student's t, searches and items crossed", count_of(items, clusters))

    def limits(alpha: float, shown: bool) -> tuple[Interval, str] | None:
        low, high = found.interval(alpha)
        if shown:
            low, high = (
                (max(low, math.ulp(0.0)), high)
                if found.difference > 0
                else (low, min(high, -math.ulp(0.0)))
            )
        elif found.error:
            low, high = min(low, 0.0), max(high, 0.0)
        return (low, high), method

    return found.p, method, limits, found.smallest() or None


@dataclass(frozen=True, slots=True)
class Crossed:
    """A mean difference with its error from both searches and items."""

    difference: float
    error: float
    freedom: float  # degrees, after Satterthwaite

    @property
    def p(self) -> float:
        """The two-sided p-value of no difference."""
        from scipy.stats import t

        if not self.error:
            return 0.0 if self.difference else 1.0
        return float(2 * t.sf(abs(self.difference) / self.error, self.freedom))

    def interval(self, alpha: float) -> Interval:
        """The interval of the difference of scores from 0 to 1, within -1 and 1."""
        half = self._quantile(1 - alpha / 2) * self.error if self.error else 0.0
        return max(-1.0, self.difference - half), min(1.0, self.difference + half)

    def smallest(self, alpha: float = statistics.ALPHA, power: float = statistics.POWER) -> float:
        """The smallest true difference that shows with `power`."""
        return (
            (self._quantile(1 - alpha / 2) + self._quantile(power)) * self.error
            if self.error
            else 0.0
        )

    def _quantile(self, share: float) -> float:
        from scipy.stats import t

        return float(t.ppf(share, self.freedom))


def crossed(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]
) -> Crossed:
    """The mean of B's scores less A's, where each search has scored the same items: a row a search.

    `groups`, two or more, have the positions of the items of each cluster. The variance is that of the items' mean
    differences, and of the means of either side's searches where these are several, less what both have of the
    residuals: searches and items are crossed random effects. Sources: A. C. Cameron, J. B. Gelbach & D. L. Miller,
    "Robust inference with multiway clustering", J. Bus. Econ. Stat. 29 (2011), 238-249; F. E. Satterthwaite, "An
    approximate distribution of estimates of variance components", Biometrics Bulletin 2 (1946), 110-114.
    """
    import numpy as np

    of_a, of_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    items, count = of_a.shape[1], len(groups)
    membership = np.zeros(items, dtype=np.intp)
    for number, group in enumerate(groups):
        membership[list(group)] = number

    def by_group(residuals: Any) -> float:
        """The variance of a mean of so many items, from the deviations of groups of them."""
        sums = np.bincount(membership, residuals, minlength=count)
        return float(np.sum(sums**2) / items**2 * count / (count - 1))

    differences = of_b.mean(axis=0) - of_a.mean(axis=0)
    mean = float(differences.mean())
    variance = by_group(differences - mean)
    parts = [(variance, count - 1)]
    for side in (of_a, of_b):
        searches = len(side)
        if searches > 1:
            of_searches = float(side.mean(axis=1).var(ddof=1)) / searches
            residuals = side - side.mean(axis=1, keepdims=True) - side.mean(axis=0) + side.mean()
            shared = sum(map(by_group, residuals)) / (searches - 1) / searches
            if of_searches > shared:
                variance += of_searches - shared
                parts.append((of_searches, searches - 1))
    weights = sum(part**2 / freedom for part, freedom in parts)
    return Crossed(mean, math.sqrt(variance), variance**2 / weights if weights else math.inf)
