"""Results: judged experiments, as a summary has them, and replies of which figures tell.

Clusters of tasks: tasks about one text or repository resemble each other and are sampled together. Values of such tasks
are handed to the estimators as one group, as samples of one task are. Where all tasks are of one cluster nothing tells
how far clusters lie apart, so there is no interval, and its method says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from koderz_tracker.basis import Use
from koderz_tracker.rates import (
    SHARE,
    Interval,
    mean_interval,
    pass_at_k,
    pass_at_k_interval,
    pass_hat_k,
    pass_hat_k_interval,
    usual_ks,
)

if TYPE_CHECKING:
    from koderz_tracker.records import Plan


Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]

ANSWER = "answer"
"""The fact of a verdict that is the answer as it was read off the reply; None where none could be read."""

UNSAID = -1
"""A count that an older file doesn't have, until its reader supplies it."""


class Result(Struct, frozen=True, kw_only=True):
    """One judged experiment."""

    experiment_id: str = ""  # the id by which the journal has it
    problem_id: Annotated[str, Meta(min_length=1)]  # the task
    success: bool  # whether it passed
    iterations: Count = 1  # attempts
    cost: Amount = 0.0  # US dollars
    solver: str = ""  # the solver that worked on it
    arm: str = ""  # the arm that it belongs to
    model: str = ""  # the model in the role main
    sample: Count = UNSAID  # the number of the sample, from 0
    verdict: str = ""  # the verdict on its last attempt, in one word
    cause: str = ""  # why it failed; empty if it passed
    tokens: Count = UNSAID  # tokens in and out
    tokens_in: Count = 0  # tokens of all requests
    tokens_out: Count = 0  # tokens of all replies
    # the part of `tokens_out` spent on reasoning, as far as servers tell
    tokens_reasoning: Count | None = None
    # calls and tokens by role, if other roles than main were asked
    roles: Mapping[str, Use] | None = None
    calls: Count = UNSAID  # requests to models
    depth: Count = 0  # the depth that a recursion reached
    latency: Amount = 0.0  # seconds spent waiting for models
    duration_seconds: Amount = 0.0  # seconds of the session that ended it
    cost_known: bool = True  # whether the price of every call is known
    # US dollars by tier of models; null: all models are local
    cost_by_tier: Mapping[str, float] | None = None
    score: float | None = None  # the score, from 0 to 1, if the suite gives one
    metrics: Mapping[str, float | None] | None = None  # by name; null as a value: not a number
    note: str = ""  # a remark of the solver on how it ended
    grades: Count = 0  # items that were graded within it
    # further facts from its suite; in JSON they are keys beside the others
    facts: Mapping[str, Any] = {}
    # limits that held, those `asked` for, and how each was `enforced`
    resources: Mapping[str, Any] | None = None
    # as read off the reply; null: unreadable; absent: never read
    answer: str | UnsetType | None = UNSET
    # the cut-off part of the last judged reply, "text" or "reasoning"; absent if none
    truncated: str = ""
    reused_calls: Count = 0  # calls that replies on record of other runs answered; absent if none
    saved_cost: Amount = 0.0  # US dollars that those replies cost then; absent if none
    # the numbers of those replies' calls, by RUN/EXPERIMENT; absent if none
    reused: Mapping[str, Sequence[Count]] = {}
    # of cost, tokens, iterations and latency what another tool's log lacks; absent if none
    untold: Sequence[str] = ()
    # the text, passage or repository that its task shares with others; absent if none
    cluster: str = ""


def untold(results: Sequence[Result]) -> frozenset[str]:
    """The quantities that none of the results tells."""
    names = (result.untold for result in results)
    return frozenset(next(names, ())).intersection(*names)


_MOST_TRUNCATED = 2.0  # per cent
_MOST_ENDS = 5  # words by which replies ended


@dataclass(frozen=True, slots=True)
class UnreadAnswers:
    """The replies in which no answer was found, or several."""

    count: int
    rate: float  # per cent of the results

    @property
    def text(self) -> str:
        """The share and the number, as text for people."""
        return f"unread {self.rate:.1f}% ({self.count})"


@dataclass(frozen=True, slots=True)
class Truncated:
    """The judged replies that ended by their length: within a text, and before there was any."""

    text: int = 0
    reasoning: int = 0

    def note(self, results: int) -> str:
        """A warning where they are more than 2 % of the results; empty otherwise."""
        count = self.text + self.reasoning
        if not results or 100 * count / results <= _MOST_TRUNCATED:
            return ""
        thought = (
            f", {self.reasoning} of them while the model still thought" if self.reasoning else ""
        )
        share = f"{100 * count / results:.1f}% of the replies ({count} of {results})"
        return f"{share} were cut off by their length{thought}: raise --max-tokens"


def told_ends(unknown: Mapping[str, int]) -> Iterator[str]:
    """Sentences on the replies that ended by words that koderz doesn't know, the commonest words first."""
    ends = sorted(unknown.items(), key=lambda end: (-end[1], end[0]))
    shown, rest = ends[:_MOST_ENDS], sum(count for _, count in ends[_MOST_ENDS:])
    for word, count in [*((repr(word), count) for word, count in shown), ("other words", rest)]:
        if count:
            yield f"{count} {'reply' if count == 1 else 'replies'} ended by {word}, which koderz doesn't know"


