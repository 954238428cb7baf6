"""What a run has on record of one experiment."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from koderz.testing import a_journal
from koderz_tracker.records import Call
from koderz_tracker.stories import Stories
from koderz_tracker.tracker import Tracker
from tests.tracker.builders import attempt, call, experiment_id, judged

LONG = "a long question " * 1000


def test_story_of_an_experiment_is_ordered_and_whole(tmp_path: Path) -> None:
    large = "x" * (3 << 20)
    first = replace(call(0), messages=[{"role": "user", "content": LONG}], reply=large)
    second = replace(call(1), messages=[{"role": "user", "content": LONG}])
    folder = a_journal(tmp_path, first, second, attempt(0), judged(0, True))
    stories = Stories(folder)
    stories.refresh()
    story = stories.of(experiment_id(0))
    assert [record.kind for record in story] == ["call", "attempt", "experiment"]
    asked = story[0]
    assert isinstance(asked, Call)
    assert asked.messages == [{"role": "user", "content": LONG}]
    assert asked.reply == large


async def test_story_follows_an_unfinished_run(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, call(0))
    stories = Stories(folder)
    assert [entry.kind for entry in stories.refresh()] == ["plan", "call"]
    with Tracker.reopen(folder) as tracker:
        await tracker.record(attempt(0))
        assert [entry.kind for entry in stories.refresh()] == ["attempt"]
        assert stories.refresh() == []
        await tracker.record(judged(0, True))
        assert [entry.kind for entry in stories.refresh()] == ["experiment"]
    assert [record.kind for record in stories.of(experiment_id(0))] == ["call", "attempt", "experiment"]


def test_story_of_an_unknown_experiment_is_none(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, call(0))
    stories = Stories(folder)
    stories.refresh()
    assert stories.of(experiment_id(7)) == []
