"""One run's way into one sink: in order, from the cursor on, and never the worse for being repeated."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.journal import NAME as JOURNAL
from koderz_tracker.records import Record, Resumed
from koderz_tracker.sinks import SinkDown, Source
from koderz_tracker.sinks.feeder import Projection, SinkBusy, start_again
from koderz_tracker.sinks.standing import NAME, Standing, choose_sinks, record_standings, standing_of
from koderz_tracker.tracker import Tracker
from tests.conftest import PATIENCE
from tests.tracker.builders import RUN, attempt, call, fault, judged
from tests.tracker.sinks.standins import rows_of


def a_run(results: Path, tasks: int = 20) -> Path:
    lines: list[Record] = [line for i in range(tasks) for line in (call(i), attempt(i), judged(i))]
    return a_journal(results, *lines, plan=a_plan(tasks))


def project(folder: Path, environ: Mapping[str, str], *, batches: int | None = None, name: str = "ledger") -> None:
    """Hands on all that is left, or so many batches."""
    with Projection(folder, name, {}, environ) as projection:
        while projection.look() and batches != 0:
            projection.take()
            batches = batches and batches - 1


def assert_whole(folder: Path) -> None:
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    rows = rows_of(folder.parent, folder.name)
    assert len(rows) == len(lines)
    standing = standing_of(folder)["ledger"]
    assert (standing.state, standing.bytes, standing.records) == ("up to date", sum(map(len, lines)), len(lines))


def test_projection_hands_over_every_record_and_keeps_a_cursor(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path)

    project(folder, standins)

    assert_whole(folder)


def test_projection_goes_on_where_it_stopped(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path)
    project(folder, standins, batches=1)
    standing = standing_of(folder)["ledger"]
    assert standing.state == "behind"
    assert 0 < standing.records < 61

    project(folder, standins)

    assert_whole(folder)


def test_records_after_a_later_session_follow(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_journal(tmp_path, call(0), fault(0))
    project(folder, standins)

    async def retry() -> None:
        with Tracker.reopen(folder) as tracker:
            await tracker.record(Resumed(how="retry"), call(0, 2), judged(0))

    asyncio.run(retry())
    assert standing_of(folder)["ledger"].state == "behind"
    project(folder, standins)

    assert_whole(folder)
    assert [row["kind"] for row in rows_of(tmp_path, RUN)].count("experiment") == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"bytes":', b'"bites":'),
        lambda data: b"[]",
        lambda data: b"\xff" * 99,
        lambda data: data.replace(b'"journal": "', b'"journal": "00'),
    ],
)
def test_cursor_lost_in_a_torn_file_hands_records_over_again(
    tmp_path: Path, standins: Mapping[str, str], damage: object
) -> None:
    folder = a_run(tmp_path, 4)
    project(folder, standins)
    path = folder / NAME
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]

    project(folder, standins)

    assert_whole(folder)


def test_cursor_within_a_line_is_not_believed(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 4)
    record_standings(folder, lambda _: {"ledger": Standing(state="behind", bytes=33, records=1)})

    project(folder, standins)

    assert_whole(folder)


def test_torn_last_line_holds_nothing_up(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 2)
    whole = (folder / JOURNAL).read_bytes()
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"kind":"call","time":"20')

    project(folder, standins)

    assert standing_of(folder)["ledger"].state == "up to date"
    assert standing_of(folder)["ledger"].bytes == len(whole)


def test_projection_allows_one_feeder_per_run_and_sink(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 1)
    with Projection(folder, "ledger", {}, standins):
        with pytest.raises(SinkBusy), Projection(folder, "ledger", {}, standins):
            pass
        with pytest.raises(SinkBusy):
            start_again(folder, "ledger")
        with Projection(folder, "other", {}, standins) as other:
            other.take() if other.look() else None


def test_projection_waits_for_an_earlier_feeder(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 1)
    with ThreadPoolExecutor(1) as beside:
        with Projection(folder, "ledger", {}, standins) as held:
            begun = beside.submit(start_again, folder, "ledger", PATIENCE)
            with pytest.raises(TimeoutError):
                begun.result(0.1)
            while held.look():
                held.take()
        begun.result()

    assert standing_of(folder)["ledger"].records == 0


def test_cursor_stays_while_a_sink_is_down(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path)
    project(folder, standins, batches=1)
    before = standing_of(folder)["ledger"].bytes
    (tmp_path / "ledger.down").touch()
    with pytest.raises(SinkDown):
        project(folder, standins)
    (tmp_path / "ledger.down").unlink()
    assert standing_of(folder)["ledger"].bytes == before

    project(folder, standins)

    assert_whole(folder)


class Faulty:
    """A sink with a bug in it."""

    def __init__(self, source: Source) -> None: ...

    def take(self, records: Sequence[Record]) -> None:
        raise ZeroDivisionError("one by none")

    def close(self) -> None: ...


def test_bug_in_a_sink_means_it_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz_tracker.sinks.SINKS", {"faulty": f"{__name__}:Faulty"})
    folder = a_run(tmp_path, 1)

    with pytest.raises(SinkDown, match="ZeroDivisionError: one by none"):
        project(folder, {}, name="faulty")


def test_options_that_change_start_from_the_beginning(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 2)
    with Projection(folder, "ledger", {"ledger_detail": "runs", "other_detail": "x"}, standins) as projection:
        projection.look()
        projection.take()
    assert standing_of(folder)["ledger"].options == {"ledger_detail": "runs"}

    for options, left in (({"ledger_detail": None}, 0), ({"ledger_detail": "runs"}, 0), ({"ledger_detail": "full"}, 7)):
        with Projection(folder, "ledger", options, standins) as projection:
            assert projection.look() == left


def test_cursor_is_kept_while_a_sink_is_turned_off(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 2)
    project(folder, standins)
    here = standing_of(folder)["ledger"].bytes

    choose_sinks(folder, (), ("ledger", "other"))
    assert {name: standing.state for name, standing in standing_of(folder).items()} == {"ledger": "off", "other": "off"}
    choose_sinks(folder, ("ledger",), ())

    assert (standing_of(folder)["ledger"].state, standing_of(folder)["ledger"].bytes) == ("behind", here)


def _mark(folder: Path, name: str) -> None:
    for number in range(40):
        record_standings(folder, lambda _, at=number: {name: Standing(state="behind", records=at + 1)})  # type: ignore[misc]


@pytest.mark.slow
def test_standings_that_are_written_at_once_are_all_there(tmp_path: Path) -> None:
    folder = a_run(tmp_path, 1)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_mark, args=(folder, f"sink{number}")) for number in range(3)]
    for process in others:
        process.start()
    for process in others:
        process.join()

    assert {name: standing.records for name, standing in standing_of(folder).items()} == dict.fromkeys(
        ("sink0", "sink1", "sink2"), 40
    )


def test_standings_of_an_unknown_run_are_empty(tmp_path: Path) -> None:
    assert standing_of(a_run(tmp_path, 1)) == {}
    assert standing_of(tmp_path / "nowhere") == {}
