"""Gates for CI: requirements on B, the candidate, and the line that explains a failure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from koderz.analysis.comparison import Comparison, between, corrected
from koderz.analysis.completion import completed, faults_text
from koderz.analysis.inference import false_alarm, least_drop
from koderz.analysis.measures import SUCCESS, interval_text, measure_named, shown
from koderz.analysis.pairs import Side, match
from koderz.analysis.runs import GOING, Run
from koderz.analysis.statistics import p_text
from koderz.errors import KoderzError
from koderz_tracker.rates import is_share, pass_at_k
from koderz_tracker.records import Measure
from koderz_tracker.results import clusters_of, pass_at_k_in, pass_hat_k_in

_FEW_ALARMS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates to apply; None or false turns one off."""

    fail_on_regression: bool = False  # a drop that is significant
    max_drop: float | None = None  # points, or the unit of the measure that is compared
    # with which the drop has to be above max_drop; None: as it was seen
    confidence: float | None = None
    # means of B's measures, rates in per cent
    least: Mapping[str, float] = field(default_factory=dict)
    # likewise, which B's interval must not lie below
    surely: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    min_success_rate: float | None = None  # per cent
    max_cost: float | None = None  # US dollars
    task_threshold: float | None = None  # the share of its samples that each task of B has to pass
    min_gain: float | None = None  # of an optimizer, as a fraction
    allow_incomplete: bool = False  # no gate: judge a run although it is going or was cut short

    @property
    def are_paired(self) -> bool:
        return self.fail_on_regression or self.max_drop is not None

    @property
    def are_asked(self) -> bool:
        limits = (self.min_success_rate, self.max_cost, self.task_threshold, self.min_gain)
        return (
            self.are_paired
            or bool(self.least or self.surely or self.most)
            or any(limit is not None for limit in limits)
        )


RATE = "rate"
_CHANCE = re.compile(r"pass([@^])([1-9]\d{0,5})")  # pass@5, pass^3
_BY_INTERVAL = (RATE, "score", "cost")  # and chances; other measures are judged by their averages


def limits(given: Sequence[str]) -> dict[str, float]:
    """Limits from texts `MEASURE=VALUE`. Raises KoderzError for anything else.

    A rate or a chance is in per cent, or a share where it is at most 1.
    """
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if not math.isfinite(limit):
            raise KoderzError(f"{text!r}: write a measure and its limit, e.g. score=0.8")
        found[name] = 100 * limit if 0 < limit <= 1 and _is_rate(name) else limit
    return found


def least_of(given: Sequence[str] | None, points: Sequence[str] | None) -> dict[str, Any]:
    """The gates `surely` and `least` from the texts of `--min` and `--min-point`.

    An empty text of the latter stands for all of the former.
    """
    found, least = limits(given or ()), limits([text for text in points or () if text])
    are_points = "" in (points or ())
    if are_points and not found:
        raise KoderzError(
            "--min-point alone is about the measures of --min; name one, e.g. --min-point rate=80"
        )
    by_interval = (
        name for name in found if not are_points and (name in _BY_INTERVAL or _is_rate(name))
    )
    surely = {name: found.pop(name) for name in [*by_interval]}
    return {"surely": surely, "least": found | least}


@dataclass(frozen=True, slots=True)
class Ruling:
    """Answers of gates, a clause a gate. B passes where both are empty."""

    shut: Sequence[str] = ()  # the reasons why B doesn't pass
    # the gates whose answer hangs on faults: they neither pass B nor shut on it
    hanging: Sequence[str] = ()


def ruling(gates: Gates, b: Side, comparison: Comparison | None, *, exact: bool = False) -> Ruling:
    """Answers of the gates on B. `comparison` is against the baseline, `exact` as in `compare`.

    A gate passes or shuts only where it does so however the faults would have come out. Raises KoderzError where a gate
    can't be judged: B is still going or was cut short, has no results, shares no task with its baseline, or its price
    is unknown.
    """
    if not gates.are_asked:
        return Ruling()
    _refuse_unjudgeable(gates, b, comparison)
    found = [*_by_figures(gates, b)]
    if comparison is not None and gates.are_paired:
        found += _by_drop(gates, comparison, exact=exact)
    return Ruling(
        [check.judged or check.at_worst for check in found if check.at_worst and check.at_best],
        [
            f"{check.gate} hangs on {check.hanging}"
            for check in found
            if bool(check.at_worst) != bool(check.at_best)
        ],
    )


