"""A run seen from another process while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.journal import NAME, Follower
from koderz_tracker.records import Finished, Record, Resumed, encode
from tests.tracker import builders
from tests.tracker.builders import attempt, call, fault, judged


def follow(tmp_path: Path, *records: Record) -> Follower:
    folder = a_journal(tmp_path, *records)
    follower = Follower(folder)
    follower.catch_up()
    return follower


def figures(follower: Follower) -> dict[str, float]:
    counted = {name: getattr(follower.tally, name) for name in ("judged", "passed", "faults", "calls", "cost")}
    return counted | {name: getattr(follower, name) for name in ("tokens_out", "done", "in_flight")}


def test_follower_sees_the_state_of_the_run(tmp_path: Path) -> None:
    follower = follow(tmp_path, call(0), attempt(0), judged(0, True), call(1), judged(1, False), fault(2), call(3))

    assert figures(follower) == {
        "judged": 2,
        "passed": 1,
        "faults": 1,
        "calls": 3,
        "tokens_out": 9,
        "cost": 0.75,
        "done": 3,
        "in_flight": 1,
    }
    assert follower.ended == ""


def test_follower_reads_on_from_its_position(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / NAME
    path.write_bytes(encode(a_plan()))
    follower = Follower(folder)
    for done, record in enumerate((judged(0), judged(1), judged(2)), 1):
        with path.open("ab") as file:
            file.write(encode(record))
        follower.catch_up()
        assert follower.done == done
    follower.catch_up()
    assert follower.done == 3


def test_follower_waits_for_the_rest_of_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / NAME
    line = encode(judged(0))
    path.write_bytes(encode(a_plan()) + line[:40])
    follower = Follower(tmp_path)

    follower.catch_up()
    assert follower.done == 0
    with path.open("ab") as file:
        file.write(line[40:])
    follower.catch_up()

    assert (follower.done, follower.tally.passed) == (1, 1)


def test_follower_counts_a_retried_experiment_by_its_last_end(tmp_path: Path) -> None:
    follower = follow(tmp_path, fault(0), judged(1, False), Resumed(how="rescore"), judged(0, True), fault(1))

    assert (follower.tally.judged, follower.tally.passed, follower.tally.faults, follower.done) == (1, 1, 1, 2)


def test_follower_takes_a_retried_experiment_for_unfinished(tmp_path: Path) -> None:
    before = (call(0), judged(0, True), call(1), fault(1), call(2))

    retried = follow(tmp_path / "a", *before, Resumed(how="retry"))
    assert (retried.done, retried.tally.judged, retried.tally.faults, retried.in_flight) == (1, 1, 0, 0)
    again = follow(tmp_path / "b", *before, Resumed(how="retry"), call(1), judged(1, False))
    assert (again.done, again.tally.judged, again.tally.faults, again.in_flight) == (2, 2, 0, 0)
    rescored = follow(tmp_path / "c", *before, Resumed(how="rescore"))
    assert (rescored.done, rescored.tally.judged, rescored.tally.passed, rescored.tally.faults) == (0, 0, 0, 0)
    resumed = follow(tmp_path / "d", *before, Resumed())
    assert (resumed.done, resumed.tally.faults) == (2, 1)


def test_follower_tells_the_end_of_the_last_session_with_its_reason(tmp_path: Path) -> None:
    stopped = Finished(status="stopped", reason="the cap")

    assert follow(tmp_path / "a", stopped).ended == "stopped: the cap"
    assert follow(tmp_path / "b", Finished(status="complete")).ended == "complete"
    assert follow(tmp_path / "c", stopped, Resumed()).ended == ""


def test_follower_pace_counts_from_the_first_look(tmp_path: Path) -> None:
    follower = follow(tmp_path, call(0), judged(0))

    assert follower.pace() == (0, 0)
    with (tmp_path / builders.RUN / NAME).open("ab") as file:
        file.write(encode(call(1)) + encode(judged(1)))
    follower.catch_up()
    experiments, tokens = follower.pace()
    assert experiments > 0
    assert tokens == pytest.approx(3 * experiments, rel=0.5)


def test_lines_of_an_unknown_kind_change_nothing(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0))
    with (folder / NAME).open("ab") as file:
        file.write(b'{"kind":"artifact","experiment_id":"exp_00000000000000ff","cost":7}\n')
    follower = Follower(folder)

    follower.catch_up()

    assert (follower.done, follower.tally.cost, follower.in_flight) == (1, 0.0, 0)


def test_follower_stays_ended_after_a_line_of_unknown_kind(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, Finished(status="complete"))
    with (folder / NAME).open("ab") as file:
        file.write(b'{"kind":"artifact"}\n')
    follower = Follower(folder)

    follower.catch_up()

    assert follower.ended == "complete"


def test_follower_leaves_out_a_damaged_last_line(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0))
    with (folder / NAME).open("ab") as file:
        file.write(b"\0" * 50 + b"\n")
    follower = Follower(folder)

    follower.catch_up()

    assert follower.done == 1


def test_follower_counts_a_remote_line_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    heard: list[object] = []
    (folder / NAME).write_bytes(encode(a_plan()))
    follower = Follower(folder, lambda line: heard.append(line["kind"]))
    lines = [encode(record) for record in (call(0), judged(0, True))]

    for line in lines:
        follower.add(line)
    before = (follower.done, follower.recorded)
    with (folder / NAME).open("ab") as file:
        file.writelines(lines)
    follower.catch_up()

    assert before == (1, 0)
    assert (follower.done, follower.recorded, follower.tally.calls) == (1, 1, 1)
    assert heard == ["call", "experiment", "plan"]