def told_reuse(calls: int, dollars: float) -> str:
    """The number of calls that replies of other runs answered, and what these had cost; empty if there are none."""
    if not calls:
        return ""
    return f"{calls:,} call{'s' * (calls > 1)} answered by replies of other runs, which saved ${dollars:.4f}"


_T = TypeVar("_T")
_BY_TASK, _OF_TASKS = ", clustered by task", " of tasks"

Clusters = Mapping[str, str]
"""The cluster of each task that has one; the others stand alone."""


def clusters_of(results: Iterable[Result]) -> dict[str, str]:
    """The cluster of each task that results are about."""
    return {result.problem_id: result.cluster for result in results if result.cluster}


def grouped(values: Mapping[str, Sequence[_T]], clusters: Clusters) -> list[list[_T]]:
    """Values of tasks, joined by cluster, in the order in which clusters first appear."""
    return [
        [value for task in tasks for value in values[task]] for tasks in members(values, clusters)
    ]


def members(tasks: Iterable[str], clusters: Clusters) -> list[list[str]]:
    """The tasks of each cluster, in the order in which clusters first appear; one without a cluster is its own."""
    if not any(clusters.values()):
        return [[task] for task in tasks]
    found: dict[tuple[bool, str], list[str]] = {}
    for task in tasks:
        cluster = clusters.get(task, "")
        found.setdefault((bool(cluster), cluster or task), []).append(task)
    return [*found.values()]


def count_of(tasks: Collection[str], clusters: Clusters) -> int | None:
    """The number of clusters among tasks; None if each task is its own."""
    if not any(clusters.values()):
        return None
    count = len(members(tasks, clusters))
    return None if count == len(tasks) else count


def no_interval(tasks: int, clusters: int | None) -> str:
    """The reason for having no interval: several tasks, all in one cluster. Empty if there may be an interval."""
    return f"none: all {tasks} tasks are of one cluster" if clusters == 1 else ""


def method_in(method: str, clusters: int | None) -> str:
    """The name of a method, with the number of clusters if tasks are grouped in clusters."""
    return (
        method
        if clusters is None
        else f"{method.replace(_BY_TASK, '').replace(_OF_TASKS, '')}, in {clusters} clusters"
    )


def interval_in(
    values: Mapping[str, Sequence[_T]],
    clusters: Clusters,
    estimate: Callable[[list[list[_T]]], tuple[Interval, str] | None],
) -> tuple[Interval | None, str | None]:
    """The interval and method that `estimate` returns for each task's samples, grouped by cluster.

    Without an interval the method says why, where that is known.
    """
    count = count_of(values, clusters)
    if reason := no_interval(len(values), count):
        return None, reason
    found = estimate(grouped(values, clusters))
    return (found[0], method_in(found[1], count)) if found else (None, None)


def pass_at_k_in(
    passes: Mapping[str, Sequence[bool]], clusters: Clusters, k: int
) -> tuple[Interval | None, str | None]:
    """The interval of pass@k over tasks, grouped by cluster as in `interval_in`; each task has at least k samples."""
    if count_of(passes, clusters) is None:
        return pass_at_k_interval([*passes.values()], k)
    chances = {task: [pass_at_k(len(own), sum(own), k)] for task, own in passes.items()}
    return interval_in(chances, clusters, partial(mean_interval, bounds=SHARE))


@dataclass(frozen=True, slots=True)
class ChanceEstimate:
    """A chance, as a fraction, with its 95 % interval."""

    value: float
    interval: Interval | None
    interval_method: str | None  # without an interval, why

    @property
    def text(self) -> str:
        """Per cent, with the interval, as text for people."""
        limits = (
            " (95% interval {:.1f}% to {:.1f}%)".format(*(100 * x for x in self.interval))
            if self.interval
            else ""
        )
        return f"{100 * self.value:.1f}%{limits}"


def pass_hat_k_in(
    passes: Mapping[str, Sequence[bool]], clusters: Clusters, k: int
) -> ChanceEstimate:
    """pass^k over tasks, its interval grouped by cluster as in `interval_in`; each task has at least k samples."""
    chances = {task: [pass_hat_k(len(own), sum(own), k)] for task, own in passes.items()}
    value = fmean(own[0] for own in chances.values())
    if count_of(passes, clusters) is None:
        return ChanceEstimate(value, *pass_hat_k_interval([*passes.values()], k))
    return ChanceEstimate(
        value, *interval_in(chances, clusters, partial(mean_interval, bounds=SHARE))
    )


def pass_hat_k_of(
    passes: Mapping[str, Sequence[bool]], clusters: Clusters
) -> dict[str, ChanceEstimate]:
    """`{"pass^1": …}` over tasks for each usual k that every task has samples for."""
    return {f"pass^{k}": pass_hat_k_in(passes, clusters, k) for k in usual_ks(passes.values())}


def clusters_in(plan: Plan) -> dict[str, str]:
    """The cluster of each task of a plan."""
    return {
        task: cluster for task, cluster in zip(plan.tasks, plan.clusters, strict=False) if cluster
    }