class _Check(NamedTuple):
    """A gate's reasons for shutting; empty where it passes."""

    gate: str
    judged: str  # by what was judged
    at_worst: str  # with faults counted against B
    at_best: str  # with faults counted in favour of B
    faults: str = ""  # on which it may hang

    @property
    def hanging(self) -> str:
        """The faults that it hangs on, and its reason at the worst."""
        return f"{self.faults}: {self.at_worst or self.at_best}"


def caution_on(gates: Gates, b: Side) -> str:
    """A warning if gates judged fewer experiments of B than planned; empty otherwise."""
    run = b.run
    if (
        not gates.are_asked
        or run.status == "complete"
        or not (_is_left(run) or run.faults or run.early)
    ):
        return ""
    if not (_is_left(run) or run.early):
        return f"{run.name} {run.progress}; gates pass or shut only where the faults can't turn it"
    return f"{run.name} {run.progress}, and the gates are about those alone"


def _refuse_unjudgeable(gates: Gates, b: Side, comparison: Comparison | None) -> None:
    if _is_left(b.run) and not gates.allow_incomplete:
        raise KoderzError(
            f"{b.run.name} {b.run.progress}, so no gate can judge it; {_way_out(b.run)}"
        )
    if not b.results:
        raise KoderzError(f"{b.label} has no results, so no gate can judge it")
    if gates.max_cost is not None and not b.figures.cost_known:
        raise KoderzError(
            f"{b.label}: a price is unknown, so --max-cost can't judge it; put it into koderz.toml"
        )
    if not gates.are_paired:
        return
    if comparison is None:
        raise KoderzError(
            "--fail-on-regression and --max-drop compare two runs; name the baseline, then the candidate"
        )
    for one in comparison.arms.values() or [comparison]:
        if not one.paired:
            raise KoderzError(
                f"{one.a.label} and {one.b.label} have no task in common, so no drop can be judged; "
                "run both on the same tasks"
            )
        if one.p_value is None and one.difference is not None:
            raise KoderzError(
                f"{one.measure.name} of {one.a.label} and {one.b.label} can't be judged by a gate: "
                f"{one.method.removeprefix('none: ')}"
            )


def _is_left(run: Run) -> bool:
    return run.is_going or run.is_cut_short


def _way_out(run: Run) -> str:
    if run.status == GOING:
        return "judge what there is with --allow-incomplete, or let it end"
    more = " --max-cost MORE" if run.status == "stopped" else ""
    return f"end it with: koderz benchmark resume {run.name}{more}, or judge what there is with --allow-incomplete"


def _by_figures(gates: Gates, b: Side) -> Iterator[_Check]:
    if (least := gates.min_success_rate) is not None:
        yield _check(f"--min-success-rate {least:g}", b, SUCCESS, partial(_low_rate, least))
    # of the whole run, faults and unfinished experiments included where that is on record
    cost = b.run.paid.get("total", sum(arm.summary.total_cost for arm in b.run.arms.values()))
    if gates.max_cost is not None and cost > gates.max_cost:
        dear = f"{b.label} cost ${cost:.4f}, above the ${gates.max_cost:g} allowed"
        yield _Check("--max-cost", dear, dear, dear)
    if (share := gates.task_threshold) is not None:
        yield _check(f"--task-threshold {share:g}", b, SUCCESS, partial(_low_tasks, share))
    yield from _by_least(gates, b)
    for limits, sign, beyond in ((gates.least, 1, "below"), (gates.most, -1, "above")):
        for name, limit in limits.items():
            if sign > 0 and _is_rate(name):
                continue
            measure = measure_named(name, [b.run])
            if b.mean(measure) is None:
                raise KoderzError(
                    f"no result of {b.label} has a measure {name!r}, so no gate can judge it"
                )
            flag = f"--{'min' if sign > 0 else 'max'} {name}={limit:g}"
            yield _check(flag, b, measure, partial(_off_limit, measure, limit, sign, beyond))


