"""What is written down is one JSON object a line, which older and newer versions can read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koderz.testing import a_plan
from koderz_tracker.errors import JournalError
from koderz_tracker.records import (
    KINDS,
    Batch,
    Blob,
    Call,
    Compute,
    Decision,
    Finished,
    Grade,
    JudgeCalibration,
    LongMessage,
    Once,
    Record,
    Resumed,
    Reward,
    Submitted,
    decode,
    encode,
    kind_of,
    now,
)
from tests.tracker import builders

ONE_OF_EACH: tuple[Record, ...] = (
    a_plan(),
    LongMessage(digest="ab" * 32, role="user", content="long"),
    builders.call(0, sampling={"temperature": 0.5}, adapted=["temperature dropped"], reasoning="hm"),
    builders.attempt(0, program="def f(): ...", metrics={"cpu": 0.5}, score=0.25),
    Once(experiment_id="exp_00000000000000ab", name="measure", value={"at": [1, 2]}, key="once:measure/1"),
    builders.judged(0, cost_by_tier={"local": 0.1, "spec": 0.2}),
    builders.fault(0, cost=0.5),
    Resumed(how="retry", config={"concurrency": 3}),
    Finished(status="complete"),
    Submitted(
        experiment_id="exp_00000000000000ab",
        problem_id="T/0",
        engine="modal",
        call_id="fc-1",
        url="https://modal.com/id/fc-1",
    ),
    Compute(experiment_id="exp_00000000000000ab", engine="modal", gpu="L4", seconds=2.0, cost_per_second=0.5, cost=1.0),
    Grade(experiment_id="exp_00000000000000ab", item="q1", score=0.5, metrics={"tokens": 3.0}, key="grade:q1/1"),
    Reward(
        id="r1", suite="own", task="T/0", task_digest="ab" * 8, reply="x", reward=1.0, verdict="passed", tests_passed=3
    ),
    JudgeCalibration(digest="ab", arms={"zero-shot": {"items": 40, "rate": 0.5}}),
    Decision(
        outcome="shown",
        a="one",
        b="two",
        tasks=10,
        planned=20,
        a_mean=50.0,
        b_mean=90.0,
        difference=40.0,
        interval=(0.5, 70.0),
        interval_method="betting",
        e_value=28.4,
        alpha=0.05,
        left_out={"one": 1},
        path=((10, 28.4, 0.5, 70.0),),
    ),
    Batch(
        name="0123456789abcdef",
        state="sending",
        provider="openai",
        model="openai/gpt-6-luna",
        count=1,
        lines="exp_00000000000000ab-0123-1 89abcdef 0.001\n",
    ),
)


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: record.kind)
def test_records_of_every_kind_are_read_back(record: Record) -> None:
    again = decode(encode(record))

    assert again is not None
    assert type(again) is type(record)
    assert encode(again) == encode(record)


def test_records_have_an_example_of_every_kind() -> None:
    assert {record.kind for record in ONE_OF_EACH} == set(KINDS)


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: record.kind)
def test_record_line_begins_with_kind_and_time(record: Record) -> None:
    line = encode(record)

    assert list(json.loads(line))[:2] == ["kind", "time"]
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert kind_of(line) == record.kind


@given(st.text())
def test_record_keeps_any_text_on_its_line(text: str) -> None:
    line = encode(builders.call(0, text=text, reply=text))
    again = decode(line)

    assert isinstance(again, Call)
    assert (again.reply, again.messages[0]["content"]) == (text, text)
    assert line.count(b"\n") == 1


def test_record_tells_a_blob_from_an_inline_text() -> None:
    blob = Blob("ab" * 32, 2_000_000)
    again = decode(encode(builders.call(0, reply=blob)))

    assert isinstance(again, Call)
    assert again.reply == blob
    assert b'"reply":{"blob":"abab' in encode(builders.call(0, reply=blob))


@pytest.mark.parametrize("line", [b'{"kind":"artifact","time":"t"}\n', b"[]\n", b"{}\n", b"\n", b'{"time":1}\n'])
def test_record_of_an_unknown_kind_is_none(line: bytes) -> None:
    assert decode(line) is None


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: record.kind)
def test_fields_that_this_version_does_not_know_are_ignored(record: Record) -> None:
    fields = json.loads(encode(record)) | {"colour": {"deep": [1]}}
    line = json.dumps(fields, separators=(",", ":")).encode()

    again = decode(line)

    assert again is not None
    assert encode(again) == encode(record)


def test_record_of_an_older_version_gets_defaults() -> None:
    line = b'{"kind":"call","experiment_id":"exp_1","call":1,"purpose":"p","model":"m","messages":[],"reply":"x"}'
    found = decode(line)

    assert isinstance(found, Call)
    assert (found.tokens_in, found.cost, found.cost_known, found.finish_reason) == (0, 0.0, True, "stop")


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"finished","status":3}',
        b'{"kind":"finished"}',
        b'{"kind":"finished","status":"complete"',
        b'{"kind":"call","experiment_id":"exp_1","call":"one"}',
        b'{"kind":"finished","status":"\xff"}',
    ],
)
def test_record_that_is_malformed_is_a_journal_error(line: bytes) -> None:
    with pytest.raises(JournalError, match="not a journal line"):
        decode(line)


@pytest.mark.parametrize(
    "record",
    [
        builders.call(0, reply="half a pair \ud800"),
        Once(experiment_id="exp_1", name="x", value=object()),
        Finished(status="complete", reason="\udfff"),
    ],
)
def test_record_that_json_cannot_hold_names_its_kind(record: Record) -> None:
    with pytest.raises(JournalError, match=f"a {record.kind} can't be written down"):
        encode(record)


def test_times_are_local_with_microseconds_and_without_an_offset() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}", now())


@pytest.mark.parametrize(
    ("more", "planned"),
    [({}, 3), ({"arms": ("zero-shot", "iterative")}, 6), ({"samples": 5}, 15), ({"tasks": 0}, 0)],
)
def test_plan_counts_its_experiments(more: dict[str, Any], planned: int) -> None:
    assert a_plan(**more).planned == planned
