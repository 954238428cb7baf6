"""Intervals of runs that stop once they are decided: confidence sequences along the recorded order of tasks.

An interval for a number of tasks that was fixed beforehand is wrong where the tasks decided on their number, also of a
run that went on to its end, since it went on because of what was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from koderz_tracker.basis import UntilDecided
from koderz_tracker.clusters import ChanceEstimate, Clusters, count_of, members, method_in
from koderz_tracker.rates import SHARE, Interval, pass_hat_k
from koderz_tracker.records import Fault, Plan
from koderz_tracker.results import Result
from koderz_tracker.sequential import SEQUENCE, sequence

UNBOUNDED = "none: without bounds nothing holds at any stop"
NO_NUMPY = "none: it takes numpy, which isn't installed"
STOPS = "none: the run stops once it is decided, and this takes a number of tasks fixed beforehand"


def until_decided_in(plan: Plan) -> UntilDecided | None:
    """The way in which a run stops, as its summary has it: with the samples of each task, where it isn't one."""
    about = plan.until_decided
    if about is None or (plan.cells is None and plan.samples == 1):
        return about
    samples: dict[str, dict[str, int]] = {arm.name: {} for arm in plan.arms}
    if plan.cells is None:
        samples = {name: dict.fromkeys(about.order, plan.samples) for name in samples}
    for cell in plan.cells or ():
        samples[cell.arm][cell.task] = cell.samples
    return replace(about, samples=samples)


class SettledOrder(list[str]):
    """Tasks in their drawn order, as far as they are settled."""

    def __init__(self, tasks: Iterable[str], largest: int = 0) -> None:
        """`largest`: the tasks of the largest cluster that was planned, as in `UntilDecided`."""
        super().__init__(tasks)
        self.largest = largest


def settled_order(
    about: UntilDecided, arm: str, results: Iterable[Result], faulted: Iterable[str]
) -> SettledOrder:
    """The longest prefix of the order whose tasks have ended in an arm with all of their samples.

    Tasks that the arm doesn't ask are left out. `faulted` has the task of each fault.
    """
    ended = Counter(result.problem_id for result in results) + Counter(faulted)
    found = SettledOrder([], about.largest)
    for task in about.order:
        planned = about.samples.get(arm, {}).get(task, 0) if about.samples else 1
        if ended[task] < planned:
            break
        if planned:
            found.append(task)
    return found


def settled_orders(
    plan: Plan, results: Sequence[Result], faults: Sequence[Fault]
) -> dict[str, SettledOrder]:
    """The settled tasks of each arm, in the order of a run that stops once it is decided; empty for other runs."""
    about = until_decided_in(plan)
    if about is None:
        return {}
    return {
        arm.name: settled_order(
            about,
            arm.name,
            (result for result in results if result.arm == arm.name),
            (fault.problem_id for fault in faults if fault.arm == arm.name),
        )
        for arm in plan.arms
    }


def weights_of(units: Sequence[Sequence[str]], order: Sequence[str]) -> list[float]:
    """The number of tasks of each unit over that of the largest one that was planned, or that there is."""
    planned = order.largest if isinstance(order, SettledOrder) else 0
    largest = max([planned, *map(len, units)], default=1)
    return [len(unit) / largest for unit in units]


def interval_along(
    order: Sequence[str],
    values: Mapping[str, Sequence[float]],
    clusters: Clusters,
    bounds: Interval | None,
    *,
    together: int = 1,
) -> tuple[Interval | None, str]:
    """The confidence sequence of a mean at its end, and its method; without an interval, why.

    `values` by task, of which those in `order` count, the mean of each; a cluster counts as one value, which weighs as
    much as it has tasks. It is one of so many that hold `together` with 95 %.
    """
    if bounds is None:
        return None, UNBOUNDED
    kept = [task for task in order if task in values]
    units = members(kept, clusters)
    means = [fmean(value for task in unit for value in values[task]) for unit in units]
    try:
        found = sequence(means, bounds, 0.05 / together, weights=weights_of(units, order))
    except ImportError:
        return None, NO_NUMPY
    return (found, method_in(SEQUENCE, count_of(kept, clusters))) if found else (None, UNBOUNDED)


def chances_along(
    order: Sequence[str],
    passes: Mapping[str, Sequence[bool]],
    clusters: Clusters,
    found: Mapping[str, ChanceEstimate],
) -> dict[str, ChanceEstimate]:
    """pass^k with its confidence sequences in place of its intervals."""
    along = {}
    for name, estimate in found.items():
        k = int(name.removeprefix("pass^"))
        chances = {task: [pass_hat_k(len(own), sum(own), k)] for task, own in passes.items()}
        along[name] = ChanceEstimate(
            estimate.value, *interval_along(order, chances, clusters, SHARE)
        )
    return along


def rate_along(
    order: Sequence[str], passes: Mapping[str, Sequence[bool]], clusters: Clusters
) -> tuple[Interval | None, str]:
    """The confidence sequence of a success rate in per cent, and its method; without an interval, why."""
    interval, method = interval_along(order, passes, clusters, SHARE)
    return interval and (100 * interval[0], 100 * interval[1]), method


def without_intervals(value: Any) -> Any:
    """A part of the summary of a run that stops once it is decided: as it is, but for all intervals in it."""
    if isinstance(value, Mapping):
        return {name: _barred(str(name), each) for name, each in value.items()}
    return [without_intervals(each) for each in value] if isinstance(value, list | tuple) else value


def _barred(name: str, value: Any) -> Any:
    if name.endswith("interval_method"):
        return STOPS
    return None if name.endswith("interval") else without_intervals(value)
