"""Warnings for readers of a comparison, and the differences between the runs' settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koderz.analysis.blocks import Block, Heading, Table
from koderz.analysis.intervals import FEWEST_TO_RESAMPLE
from koderz.analysis.measures import SUCCESS, declared
from koderz.analysis.pairs import Matched, Side, judged_apart, shared_replies
from koderz.analysis.runs import FAULT
from koderz.analysis.statistics import FEWEST_TASKS
from koderz.settings.schema import OF_REUSE, OF_SINKS
from koderz.types import NEEDS_REVIEW
from koderz_tracker.results import UnreadAnswers, untold

_MOST_TASKS = 12  # that are named

# Tasks are matched one by one; the others change no result.
_OF_NO_MATTER = frozenset({"problems", "results", "grace", *OF_REUSE, *OF_SINKS})


def notes_on(a: Side, b: Side, matched: Matched) -> list[str]:
    """The warnings about a comparison, one sentence each."""
    return [
        *_on_measure(a, b, matched),
        *_on_tests(matched),
        *_on_clusters(matched),
        *cautions_on(a, b, matched),
    ]


def cautions_on(a: Side, b: Side, matched: Matched) -> list[str]:
    """The warnings about what is compared, whatever the test."""
    return [
        *_on_pairing(matched),
        *_on_reuse(a, b, matched),
        *_on_comparability(a, b),
        *filter(None, [unread_note([("A", a.figures.unread), ("B", b.figures.unread)])]),
        *_on_side("A", a),
        *_on_side("B", b),
    ]


def _on_measure(a: Side, b: Side, matched: Matched) -> Iterator[str]:
    name = matched.measure.name
    if name not in declared([a.run, b.run]):
        yield f"The suite doesn't declare which direction of {name} is better; here the higher one is."
    for side, values, which in ((a, matched.a, "A"), (b, matched.b, "B")):
        have = sum(map(len, values.values()))
        if name != SUCCESS.name and have < len(side.results):
            yield f"{have} of {len(side.results)} results of {which} have a {name}; the others are left out."


def _on_pairing(matched: Matched) -> Iterator[str]:
    if matched.kind == "nothing":
        return
    if count := matched.differing:
        what = "1 task of one id asks" if count == 1 else f"{count} tasks of one id ask"
        yield f"{what} something else in A and in B, so they are not paired."
    if matched.kind == "unpaired":
        unpaired = "so they are compared unpaired: only a large difference can show"
        stopped = "and a run stopped once it was decided: what holds then takes tasks in common"
        yield f"A and B have no task in common, {unpaired if matched.order is None else stopped}."
    elif len(matched.tasks) < max(len(matched.a), len(matched.b)):
        left = len(matched.a) - len(matched.tasks), len(matched.b) - len(matched.tasks)
        yield (
            f"Rates and differences are over the {len(matched.tasks)} tasks that both were judged on; "
            f"left out: {left[0]} others of A's, {left[1]} of B's."
        )


def _on_reuse(a: Side, b: Side, matched: Matched) -> Iterator[str]:
    """Notes on replies that one side took from the other, or both from a third, and on what the judge alone changed."""
    shared, same = sum(shared_replies(a, b).values()), matched.same_replies
    if not shared:
        return
    tasks = (
        f"; {len(same)} task{'s' * (len(same) > 1)} with no others are left out of the test"
        if same
        else ""
    )
    yield f"A and B share {shared} {'replies' if shared > 1 else 'reply'}, which are no new evidence{tasks}."
    if apart := judged_apart(a, b, same):
        more = (
            f", … ({len(apart) - _MOST_TASKS} more; --json has all)"
            if len(apart) > _MOST_TASKS
            else ""
        )
        yield f"Judged otherwise on the same replies: {', '.join(apart[:_MOST_TASKS])}{more}."


def _on_tests(matched: Matched) -> Iterator[str]:
    if matched.kind == "nothing":
        return
    if matched.kind == "samples" and matched.measure.two_valued and matched.order is None:
        yield "There are several samples a task, so McNemar's test gives way to tests clustered by task."
    tasks = matched.smallest_side
    groups = min(tasks, matched.cluster_count or tasks)
    if tasks < FEWEST_TASKS:
        number = "1 task is" if tasks == 1 else f"{tasks} tasks are"
        yield f"{number} too few to show anything: it takes {FEWEST_TASKS} at least."
    if groups < FEWEST_TO_RESAMPLE and matched.order is None:
        what = "clusters" if groups < tasks else "tasks"
        yield f"Averages such as cost and latency have intervals on {FEWEST_TO_RESAMPLE} {what} and more."


def _on_clusters(matched: Matched) -> Iterator[str]:
    count = matched.cluster_count
    if count == 1:
        yield "All tasks are of one cluster, so there is no interval, and no difference can be shown."
    elif count:
        yield f"The tasks are in {count} clusters, which tests, intervals and power take into account."
    if count and 1 < count < FEWEST_TASKS:
        yield f"{count} clusters are too few to show anything: it takes {FEWEST_TASKS} at least."


def _on_comparability(a: Side, b: Side) -> Iterator[str]:
    if simulated := [name for name, side in (("A", a), ("B", b)) if side.simulated]:
        which = f"{' and '.join(simulated)} {'are' if len(simulated) > 1 else 'is'}"
        yield f"{which} of the SIMULATED model: these figures say nothing about any real one."
    if a.run.generated:
        yield f"GENERATED data, {a.run.generated}: these figures don't belong beside published ones."
    for name, side in (("A", a), ("B", b)):
        if side.run.rewarded_in:
            yield f"REWARDED tasks: models were rewarded on {name}'s tasks in {', '.join(side.run.rewarded_in)}."
    if a.run.suite != b.run.suite:
        yield f"A's suite is {a.run.suite}, B's {b.run.suite}: tasks of one id may not be the same tasks."
    digests = a.run.environment.get("dataset_digest"), b.run.environment.get("dataset_digest")
    if all(digests) and digests[0] != digests[1] and a.run.suite == b.run.suite:
        yield "A and B were run on different versions of the dataset: tasks of one id may not be the same tasks."


_MOST_APART = 2.0  # points


def unread_note(sides: Sequence[tuple[str, UnreadAnswers | None]]) -> str:
    """A warning where shares of unread answers lie more than 2 points apart; empty where they don't."""
    found = sorted((unread.rate, name) for name, unread in sides if unread)
    if not found or found[-1][0] - found[0][0] <= _MOST_APART:
        return ""
    (least, first), (most, last) = found[0], found[-1]
    return (
        f"In {last} {most:.1f}% of the answers can't be read, in {first} {least:.1f}%; they count as wrong, so part "
        "of the difference may be one of form: see the replies with `koderz benchmark show RUN --failures`."
    )