def _by_least(gates: Gates, b: Side) -> Iterator[_Check]:
    """The gates on intervals, and those on the plain figures of rates and chances, which are no measures."""
    whole = completed(b, SUCCESS, best=False) or b
    for limits, is_sure in ((gates.surely, True), (gates.least, False)):
        for name, limit in limits.items():
            if not (is_sure or _is_rate(name)):
                continue
            measure = SUCCESS if _is_rate(name) else measure_named(name, [b.run])
            figure = _figure(whole if _is_rate(name) else b, name, measure)
            if figure is None:
                few, k = f"not every task of {b.label} has", name[5:]
                none = (
                    f"{few} {k} samples"
                    if _CHANCE.fullmatch(name)
                    else f"no result of {b.label} has a measure {name!r}"
                )
                raise KoderzError(f"{none}, so no gate can judge it")
            if is_sure and figure[1] is None:
                raise KoderzError(
                    f"{name} of {b.label} has no interval; judge the plain figure: --min-point {name}={limit:g}"
                )
            flag = f"--min{'' if is_sure else '-point'} {name}={limit:g}"
            yield _check(flag, b, measure, partial(_low_figure, name, measure, limit, is_sure))


def _is_rate(name: str) -> bool:
    return name == RATE or _CHANCE.fullmatch(name) is not None


def _figure(
    side: Side, name: str, measure: Measure
) -> tuple[float, tuple[float, float] | None] | None:
    """A figure of a side with its 95 % interval; None where it has none."""
    chance = _CHANCE.fullmatch(name)
    if chance is None:
        mean = side.mean(measure)
        return None if mean is None else (mean.mean, mean.interval)
    k, passes = (
        int(chance[2]),
        {task: [each.success for each in own] for task, own in side.by_task().items()},
    )
    if not passes or min(map(len, passes.values())) < k:
        return None
    clusters = clusters_of(side.results)
    if chance[1] == "^":
        found = pass_hat_k_in(passes, clusters, k)
        return found.value, found.interval
    value = fmean(pass_at_k(len(own), sum(own), k) for own in passes.values())
    return value, pass_at_k_in(passes, clusters, k)[0]


def _low_figure(name: str, measure: Measure, least: float, is_sure: bool, side: Side) -> str:
    """The reason for shutting where a figure, or its whole interval, is below the least."""
    if (figure := _figure(side, name, measure)) is None:
        return ""
    (value, interval), bound = figure, least / 100 if measure.two_valued else least
    if (interval[1] if is_sure and interval else value) >= bound - 1e-9:
        return ""
    limits = f" (95% interval {interval_text(interval, measure)})" if is_sure else ""
    return f"{side.label} has a {name} of {shown(value, measure)}{limits}, below the {shown(bound, measure)} asked for"


def _low_tasks(share: float, side: Side) -> str:
    """The reason for shutting where tasks pass less than this share of their samples."""
    tasks = side.by_task()
    low = [
        task
        for task, own in tasks.items()
        if not is_share(sum(each.success for each in own), len(own), share)
    ]
    if not low:
        return ""
    few = f"pass less than {share:g} of their samples{_some(low, '')}"
    return f"{len(low)} of {len(tasks)} tasks of {side.label} {few}"


def _low_rate(least: float, side: Side) -> str:
    """The reason for shutting where a success rate is below the least, in per cent."""
    mean = side.mean(SUCCESS)
    if mean is None or 100 * mean.mean >= least - 1e-9:
        return ""
    return (
        f"{side.label} has a success rate of {100 * mean.mean:.1f}%, below the {least:g}% asked for"
    )


def _off_limit(measure: Measure, limit: float, sign: int, beyond: str, side: Side) -> str:
    """The reason for shutting where the average of a measure lies beyond a limit."""
    mean = side.mean(measure)
    bound = limit / 100 if measure.two_valued else limit
    if mean is None or sign * (mean.mean - bound) >= -1e-9:
        return ""
    is_ = shown(mean.mean, measure)
    return f"{side.label} has an average {measure.name} of {is_}, {beyond} the {shown(bound, measure)} asked for"


def _check(gate: str, b: Side, measure: Measure, reason: Callable[[Side], str]) -> _Check:
    """A gate on B alone, which shuts for the reason that is given, if any."""
    worst, best = (completed(b, measure, best=best) for best in (False, True))
    faults = faults_text([str(fault["problem_id"]) for fault in b.missing], b.label)
    if worst is None or best is None:
        return _Check(gate, "", f"{measure.name} has no bounds", "", faults)
    return _Check(gate, reason(b), reason(worst), reason(best), f"{faults}; with these against it")


