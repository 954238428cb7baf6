"""The summary's figures of rollouts by task: pass@k, pass^k and scores, with intervals clustered by task."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koderz.streams import plain
from koderz_tracker.breakdown import by_task, mean_score
from koderz_tracker.parts import Part
from koderz_tracker.rates import PASS_AT, pass_at_k, rate_interval
from koderz_tracker.results import (
    Clusters,
    Result,
    clusters_in,
    clusters_of,
    interval_in,
    pass_at_k_in,
    pass_hat_k_in,
)

if TYPE_CHECKING:
    from koderz_tracker.records import Fault, Plan

_EVERY_K = 10  # up to here each k is told, beyond the usual ones


class RolloutFigures(Part):
    """The summary's key `rollouts`."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """For each arm: `pass_at_k` and `pass_hat_k` with 95 % intervals, the `score`, and `tasks`.

        `published_only` are rollouts of tasks that can only be graded as published; they are in no other figure.
        `judged_by_model` is the number of those whose verdict is a model's, of skills' evals without tests.
        """
        return {arm: {**_apart(own), **_by_model(own)} for arm, own in results.items() if own}

    def with_faults(
        self,
        plan: Plan,
        found: Mapping[str, Any],
        results: Mapping[str, Sequence[Result]],
        faults: Sequence[Fault],
    ) -> Mapping[str, Any]:
        """For each arm also `faults`, their number by kind, and `score_of_all`, where each of them counts 0."""
        clusters = clusters_in(plan)
        by_arm: dict[str, list[Fault]] = {arm: [] for arm in results}
        for fault in faults:
            by_arm.setdefault(fault.arm, []).append(fault)
        return {
            arm: {
                **found.get(arm, {"rollouts": 0}),
                **_of_faults(results.get(arm, ()), own, clusters),
            }
            for arm, own in by_arm.items()
            if own or arm in found
        }


FIGURES = RolloutFigures()


class CanaryFigures(Part):
    """The summary's key `canaries`."""

    def of_apart(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """`tried`, `passed`, `rate` with its 95 % interval as fractions, and `tasks`; the same for each of `arms`."""
        every = [result for own in results.values() for result in own]
        arms = {arm: _of_canaries(own) for arm, own in results.items() if own}
        return {**_of_canaries(every), "arms": arms} if every else {}


CANARIES = CanaryFigures()


def _of_canaries(results: Sequence[Result]) -> dict[str, Any]:
    passes = by_task(results, lambda result: result.success)
    interval, method = interval_in(passes, clusters_of(results), rate_interval)
    passed = sum(result.success for result in results)
    return {
        "tried": len(results),
        "passed": passed,
        "rate": passed / len(results),
        "interval": interval,
        "interval_method": method,
        "tasks": {task: {"tried": len(own), "passed": sum(own)} for task, own in passes.items()},
    }


def canaries_line(part: Mapping[str, Any]) -> str:
    """A line on the canaries that were tried."""
    rate = f"{100 * part['rate']:.1f}%{_told_interval(part['interval'], '.1f', 100)}"
    return f"canaries: {part['passed']} of {part['tried']} passed, {rate}; nobody passes one without cheating"


KINDS: Mapping[str, str] = {
    "image": "image",
    **dict.fromkeys(("setup", "unprepared", "launch_failed", "data"), "setup"),
    "mcp": "mcp",
    "task": "task",
    "healthcheck": "healthcheck",
    **dict.fromkeys(("sandbox", "worker_lost"), "sandbox"),
    **dict.fromkeys(("provider", "unreachable", "rejected"), "provider"),
    **dict.fromkeys(("verifier", "judge"), "verifier"),
}
"""The kind of a fault by its cause; a cause that isn't here is of the kind `other`."""


def _of_faults(
    results: Sequence[Result], faults: Sequence[Fault], clusters: Clusters
) -> dict[str, Any]:
    nothing = [
        Result(
            problem_id=fault.problem_id,
            success=False,
            score=0.0,
            sample=fault.sample,
            cluster=clusters.get(fault.problem_id, ""),
        )
        for fault in faults
    ]
    mean = mean_score(
        [*(replace(result, score=result.score or 0.0) for result in results), *nothing]
    )
    assert mean, "the arm has a rollout"
    return {
        "faults": dict(Counter(KINDS.get(fault.cause, "other") for fault in faults)),
        "score_of_all": {
            "mean": mean.mean,
            "interval": mean.interval,
            "interval_method": mean.interval_method,
            "rollouts": mean.results,
        },
    }


def _told_faults(own: Mapping[str, Any]) -> str:
    if not own.get("faults"):
        return ""
    kinds = ", ".join(f"{kind} {count}" for kind, count in own["faults"].items())
    return f"faults: {kinds}; score of all {own['score_of_all']['mean']:.2f}, where each counts 0"


def _of_servers(results: Sequence[Result]) -> dict[str, Any]:
    """The MCP servers of an arm by name: the `rollouts` that used each, its `calls`, `errors` and `seconds`, and in
    how many rollouts each finding was made.
    """
    found: dict[str, Any] = {}
    for servers in (servers for result in results for servers in result.facts.get("mcp", ())):
        for name, own in servers.items():
            sums = found.setdefault(
                name,
                {"rollouts": 0, "calls": 0, "errors": 0, "seconds": 0.0, "findings": Counter()},
            )
            sums["rollouts"] += own["calls"] > 0
            for number in ("calls", "errors", "seconds"):
                sums[number] += own[number]
            sums["findings"].update(own["findings"])
    return {"mcp": found} if found else {}


def _told_servers(own: Mapping[str, Any]) -> Iterator[str]:
    for name, sums in own.get("mcp", {}).items():
        yield f"{name} used in {sums['rollouts']} rollouts: {sums['calls']} calls, {sums['errors']} failed"
        yield from (
            f"{name}: {plain(text)} in {count} rollouts" for text, count in sums["findings"].items()
        )


def lines_of(part: Mapping[str, Any]) -> Iterator[str]:
    """A line for each arm, with the usual k only."""
    for arm, own in part.items():
        apart = own.get("published_only")
        alone = (
            f"graded only as published, apart: {apart['successes']} of {apart['rollouts']} passed"
            if apart
            else ""
        )
        if "score" not in own:
            yield f"{arm}: {'; '.join(filter(None, [alone, _told_faults(own)]))}"
            continue
        score = own["score"]
        mean = f"score {score['mean']:.2f} on average{_told_interval(score['interval'], '.2f')}"
        mean += f", {score['max']:.2f} at best"
        rates = (
            f"{name} {100 * each['value']:.1f}%{_told_interval(each['interval'], '.1f', 100)}"
            for name, each in (own["pass_at_k"] | own.get("pass_hat_k", {})).items()
            if int(name[len("pass@") :]) in PASS_AT and name != "pass^1"
        )
        count = own.get("judged_by_model")
        judged = f"{count} of {own['rollouts']} judged by a model, not calibrated" if count else ""
        yield f"{arm}: {'; '.join(filter(None, [mean, *rates, judged, alone, _told_faults(own), *_told_servers(own)]))}"


def _told_interval(interval: Sequence[float] | None, form: str, scale: float = 1) -> str:
    if not interval:
        return ""
    low, high = (scale * limit for limit in interval)
    return f" (95% interval {low:{form}} to {high:{form}})"


def _apart(results: Sequence[Result]) -> dict[str, Any]:
    """The figures of an arm; tasks that can only be graded as published stand apart from them."""
    alone = [result for result in results if result.facts.get("published_only")]
    others = [result for result in results if not result.facts.get("published_only")]
    found = _of_arm(others) if others else {"rollouts": 0}
    if not alone:
        return found
    passes = by_task(alone, lambda result: result.success)
    told = {
        "rollouts": len(alone),
        "successes": sum(result.success for result in alone),
        "tasks": {
            task: {"rollouts": len(own), "successes": sum(own)} for task, own in passes.items()
        },
    }
    return {**found, "published_only": told}


def _by_model(results: Sequence[Result]) -> dict[str, int]:
    count = sum(result.facts.get("judged_by") == "model" for result in results)
    return {"judged_by_model": count} if count else {}


def _of_arm(results: Sequence[Result]) -> dict[str, Any]:
    results = [replace(result, score=result.score or 0.0) for result in results]
    scores = by_task(results, lambda result: result.score)
    passes = by_task(results, lambda result: result.success)
    clusters = clusters_of(results)
    fewest = min(map(len, passes.values()))
    ks = sorted({*range(1, min(fewest, _EVERY_K) + 1), *(k for k in PASS_AT if k <= fewest)})
    mean = mean_score(results)
    assert mean, "every rollout has a score"
    return {
        "rollouts": len(results),
        **_of_servers(results),
        "pass_at_k": {f"pass@{k}": _pass_at(passes, clusters, k) for k in ks},
        "pass_hat_k": {f"pass^{k}": asdict(pass_hat_k_in(passes, clusters, k)) for k in ks},
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


def _pass_at(passes: Mapping[str, Sequence[bool]], clusters: Clusters, k: int) -> dict[str, Any]:
    interval, method = pass_at_k_in(passes, clusters, k)
    value = statistics.fmean(pass_at_k(len(own), sum(own), k) for own in passes.values())
    return {"value": value, "interval": interval, "interval_method": method}
