"""Runs read back: from files old and new, from journals, and what is said of files that won't do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import koderz
from koderz.analysis.runs import load_run, resolve
from koderz.errors import KoderzError
from koderz.testing import a_journal
from koderz_tracker.runs import lock_run
from koderz_tracker.sinks.json import write_summary
from tests.koderz.analysis import builders
from tests.tracker import builders as journals


def test_old_summary_is_read_with_defaults(tmp_path: Path) -> None:
    results = [{"problem_id": "T/0", "success": True}, {"problem_id": "T/1", "success": False, "iterations": 3}]
    path = builders.write(tmp_path / "old.json", {"mode": "iterative", "results": results, "summary": {}})

    run = koderz.load_summary(str(path))

    assert (run.name, run.status, run.model, run.planned, run.simulated) == ("old", "complete", "unknown", 2, False)
    assert run.summary.success_rate == 50.0
    assert [(r.verdict, r.solver, r.calls) for r in run.results] == [
        ("passed", "iterative", 1),
        ("failed", "iterative", 3),
    ]


def test_rows_without_sample_are_samples_in_order(tmp_path: Path) -> None:
    rows = [{"problem_id": "T/0", "success": success} for success in (True, False, True)]

    run = koderz.load_summary(builders.write(tmp_path / "old.json", {"results": rows}))

    assert [(r.sample, r.success) for r in run.results] == [(0, True), (1, False), (2, True)]


def test_arms_are_read_in_both_forms(tmp_path: Path) -> None:
    both = koderz.load_summary(builders.write(tmp_path / "a.json", builders.comparative([True, False], [True, True])))
    arms = {name: builders.arm([True]) for name in ("human", "agent", "baseline")}
    three = koderz.load_summary(builders.write(tmp_path / "b.json", {"mode": "patches", "arms": arms}))

    assert {name: arm.summary.success_rate for name, arm in both.arms.items()} == {"zero-shot": 50, "iterative": 100}
    assert list(three.arms) == ["human", "agent", "baseline"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty; get it again"),
        (json.dumps(builders.document())[:-40], "is truncated or no JSON"),
        ("\ufeff{}", "is truncated or no JSON"),
        ("[1, 2]", "is no summary of a run"),
        ("3", "is no summary of a run"),
        ("{}", "holds no results"),
        ('{"name": "package", "version": 3}', "holds no results"),
        ('{"results": null}', "holds no results"),
        (json.dumps(builders.document(schema_version=7)), "newer koderz .schema 7; this one reads up to 1.; upgrade"),
        (json.dumps(builders.document(schema_version="x")), "is no summary"),
        (
            json.dumps(builders.document(results=[{**builders.row("T/0", True), "success": "yes"}])),
            r"results\[0\].success.* get it again",
        ),
        (json.dumps(builders.document(results=[{"success": True}])), "problem_id"),
        (json.dumps(builders.document([True], cost=-1.0)), r"results\[0\].cost"),
        (
            json.dumps(builders.document([True] * 4, summary={"successes": 3})),
            "says successes 3, its results come to 4",
        ),
        (json.dumps(builders.document([True, False], summary={"success_rate": 51})), "says success_rate 51"),
        (json.dumps(builders.document(results=[builders.row("T/0", True)] * 2, summary={})), "T/0 .* 2 times"),
        (json.dumps(builders.document([True], judge={"caveats": 3})), "edited or is damaged: Expected `array`"),
        ('{"results": ' + "[" * 5000 + "]" * 5000 + "}", "edited or is damaged|no JSON"),
    ],
)
def test_bad_summary_is_one_line_with_its_name_and_advice(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)

    with pytest.raises(KoderzError, match=says) as raised:
        koderz.load_summary(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_bytes_that_are_no_text_are_no_summary(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b'{"results": [], "mode": "\xff\xfe"}')

    with pytest.raises(KoderzError, match=r"bad\.json"):
        koderz.load_summary(tmp_path / "bad.json")


def test_damaged_summary_beside_its_journal_can_be_written_again(tmp_path: Path) -> None:
    folder = a_journal(tmp_path)
    folder.with_suffix(".json").write_text('{"results": ')

    with pytest.raises(KoderzError, match=f"koderz benchmark resume {folder.name}"):
        koderz.load_summary(folder.with_suffix(".json"))


def test_run_without_a_summary_is_read_from_its_journal(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, journals.judged(0), journals.judged(1, success=False))

    (killed,) = resolve(["latest"], tmp_path)
    with lock_run(folder):
        (going,) = resolve(["latest"], tmp_path)

    assert (killed.status, going.status) == ("unfinished", "running")
    assert (going.summary.successes, len(going.results), going.planned) == (1, 2, 3)
    assert going.is_going
    assert going.folder == folder


def test_newer_journal_wins_over_its_summary(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, journals.judged(0))
    path, _ = write_summary(folder)
    assert load_run(folder).path == path

    os.utime(path, ns=(0, 0))

    assert load_run(folder).path == folder


def test_run_names_may_be_ids_prefixes_and_files(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in (builders.RUN, builders.OTHER):
        builders.write(results / f"{name}.json", builders.document(run_id=name))
    elsewhere = builders.write(tmp_path / "baseline.json", builders.document(run_id="bench_ffffffff_20250101_000000"))

    named = resolve(["latest", "latest~1", builders.RUN, "0a1b2c3e", str(elsewhere)], results)

    assert [run.name for run in named] == [
        builders.OTHER,
        builders.RUN,
        builders.RUN,
        builders.OTHER,
        "bench_ffffffff_20250101_000000",
    ]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("0a1b2c3", "is the beginning of 2 runs"),
        ("latest~2", "holds 2 runs"),
        ("nowhere.json", r"nowhere.json can't be read \(No such file"),
        ("x" * 400, "there is no run x"),
        ("../x", "is no run"),
    ],
)
def test_unknown_run_name_says_so(tmp_path: Path, name: str, says: str) -> None:
    for run_id in (builders.RUN, builders.OTHER):
        builders.write(tmp_path / f"{run_id}.json", builders.document(run_id=run_id))

    with pytest.raises(KoderzError, match=says):
        resolve([name], tmp_path)


def test_simulated_and_real_runs_are_never_mixed_unasked(tmp_path: Path) -> None:
    fake: dict[str, Any] = builders.document(model="simulated")
    names = [
        str(builders.write(tmp_path / "fake.json", fake)),
        str(builders.write(tmp_path / "r.json", builders.document())),
    ]

    with pytest.raises(KoderzError, match=r"SIMULATED.*--allow-simulated"):
        resolve(names, tmp_path)
    assert len(resolve(names, tmp_path, allow_simulated=True)) == 2
