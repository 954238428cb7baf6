"""What the rollouts of a run come to, task by task: pass@k and scores, with intervals that are clustered by task."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tracker.parts import Part
from tracker.rates import PASS_AT, pass_at_k, wilson

if TYPE_CHECKING:
    from tracker.records import Plan
    from tracker.summary import Result

_DRAWS, _SEED = 2000, 20260131
_EVERY_K = 10  # up to here each k is told, beyond the usual ones
_OUTER = (0.025, 0.975)

Interval = tuple[float, float]


class RolloutFigures(Part):
    """The part `rollouts` of a run."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """By arm: `pass_at_k`, each with its 95 % interval, the `score`'s mean, interval and maximum, and `tasks`."""
        return {arm: _of_arm(own) for arm, own in results.items() if own}


FIGURES = RolloutFigures()


def told(part: Mapping[str, Any]) -> Iterator[str]:
    """A line for each arm of the part, with the usual k alone."""
    for arm, own in part.items():
        score = own["score"]
        mean = f"score {score['mean']:.2f} on average{_told_interval(score['interval'], '.2f')}"
        mean += f", {score['max']:.2f} at best"
        rates = (
            f"{name} {100 * each['value']:.1f}%{_told_interval([100 * limit for limit in each['interval']], '.1f')}"
            for name, each in own["pass_at_k"].items()
            if int(name.removeprefix("pass@")) in PASS_AT
        )
        yield f"{arm}: {'; '.join([mean, *rates])}"


def _told_interval(interval: Sequence[float], form: str) -> str:
    low, high = interval
    return f" (95% interval {low:{form}} to {high:{form}})"


def _of_arm(results: Sequence[Result]) -> dict[str, Any]:
    tasks: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        tasks[result.problem_id].append(result)
    counts = [(len(own), sum(result.success for result in own)) for own in tasks.values()]
    scores = [[result.score or 0.0 for result in own] for own in tasks.values()]
    every = [score for own in scores for score in own]
    fewest = min(n for n, _ in counts)
    return {
        "rollouts": len(results),
        "pass_at_k": {f"pass@{k}": _pass_at(counts, k) for k in _ks(fewest)},
        "score": {"mean": statistics.fmean(every), "interval": _mean_interval(scores), "max": max(every)},
        "tasks": {
            task: {"rollouts": n, "successes": passed, "score_mean": statistics.fmean(own), "score_max": max(own)}
            for task, (n, passed), own in zip(tasks, counts, scores, strict=True)
        },
    }


def _ks(fewest: int) -> list[int]:
    return sorted({*range(1, min(fewest, _EVERY_K) + 1), *(k for k in PASS_AT if k <= fewest)})


def _pass_at(counts: Sequence[tuple[int, int]], k: int) -> dict[str, Any]:
    """Over tasks. Of a single one the interval is Wilson's, of the chance that one of k passes given that of each."""
    chances = [pass_at_k(n, passed, k) for n, passed in counts]
    if len(counts) > 1:
        interval = _bootstrap(len(counts), lambda drawn: statistics.fmean(chances[task] for task in drawn))
    else:
        low, high = wilson(counts[0][1], counts[0][0])
        interval = 1 - (1 - low) ** k, 1 - (1 - high) ** k
    return {"value": statistics.fmean(chances), "interval": interval}


def _mean_interval(scores: Sequence[Sequence[float]]) -> Interval:
    """Of all scores' mean. Of a single task it is Wilson's, which is wide enough for any scores from 0 to 1."""
    if len(scores) == 1:
        low, high = wilson(sum(scores[0]), len(scores[0]))
        return low, high
    sums = [(sum(own), len(own)) for own in scores]

    def mean(drawn: Sequence[int]) -> float:
        return sum(sums[task][0] for task in drawn) / sum(sums[task][1] for task in drawn)

    return _bootstrap(len(scores), mean)


def _bootstrap(tasks: int, statistic: Callable[[Sequence[int]], float]) -> Interval:
    """The 95 % interval by the percentiles of 2,000 draws of as many tasks, always the same ones.

    Source: B. Efron & R. J. Tibshirani, "An introduction to the bootstrap" (1993), section 13.3; tasks are drawn whole
    (A. C. Davison & D. V. Hinkley, "Bootstrap methods and their application" (1997), section 3.8).
    """
    found = sorted(map(statistic, _draws(tasks)))
    low, high = (found[round(share * (_DRAWS - 1))] for share in _OUTER)
    return low, high


@lru_cache(maxsize=1)
def _draws(tasks: int) -> list[list[int]]:
    draw = random.Random(_SEED)  # noqa: S311
    return [draw.choices(range(tasks), k=tasks) for _ in range(_DRAWS)]
