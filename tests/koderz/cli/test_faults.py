"""Rates and claims beside faults: an honest model, and one that hangs on what it would fail."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Finished, Record
from koderz_tracker.sinks.json import write_summary
from tests.conftest import Shell
from tests.koderz.analysis import builders
from tests.koderz.cli.conftest import Command
from tests.tracker.builders import fault, judged

HONEST, HANGING = "bench_aaaaaaaa_20260131_120000", "bench_bbbbbbbb_20260131_130000"


def faults(tasks: range, arm: str = "zero-shot") -> list[dict[str, Any]]:
    return [
        {"experiment_id": f"exp_{i:016x}", "problem_id": f"T/{i}", "solver": arm, "arm": arm, "sample": 0,
         "reason": "m at loopback: Request timed out", "cause": "unreachable", "cost": 0.0}
        for i in tasks
    ]  # fmt: skip


@pytest.fixture
def results(koderz: Shell) -> Path:
    """An honest model passes 80 of 100 tasks; another passes 60 of them, and never ends a reply on the other 40."""
    folder = koderz.folder / "benchmark_results"
    honest = builders.document([i % 5 > 0 for i in range(100)], run_id=HONEST, model="honest")
    hanging = builders.document([True] * 60, run_id=HANGING, model="hanging", planned=100, status="incomplete")
    rate = {"success_rate_bounds": [60.0, 100.0]}
    hanging |= {"faults": faults(range(60, 100)), "summary": hanging["summary"] | rate}
    for document in (honest, hanging):
        builders.write(folder / f"{document['run_id']}.json", document)
    return folder


def test_rate_with_faults_stands_beside_its_bounds(command: Command, results: Path) -> None:
    bounds = "60.0% with its faults as failures, 100.0% as passes"

    assert bounds in command("benchmark", "show", HANGING).out
    assert bounds not in command("benchmark", "show", HONEST).out
    assert "40 faults (unreachable), with these 60.0 to 100.0%" in command("benchmark", "list").out
    compared = command("benchmark", "compare", HONEST, HANGING).out
    assert re.search(r"Faults failed to passed +\| +\| 60\.0% to 100\.0%", compared)
    command("benchmark", "report", HANGING, "-o", "page.html")
    page = Path("page.html").read_text()
    assert bounds in page
    assert "with them<br>60.0 to 100.0%" in page


def test_compare_claims_nothing_that_faults_could_turn(command: Command, results: Path) -> None:
    for pair, points, who in (((HONEST, HANGING), "+20.0", "B"), ((HANGING, HONEST), "-20.0", "A")):
        said = command("benchmark", "compare", *pair).out
        assert f"No claim: {points} points by what was judged (p < 0.001), but 40 faults of {who} (T/60, " in said
        assert "could turn it" in said
        assert "at their worst or best B - A is from -20.0 to +20.0." in said
    found = json.loads(command("benchmark", "compare", HONEST, HANGING, "--json").out)
    assert not found["significant"]
    assert found["p_value"] < 0.001  # by what was judged, as before
    assert found["completion"]["differences"] == pytest.approx([-20, 20])
    assert (len(found["completion"]["b"]), found["completion"]["could_turn"]) == (40, True)
    dearer = command("benchmark", "compare", HONEST, HANGING, "--measure", "cost", "--details").out
    assert "No significant difference in cost" in dearer


def test_claim_that_survives_the_worst_completion_is_made(command: Command, results: Path) -> None:
    poor = builders.document([i % 2 == 0 for i in range(100)], run_id="bench_cccccccc_20260131_140000")
    lost = {"planned": 103, "status": "incomplete", "faults": faults(range(100, 103))}
    builders.write(results / "bench_cccccccc_20260131_140000.json", poor | lost)

    assert "B is worse: -30.0 points" in command("benchmark", "compare", HONEST, "bench_c", "--details").out
    said = command("benchmark", "compare", HONEST, "bench_c", "--fail-on-regression", code=1).err
    assert "gate failed: the success rate dropped by 30.0 points" in said


def test_leaderboard_claims_nothing_that_faults_could_turn(command: Command, results: Path) -> None:
    third = builders.document([i < 20 for i in range(100)], run_id="bench_cccccccc_20260131_140000", model="poor")
    builders.write(results / "bench_cccccccc_20260131_140000.json", third)

    said = command("benchmark", "compare", HONEST, HANGING, "bench_c", "--details").out

    assert f"no claim that {HANGING} is better than {HONEST} (p < 0.001): " in said
    assert f"40 faults of {HANGING} (T/60, T/61, T/62, …) could turn it" in said
    assert f"{HONEST} is better than bench_cccccccc_20260131_140000: p < 0.001" in said
    assert f"{HANGING} is better than bench_cccccccc_20260131_140000: p < 0.001" in said  # 60 against 20, all failed
    board = json.loads(command("benchmark", "compare", HONEST, HANGING, "bench_c", "--json").out)
    assert [row["level_with_best"] for row in board["leaderboard"]] == [True, True, False]
    assert board["leaderboard"][0]["success_rate_bounds"] == [60.0, 100.0]


@pytest.mark.parametrize(
    ("gate", "runs", "code", "says"),
    [
        (("--fail-on-regression",), (HANGING, HONEST), 3, "--fail-on-regression hangs on 40 faults of A (T/60, "),
        (("--fail-on-regression",), (HONEST, HANGING), 3, "against B: the success rate dropped by 20.0 points, p = "),
        (("--max-drop", 10), (HONEST, HANGING), 3, "--max-drop hangs on 40 faults of B"),
        (("--max-drop", 30), (HONEST, HANGING), 0, ""),
        (("--min-success-rate", 70), (HANGING,), 3, "--min-success-rate 70 hangs on 40 faults of"),
        (("--min-success-rate", 70), (HONEST,), 0, ""),
        (("--min-success-rate", 55), (HANGING,), 0, ""),
        (("--min", "success=55"), (HANGING,), 0, ""),
        (("--min", "success=61"), (HANGING,), 3, "has an average success of 60.0%, below the 61.0% asked for"),
        (("--max", "latency=1"), (HANGING,), 3, "latency has no bounds"),
        (("--max", "success=50"), (HANGING,), 1, "above the 50.0% asked for"),
        (("--max-cost", 0.1, "--min-success-rate", 70), (HANGING,), 1, "above the $0.1 allowed"),
        (("--max-cost", 2), (HANGING,), 0, ""),
    ],
)
def test_gate_neither_passes_nor_shuts_by_faults(
    command: Command, results: Path, gate: Sequence[object], runs: Sequence[str], code: int, says: str
) -> None:
    said = command("benchmark", "compare", *runs, *gate, code=code).err

    assert says in said
    assert ("gate undecided: " in said) == (code == 3)
    assert ("gate failed: " in said) == (code == 1)


def test_faults_count_as_failures_on_request(command: Command, results: Path) -> None:
    said = command(
        "benchmark", "compare", HONEST, HANGING, "--faults", "fail", "--fail-on-regression", "--details", code=1
    )
    assert "-20.0 points (95% interval -32.2 to -7.3). B is worse (p = 0.00253" in said.out
    assert "note: B has 40 faults, which count as failures here." in said.out
    shown = command("benchmark", "show", HANGING, "--faults", "fail")
    assert "60.0% passed (60 of 100)" in shown.out
    assert "FAULTS AS FAILURES: 40 of 100 results are faults" in shown.out
    assert "Status: complete, 100 of 100 judged" in shown.out
    summary = json.loads(command("benchmark", "show", HANGING, "--faults", "fail", "--json").out)
    assert (summary["summary"]["success_rate"], summary["summary"]["total_problems"], summary["faults"]) == (
        60,
        100,
        [],
    )
    assert summary["summary"]["avg_iterations"] == 1.0  # of what was judged
    command("benchmark", "report", HANGING, "-o", "page.html", "--faults", "fail")
    page = Path("page.html").read_text()
    assert "Faults as failures: 40 of the results are faults" in page
    assert "60/100" in page
    for words in (("show", HANGING, "--failures"), ("compare", HONEST, HANGING, "--sequential")):
        assert "--faults has no effect here" in command("benchmark", *words, "--faults", "fail", code=2).err


@pytest.fixture
def incomplete(koderz: Shell) -> Path:
    """A run of four tasks with a journal: one passed, two faults, one that was never asked."""
    records: list[Record] = [judged(0), fault(1), fault(2), Finished(status="incomplete")]
    folder = a_journal(koderz.folder / "benchmark_results", *records, plan=a_plan(4))
    write_summary(folder)
    return folder


BOARD = ("--format", "hf", "--hf-dataset", "a/b", "--hf-task", "c")
ENTRY = ("--format", "eee", "--organization", "Us", "--relationship", "other", "-o", "eee")


@pytest.mark.parametrize("words", [BOARD, ENTRY], ids=["hf", "eee"])
def test_incomplete_run_is_no_registry_entry_unless_asked_for(
    command: Command, incomplete: Path, words: Sequence[str]
) -> None:
    refused = command("benchmark", "export", "latest", *words, code=2).err
    assert "1 of 4 experiments of zero-shot were judged (2 faults)" in refused
    assert "--incomplete" in refused
    assert not Path("eee").exists() or not [*Path("eee").rglob("*.json")]
    command("benchmark", "export", "latest", *words, "--faults", "fail", code=2)  # one was never asked

    written = command("benchmark", "export", "latest", *words, "--incomplete").out
    failed = command("benchmark", "export", "latest", *words, "--incomplete", "--faults", "fail").out
    if words is BOARD:
        assert "value: 100.0" in written
        assert "4 planned, 1 judged, 2 faults of experiments" in " ".join(written.split())
        assert "value: 33.3333" in failed
        assert "4 planned, 1 judged, 0 faults, 2 faults as failures of" in " ".join(failed.split())
        return
    (path,) = (path for path in Path("eee").rglob("*.json"))
    entry = json.loads(path.read_text())  # the second, with faults as failures
    details = entry["source_metadata"]["additional_details"]
    assert {name: details[name] for name in ("planned", "judged", "faults", "faults_as_failures")} == {
        "planned": "4", "judged": "1", "faults": "0", "faults_as_failures": "2",
    }  # fmt: skip
    assert entry["evaluation_results"][0]["score_details"]["score"] == pytest.approx(1 / 3)
    assert entry["detailed_evaluation_results"]["total_rows"] == 3
    command("benchmark", "export", "latest", *words, "--incomplete")
    details = json.loads(path.read_text())["source_metadata"]["additional_details"]
    assert (details["planned"], details["judged"], details["faults"]) == ("4", "1", "2")
    assert details["success_rate_bounds"] == "33.33 to 100 %"


def test_export_counts_faults_as_failures_on_request(command: Command, incomplete: Path) -> None:
    rows = command("benchmark", "export", "latest", "--format", "csv").out.splitlines()
    assert [row.split(",")[10:13] for row in rows[2:]] == [["", "fault", "unreachable"]] * 2
    rows = command("benchmark", "export", "latest", "--format", "csv", "--faults", "fail").out.splitlines()
    assert [row.split(",")[10:13] for row in rows[2:]] == [["false", "fault", "unreachable"]] * 2
    done = command("benchmark", "export", "latest", "--format", "jsonl")
    assert "note: 2 faults left out" in done.err
    samples = done.out.splitlines()
    done = command("benchmark", "export", "latest", "--format", "jsonl", "--faults", "fail")
    assert "left out" not in done.err
    failed = done.out.splitlines()
    assert (len(samples), len(failed), json.loads(failed[-1])["solution"]) == (1, 3, "")
    for words in (("csv", "--incomplete"), ("csv", "--attempts", "--faults", "fail")):
        assert "has no effect here" in command("benchmark", "export", "latest", "--format", *words, code=2).err