def _by_drop(gates: Gates, comparison: Comparison, *, exact: bool) -> Iterator[_Check]:
    each = [*(comparison.arms.values() or [comparison])]
    judged = [dict(_shut_by_drop(gates, one)) for one in each]
    if not any(one.completion for one in each):
        for found in judged:
            yield from (_Check(gate, why, why, why) for gate, why in found.items())
        return
    ends: list[list[dict[str, str]]] = []
    for best in (False, True):
        sides = [
            (
                completed(one.a, one.measure, best=not best) or one.a,
                completed(one.b, one.measure, best=best) or one.b,
            )
            for one in each
        ]
        redone = corrected(
            [
                between(a, b, one.alpha, one.measure, exact=exact)
                for (a, b), one in zip(sides, each, strict=True)
            ]
        )
        ends.append([dict(_shut_by_drop(gates, one)) for one in redone])
    asked = {
        "--fail-on-regression": gates.fail_on_regression,
        "--max-drop": gates.max_drop is not None,
    }
    for one, seen, worst, best in zip(each, judged, *ends, strict=True):
        for gate in (name for name, is_asked in asked.items() if is_asked):
            if one.completion and one.completion.differences is None:
                yield _Check(gate, "", f"{one.measure.name} has no bounds", "", one.completion.text)
            else:
                faults = f"{one.completion.text}; with these against B" if one.completion else ""
                yield _Check(
                    gate, seen.get(gate, ""), worst.get(gate, ""), best.get(gate, ""), faults
                )


def _shut_by_drop(gates: Gates, one: Comparison) -> Iterator[tuple[str, str]]:
    """The paired gates that shut, each with its reason."""
    success = one.measure.name == "success"
    drop = one.worse_by
    arm = f" ({one.b.arm})" if len(one.b.run.arms) > 1 else ""
    by = f"{drop:.1f} points" if success else shown(drop / one.scale, one.measure)
    fell = (
        f"the success rate{arm} dropped by {by}"
        if success
        else f"{one.measure.name}{arm} is worse by {by}"
    )
    tasks = _some(one.lost)
    if gates.fail_on_regression and one.significant and drop > 0:
        yield "--fail-on-regression", f"{fell}, {p_text(one.p_holm or 0.0)}{tasks}"
    if gates.max_drop is not None and _is_above(gates.max_drop, gates.confidence, one):
        sure = "" if gates.confidence is None else f" with a confidence of {gates.confidence:.4g}"
        yield "--max-drop", f"{fell}, more than the {gates.max_drop:g} allowed{sure}{tasks}"


def _is_above(allowed: float, confidence: float | None, one: Comparison) -> bool:
    if confidence is None:
        return one.worse_by > allowed + 1e-9
    least = least_drop(match(one.a, one.b, one.measure), confidence)
    return least is not None and one.scale * least > allowed


def false_alarms(gates: Gates, comparison: Comparison | None) -> dict[str, float]:
    """The probability that --max-drop fails although A and B are equally good, by arm, for as many tasks and flips."""
    if gates.max_drop is None or comparison is None:
        return {}
    found = {}
    for one in comparison.arms.values() or [comparison]:
        matched = match(one.a, one.b, one.measure)
        if matched.paired and matched.order is None:
            found[one.b.arm] = false_alarm(matched, gates.max_drop / one.scale, gates.confidence)
    return found


def alarm_notes(gates: Gates, comparison: Comparison | None) -> Iterator[str]:
    """A sentence for each arm on `false_alarms`, with a gate that has fewer."""
    alarms = false_alarms(gates, comparison)
    for arm, rate in alarms.items():
        of_arm = f" of {arm}" if len(alarms) > 1 else ""
        sure = "" if gates.confidence is None else f" --confidence {gates.confidence:g}"
        if rate < 0.001:
            per_cent = "less than 0.1%"
        elif rate < 0.1:
            per_cent = f"{100 * rate:.1f}%"
        else:
            per_cent = f"{100 * rate:.0f}%"
        text = f"--max-drop {gates.max_drop:g}{sure} shuts in {per_cent} of comparisons like this one{of_arm}"
        more = (
            ""
            if rate <= _FEW_ALARMS
            else "; with --confidence 0.95 it shuts only where a larger drop is certain"
        )
        yield f"{text} where A and B are equally good{more}."


def _some(tasks: Sequence[str], what: str = "lost: ") -> str:
    more = ", …" if len(tasks) > 3 else ""
    return f" ({what}{', '.join(tasks[:3])}{more})" if tasks else ""