def _on_side(name: str, side: Side) -> Iterator[str]:
    run = side.run
    if run.is_going or run.early or (run.status != "complete" and not side.faults):
        asked = run.asked_of(side.arm)
        yield f"{name} {run.progress}{asked and f'; its averages are {asked}'}."
    if not side.results:
        yield f"{name} has no results."
    if note := side.figures.truncated.note(side.figures.total_problems):
        yield f"In {name} {note}."
    if side.faults:
        yield f"{name} has {side.faults} experiments that ended in a fault; they count neither way."
    if failed := sum(result.verdict == FAULT for result in side.results):
        yield f"{name} has {failed} faults, which count as failures here."
    if count := sum(result.note.startswith(NEEDS_REVIEW) for result in side.results):
        which = "1 result needs" if count == 1 else f"{count} results need"
        yield f"{which} review in {name}: they are too good to be believed unread; their notes say why."
    if not side.figures.cost_known and "cost" not in untold(side.results):
        yield f"{name}'s costs are too low: what some calls cost is unknown."


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The names with two different values; None for a missing value. Nested names are joined by dots."""
    flat_a, flat_b = _flat(a), _flat(b)
    return {
        name: (flat_a.get(name), flat_b.get(name))
        for name in dict.fromkeys([*flat_a, *flat_b])
        if flat_a.get(name) != flat_b.get(name)
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif prefix or name not in _OF_NO_MATTER:
            found[f"{prefix}{name}"] = value
    return found


def differing_values(title: str, values: Mapping[str, tuple[Any, Any]]) -> Iterator[Block]:
    """A table of what A and B have different values of; nothing where there is none."""
    if values:
        yield Heading(title)
        yield Table(
            ["", "A", "B"],
            [
                [name, *("" if value is None else str(value) for value in pair)]
                for name, pair in values.items()
            ],
        )
