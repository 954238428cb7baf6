"""The plan's record of how a run stops once it is decided, checked before it begins."""

from __future__ import annotations

import random
from collections.abc import Iterator

from koderz.errors import KoderzError
from koderz.settings.options import flag_of
from koderz.settings.schema import FIRST_ARM, Settings
from koderz_tracker.basis import PASSES, PASSING, Measure, UntilDecided
from koderz_tracker.breakdown import bounds_of
from koderz_tracker.rates import SHARE, Interval
from koderz_tracker.records import Plan
from koderz_tracker.results import clusters_in, members
from koderz_tracker.stopping import FEWEST


def until_decided(plan: Plan, settings: Settings) -> UntilDecided | None:
    """The way in which the run stops; None if everything is asked. KoderzError for settings that don't fit the plan."""
    if settings.until_decided is None:
        given = {
            "alpha": settings.alpha,
            "margin": settings.margin,
            "min_tasks": settings.min_tasks,
        }
        for name, value in given.items():
            if value is not None:
                raise KoderzError(f"{flag_of(name)} is for runs with --until-decided")
        return None
    names = [arm.name for arm in plan.arms]
    arm = _arm(settings.until_decided, names)
    measure = decided_measure(plan)
    bounds_in(plan, measure)
    apart = {*plan.apart}
    units = members([task for task in plan.tasks if task not in apart], clusters_in(plan))
    random.Random(settings.seed).shuffle(units)  # noqa: S311 repeatable on purpose
    largest = max(map(len, units), default=1)
    return UntilDecided(
        arm=arm,
        order=[task for unit in units for task in unit],
        alpha=0.05 if settings.alpha is None else settings.alpha,
        margin=settings.margin,
        fewest=FEWEST if settings.min_tasks is None else settings.min_tasks,
        measure=measure,
        largest=largest if largest > 1 else 0,
    )


def _arm(given: str, names: list[str]) -> str:
    if len(names) < 2:
        raise KoderzError(
            f"--until-decided compares arms, and this run has one, {names[0]}; name a second --model or --solvers A,B"
        )
    if given == FIRST_ARM:
        return names[0]
    for name in names:
        if name.replace("_", "-") == given.replace("_", "-"):
            return name
    raise KoderzError(
        f"--until-decided {given}: the run has no such arm; it has {', '.join(names)}"
    )


def decided_measure(plan: Plan) -> str:
    """The measure that decides: whether experiments pass, or what else the suite is summed up by."""
    headline = plan.headline or PASSING
    return PASSES if headline.passed else headline.measure


def bounds_in(plan: Plan, name: str) -> Interval:
    """The bounds of a measure. Raises KoderzError if it has none."""
    declared = {measure.name: measure for measure in plan.measures}
    measure = declared.get(name) or Measure(
        name=name, direction="higher", two_valued=name == PASSES
    )
    bounds = SHARE if name == PASSES else bounds_of(measure)
    if bounds is None:
        unit = f", in {measure.unit}," if measure.unit else ""
        raise KoderzError(
            f"--until-decided: {name}{unit} has no bounds, and a decision that holds at any stop needs some; "
            "run without it, or have the suite declare the measure's bounds"
        )
    return bounds


def compared_arms(plan: Plan) -> Iterator[str]:
    """The arms that are compared with the one named in `until_decided`."""
    assert plan.until_decided, "asked only of runs that are decided on"
    return (arm.name for arm in plan.arms if arm.name != plan.until_decided.arm)
