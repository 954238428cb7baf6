"""The summary's figures of rollouts by task: pass@k and scores, with intervals clustered by task."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tracker.breakdown import by_task, mean_score
from tracker.parts import Part
from tracker.rates import PASS_AT, pass_at_k, pass_at_k_interval

if TYPE_CHECKING:
    from tracker.records import Plan
    from tracker.results import Result

_EVERY_K = 10  # up to here each k is told, beyond the usual ones


class RolloutFigures(Part):
    """The summary's key `rollouts`."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """For each arm: `pass_at_k` with 95 % intervals, the `score`'s mean, interval and maximum, and `tasks`."""
        return {arm: _of_arm(own) for arm, own in results.items() if own}


FIGURES = RolloutFigures()


def told(part: Mapping[str, Any]) -> Iterator[str]:
    """A line for each arm, with the usual k only."""
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


def _told_interval(interval: Sequence[float] | None, form: str) -> str:
    if not interval:
        return ""
    low, high = interval
    return f" (95% interval {low:{form}} to {high:{form}})"


def _of_arm(results: Sequence[Result]) -> dict[str, Any]:
    results = [replace(result, score=result.score or 0.0) for result in results]
    scores = by_task(results, lambda result: result.score)
    passes = by_task(results, lambda result: result.success)
    mean = mean_score(results)
    assert mean, "every rollout has a score"
    return {
        "rollouts": len(results),
        "pass_at_k": {f"pass@{k}": _pass_at([*passes.values()], k) for k in _ks(min(map(len, passes.values())))},
        "score": {
            "mean": mean.mean,
            "interval": mean.interval,
            "interval_method": mean.interval_method,
            "max": max(map(max, scores.values())),
        },
        "tasks": {
            task: {
                "rollouts": len(own),
                "successes": sum(passes[task]),
                "score_mean": statistics.fmean(own),
                "score_max": max(own),
            }
            for task, own in scores.items()
        },
    }


def _ks(fewest: int) -> list[int]:
    return sorted({*range(1, min(fewest, _EVERY_K) + 1), *(k for k in PASS_AT if k <= fewest)})


def _pass_at(passes: Sequence[Sequence[bool]], k: int) -> dict[str, Any]:
    interval, method = pass_at_k_interval(passes, k)
    value = statistics.fmean(pass_at_k(len(own), sum(own), k) for own in passes)
    return {"value": value, "interval": interval, "interval_method": method}
