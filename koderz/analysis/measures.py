"""The measures of results: success, score, costs, and a suite's own metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koderz.errors import KoderzError
from koderz_tracker.records import PASSES, Measure
from koderz_tracker.results import Result
from koderz_tracker.summary import Summary

SUCCESS = Measure(name=PASSES, direction="higher", two_valued=True)
_OF_EVERY_RUN = {
    measure.name: measure
    for measure in (
        SUCCESS,
        Measure(name="score", direction="higher"),
        Measure(name="cost", direction="lower", unit="$"),
        Measure(name="iterations", direction="lower"),
        Measure(name="latency", direction="lower", unit="s"),
        Measure(name="tokens", direction="lower"),
    )
}
_UNTOLD_BY_FAULTS = ("iterations", "latency", "tokens")
# What sandboxes measure of every program. Declared by a suite, it would be two more tests in every comparison.
_OF_PROGRAMS = {name: Measure(name=name, direction="lower", unit="s") for name in ("cpu", "wall")}


def value_of(result: Result, measure: str) -> float | None:
    """The result's value of a measure; None if it has none, as one that stands for a fault has no times and tokens."""
    if (result.verdict == "fault" and measure in _UNTOLD_BY_FAULTS) or measure in result.untold:
        return None
    value = (
        getattr(result, measure)
        if measure in _OF_EVERY_RUN
        else (result.metrics or {}).get(measure)
    )
    return None if value is None else float(value)


def declared(runs: Iterable[Summary]) -> dict[str, Measure]:
    """The measures of every run, and those that the suites of these runs declare."""
    own = {measure.name: measure for run in runs for measure in run.measures}
    return _OF_EVERY_RUN | {
        name: own[name] for name in own if name == "score" or name not in _OF_EVERY_RUN
    }


def headline_measure(run: Summary) -> Measure:
    """The measure by which the arms of a run are summed up."""
    return declared([run]).get(run.headline.measure, SUCCESS)


def usual_measure(runs: Iterable[Summary], *, ranked: bool = False) -> str:
    """The default measure for comparing runs; success if their systems differ in it.

    Two sides are set against each other by what passes, where experiments pass or fail; many are `ranked` by what
    their arms are summed up by.
    """
    found = {
        SUCCESS.name if run.headline.passed and not ranked else run.headline.measure for run in runs
    }
    return found.pop() if len(found) == 1 else SUCCESS.name


def measures_of(runs: Sequence[Summary]) -> dict[str, Measure]:
    """Declared measures, then undeclared metrics. Higher counts as better for the latter, except CPU and wall time."""
    metrics = {name for run in runs for result in run.results for name in result.metrics or {}}
    usual = {name: Measure(name=name, direction="higher") for name in sorted(metrics)}
    return (
        usual
        | {name: _OF_PROGRAMS[name] for name in usual.keys() & _OF_PROGRAMS.keys()}
        | declared(runs)
    )


def measure_named(name: str, runs: Sequence[Summary]) -> Measure:
    """The measure with this name. Raises KoderzError if no result has one."""
    known = measures_of(runs)
    if name not in known:
        raise KoderzError(f"no result has a measure {name!r}; choose from {', '.join(known)}")
    return known[name]


def named_average(measure: Measure) -> str:
    """The heading of a column of averages of the measure."""
    how = {"geometric": "GM", "median": "Median"}.get(measure.averaged, "Avg")
    return f"{how} {measure.name}"


def summed_up(value: float, measure: Measure) -> str:
    """An average with the name of its measure, for lists of several measures: `speedup_base 2.05 times`."""
    return f"{measure.name} {shown(value, measure)}".removesuffix(" share")


def shown(value: float, measure: Measure, *, signed: bool = False) -> str:
    """A mean, or a difference of means, as text: `71.3%`, `+4.2 points`, `$0.00120`, `1.25 s`."""
    plus = "+" if signed else ""
    sign = "-" if value < 0 else plus
    size = abs(value)
    if measure.two_valued:
        return f"{sign}{100 * size:.1f}{' points' if signed else '%'}"
    if measure.unit == "$":
        return f"{sign}${size:.5f}"
    if size >= 1000:
        digits = f"{size:,.0f}"
    elif size >= 1 or not size:
        digits = f"{size:.2f}"
    else:
        digits = f"{size:.3g}"
    if signed and size < 1:
        # so that signs stand in one column
        digits = digits.ljust(len("0.00"), "0") if "." in digits else digits
    return f"{sign}{digits}{f' {measure.unit}' if measure.unit else ''}"


def interval_text(
    interval: tuple[float, ...] | None, measure: Measure, *, signed: bool = False
) -> str:
    """Both ends of an interval, with the word `points` once."""
    if interval is None:
        return ""
    low, high = (shown(limit, measure, signed=signed).removesuffix(" points") for limit in interval)
    return f"{low} to {high}"
