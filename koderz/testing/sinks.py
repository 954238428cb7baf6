"""Conformance tests of sinks: functions that raise AssertionError if a sink breaks the rules.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_lines_is_a_sink(check, tmp_path):
        asyncio.run(check(tmp_path, SinkTarget("lines", lambda folder: (folder / "lines.txt").read_text())))

Each check hands over the records of two experiments, whose replies hold whatever a target may stumble over. Checks that
are given the same folder and target, one after another, share a run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

from koderz.runs.session import begin
from koderz.testing.engines import planned, shared
from koderz.testing.factories import FakeModel
from koderz.testing.suites import HOSTILE
from koderz_tracker.records import Record
from koderz_tracker.sinks import Source, open_sink, sink_class
from koderz_tracker.stories import Stories


@dataclass(frozen=True)
class SinkTarget:
    """A sink, and how to see what it has made."""

    sink: str
    """Its name."""

    content: Callable[[Path], object]
    """The target's content as a value that can be compared, from a run's folder. Without times of writing."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables by which the target is found."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run, such as the suite and the solver that name the sink."""


Check = Callable[[Path, SinkTarget], Coroutine[Any, Any, None]]


async def records_that_come_again_change_nothing(folder: Path, target: SinkTarget) -> None:
    """Handed over twice, all of them, the first or the last, records leave the target as it is."""
    run = await _recorded_run(folder, target)
    content = _taken(run, target, [_records(run)])
    lines = _records(run)
    assert content == _taken(run, target, [lines]), (
        "records that came again have changed the target"
    )
    middle = len(lines) // 2
    assert content == _taken(run, target, [lines[middle:]]), "the later half has changed the target"
    assert content == _taken(run, target, [lines[:1], lines[:middle]]), (
        "the first half has changed the target"
    )


async def batches_of_any_size_come_to_the_same(folder: Path, target: SinkTarget) -> None:
    """One record at a time, each by an instance of its own, gives the same target as all at once."""
    run = await _recorded_run(folder, target)
    lines = _records(run)
    for line in lines:
        content = _taken(run, target, [[line]])
    assert content == _taken(run, target, [lines]), "the target depends on the size of the batches"


async def a_target_can_be_made_anew(folder: Path, target: SinkTarget) -> None:
    """`rebuild` leaves a target that is whole once every record has been handed over again."""
    run = await _recorded_run(folder, target)
    content = _taken(run, target, [_records(run)])
    sink_class(target.sink).rebuild(run.parent, target.environ)
    assert content == _taken(run, target, [_records(run)]), "after `rebuild` the target is another"


async def its_place_is_said_in_one_line(folder: Path, target: SinkTarget) -> None:
    """`check` returns at most one line, for `koderz doctor`."""
    place = sink_class(target.sink).check(
        (await _recorded_run(folder, target)).parent, target.environ
    )
    assert "\n" not in place, place


CHECKS: tuple[Check, ...] = (
    records_that_come_again_change_nothing,
    batches_of_any_size_come_to_the_same,
    a_target_can_be_made_anew,
    its_place_is_said_in_one_line,
)
"""All of them. None depends on another."""


async def _recorded_run(folder: Path, target: SinkTarget) -> Path:
    """The folder of a run that no sink has been fed with, but for those that its suite and solver name."""
    return await shared("recorded run", (folder, target), partial(_recorded_anew, folder, target))


async def _recorded_anew(folder: Path, target: SinkTarget) -> Path:
    plan = await planned(folder, "local", **{"sinks": ("json",), "tasks": 2, **target.settings})
    replies = cycle(["".join(HOSTILE.values()), HOSTILE["NUL characters"]])
    model = FakeModel(lambda *_: next(replies))
    with patch.object(plan.suite, "simulated_model", lambda *_: model):
        return (await begin(plan, environ=target.environ)).folder


def _records(run: Path) -> Sequence[Record]:
    stories = Stories(run)
    return [*stories.records([entry.span for entry in stories.refresh()])]


def _taken(run: Path, target: SinkTarget, batches: Sequence[Sequence[Record]]) -> object:
    """The target's content after a new instance has taken these batches."""
    stories = Stories(run, target.environ)
    stories.refresh()
    with closing(
        open_sink(target.sink, Source(run, stories.plan, stories, target.environ))
    ) as sink:
        for batch in batches:
            sink.take(batch)
    return target.content(run)
