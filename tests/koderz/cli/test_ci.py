"""Gates on figures and on tasks, and JUnit's XML: what a team's CI asks of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import junitparser
import pytest
import xmlschema

from koderz.analysis.junit import Case, CaseSuite, write_junit
from tests.conftest import Shell
from tests.koderz.analysis import builders
from tests.koderz.cli.conftest import Command

SCHEMA = Path(__file__).parents[2] / "data" / "junit-10.xsd"
"""The schema of Jenkins' xunit plugin, under its MIT licence, which stands in the file."""

FAULT = {"solver": "zero-shot", "arm": "zero-shot", "reason": "m: Request timed out", "cause": "unreachable", "cost": 0}


def fault(task: str, sample: int = 0) -> dict[str, Any]:
    return {
        **FAULT,
        "experiment_id": f"exp_{abs(hash((task, sample))) % 16**16:016x}",
        "problem_id": task,
        "sample": sample,
    }


@pytest.fixture
def runs(koderz: Shell) -> Path:
    """Files of runs: 18 of 20 passed; the same with ten faults; four tasks of five samples; scores."""
    most = [True] * 18 + [False] * 2
    builders.write(koderz.folder / "most.json", builders.document(most))
    faults: dict[str, Any] = {"planned": 30, "status": "incomplete", "faults": [fault(f"T/{n}") for n in range(20, 30)]}
    builders.write(koderz.folder / "faults.json", builders.document(most, **faults))
    five = {f"T/{n}": [sample <= n for sample in range(5)] for n in range(4)}
    builders.write(koderz.folder / "five.json", builders.document(five, planned=20, status="complete"))
    scored = builders.document([True] * 8)
    scored["results"] = [row | {"score": n / 8, "cost": n / 100} for n, row in enumerate(scored["results"], start=1)]
    builders.write(koderz.folder / "scored.json", scored)
    for name in ("cut.json", "other.json"):
        lost = builders.document([True] * 17 + [False] * 2 + [True], run_id=builders.OTHER)
        builders.write(
            koderz.folder / name, lost | ({"planned": 50, "status": "stopped"} if name == "cut.json" else {})
        )
    return koderz.folder


@pytest.mark.parametrize(
    ("run", "gates", "code", "says"),
    [
        ("most", ("--min", "rate=95"), 0, ""),  # of which 69.9 to 97.2% are seen
        ("most", ("--min", "rate=0.98"), 1, "a rate of 90.0% (95% interval 69.9% to 97.2%), below the 98.0% asked for"),
        ("most", ("--min-point", "rate=95"), 1, "has a rate of 90.0%, below the 95.0% asked for"),
        ("most", ("--min-point", "--min", "rate=95"), 1, "has a rate of 90.0%, below"),
        ("most", ("--min", "rate=95", "--min-point"), 1, "has a rate of 90.0%, below"),
        ("most", ("--min-point=rate=90", "--min", "rate=97"), 0, ""),
        ("most", ("--min", "success=95"), 1, "an average success of 90.0%, below the 95.0% asked for"),
        ("faults", ("--min", "rate=70"), 0, ""),
        ("faults", ("--min", "rate=90"), 3, "--min rate=90 hangs on 10 faults"),
        ("faults", ("--min-point", "rate=70"), 3, "--min-point rate=70 hangs on 10 faults"),
        ("faults", ("--min-point", "rate=55"), 0, ""),
        ("faults", ("--min", "rate=99"), 1, "below the 99.0% asked for"),
        ("five", ("--min", "pass^3=90"), 1, "has a pass^3 of 12.5%"),
        ("five", ("--min", "pass^3=0.4"), 0, ""),
        ("five", ("--min-point", "pass^3=0.5"), 1, "has a pass^3 of 12.5%, below the 50.0% asked for"),
        ("five", ("--min-point", "pass@5=100"), 0, ""),
        ("five", ("--min", "pass@6=1"), 2, "not every task of bench_0a1b2c3d_20260131_120000 has 6 samples"),
        ("scored", ("--min", "score=0.5"), 0, ""),
        ("scored", ("--min", "score=0.99"), 1, "has a score of 0.562 (95% interval "),
        ("scored", ("--min", "cost=0.1"), 1, "has a cost of $0.04500"),
        ("most", ("--min", "score=0.5"), 2, "has a measure 'score', so no gate can judge it"),
        ("most", ("--min", "nonsense=1"), 2, "nonsense"),
        ("most", ("--min", "rate"), 2, "write a measure and its limit"),
        ("most", ("--min", "rate=nan"), 2, "write a measure and its limit"),
        ("most", ("--min-point",), 2, "--min-point alone is about the measures of --min"),
        ("cut", ("--min", "rate=50"), 2, "so no gate can judge it"),
    ],
)
@pytest.mark.parametrize("command_", ["compare", "show"])
def test_min_judges_intervals_and_min_point_figures(
    command: Command, runs: Path, command_: str, run: str, gates: Sequence[str], code: int, says: str
) -> None:
    said = command(command_, f"{run}.json", *gates, code=code).err

    assert says in said
    assert ("gate failed: " in said) == (code == 1)
    assert ("gate undecided: " in said) == (code == 3)


@pytest.mark.parametrize(
    ("share", "code", "says"),
    [
        ("1", 1, "4 of 4 tasks of bench_0a1b2c3d_20260131_120000 pass less than 1 of their samples (T/0, T/1, T/2, …)"),
        ("0.5", 1, "2 of 4 tasks"),
        ("0.2", 0, ""),
        ("1.1", 2, "1.1"),
    ],
)
def test_task_threshold_is_a_gate(command: Command, runs: Path, share: str, code: int, says: str) -> None:
    assert says in command("compare", "five.json", "--task-threshold", share, code=code).err


def test_min_is_judged_where_a_benchmark_ends(command: Command, questions: None) -> None:
    run = ("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", "--model", "simulated", "--sink", "json", "--quiet")
    assert "gate failed: " in command(*run, "--min-point", "rate=99", code=1).err
    assert "gate failed: " not in command(*run, "--min", "rate=50").err
    assert "of 3 tasks of bench_" in command(*run, "--samples", 2, "--task-threshold", "0.9", code=1).err
    said = command(*run, "--min", "rate", code=2).err
    assert "write a measure and its limit" in said
    assert len([*Path("benchmark_results").glob("*.json")]) == 3  # nothing was begun


# JUnit


@pytest.fixture
def questions(koderz: Shell) -> None:
    """Three questions of which the simulated model answers one wrongly."""
    rows = [{"id": f"q{n}", "input": f"What is {n}?", "target": "\x07<b>&" if n == 1 else str(n)} for n in range(3)]
    (koderz.folder / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: str = "junit.xml") -> dict[str, str]:
    """The kind of each case of a valid file, with the beginning of its message."""
    xmlschema.XMLSchema(SCHEMA).validate(path)
    found = {}
    for suite in junitparser.JUnitXml.fromfile(path):
        cases = [*suite]
        kinds = [type(result).__name__ for case in cases for result in case.result]
        assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (
            len(cases), kinds.count("Failure"), kinds.count("Error"), kinds.count("Skipped")
        )  # fmt: skip
        for case in cases:
            (kind, message), *_ = [*((type(each).__name__, each.message) for each in case.result), ("", "")]
            found[f"{case.classname} {case.name}"] = f"{kind}: {message}" if kind else ""
    return found


def test_junit_has_a_case_a_task_and_arm(command: Command, questions: None) -> None:
    base = ("--suite", "qa", "--dataset", "faq.jsonl", "--model", "simulated", "--sink", "json", "--quiet")
    command("benchmark", *base, "--samples", 3, "--junit", "junit.xml")
    found = read()
    assert [*found] == ["qa.zero-shot q0", "qa.zero-shot q1", "qa.zero-shot q2"]
    failed = [text for text in found.values() if text]
    assert failed
    assert all(text.startswith("Failure: ") for text in failed)
    (suite,) = junitparser.JUnitXml.fromfile("junit.xml")
    properties = {each.name: each.value for each in suite.properties()}  # type: ignore[no-untyped-call]
    saved = json.loads(next(Path("benchmark_results").glob("*.json")).read_text())
    assert properties["run_id"] == saved["run_id"]
    assert float(properties["success_rate"]) == saved["summary"]["success_rate"]
    assert [float(properties[f"success_rate_{end}"]) for end in ("low", "high")] == saved["summary"][
        "success_rate_interval"
    ]
    assert float(properties["total_cost"]) == saved["summary"]["total_cost"]
    for again in ("resume", "retry", "rescore"):
        command("benchmark", again, "latest", "--quiet", "--junit", f"{again}.xml")
        assert read(f"{again}.xml") == found


def test_junit_tells_faults_samples_and_skipped_tasks(command: Command, runs: Path) -> None:
    told = {"T/0": [True, True, False], "T/1": [True, True], "T/2": [False, False]}
    document = builders.document(
        told, planned=12, status="interrupted", faults=[fault("T/1", 2), fault("T/2", 2), fault("T/3")]
    )
    document["config"] = {**document["config"], "problems": ["T/0", "T/1", "T/2", "T/3", "T/4"]}
    builders.write(runs / "mixed.json", document)
    command("compare", "mixed.json", "--max", "cost=1", "--allow-incomplete", "--junit", "junit.xml", code=3)
    arm = "humaneval.zero-shot"
    assert read() == {
        f"{arm} T/0": "Failure: 2 of 3 samples passed; the first that didn't: failed (assertion)",
        f"{arm} T/1": "Error: m: Request timed out",
        f"{arm} T/2": "Failure: 0 of 3 samples passed; the first that didn't: failed (assertion)",
        f"{arm} T/3": "Error: m: Request timed out",
        f"{arm} T/4": "Skipped: not asked: the run is interrupted",
    }
    command(*("compare", "mixed.json", "--allow-incomplete", "--junit", "junit.xml", "--task-threshold", "0.6"), code=1)
    assert [text.partition(":")[0] for text in read().values()] == ["", "", "Failure", "Error", "Skipped"]


def test_junit_of_a_comparison_fails_what_b_lost(command: Command, runs: Path) -> None:
    command("compare", "most.json", "other.json", "--junit", "junit.xml")
    found = {name.rpartition(" ")[2]: text for name, text in read().items()}
    assert {task: text for task, text in found.items() if text} == {
        "T/17": "Failure: passed in the baseline; now failed (assertion)"
    }
    assert "T/19" in found  # which it gained
    assert "name these" in command("compare", "most.json", "other.json", "five.json", "--junit", "x.xml", code=2).err
    assert not Path("x.xml").exists()


def test_junit_of_judged_samples(command: Command, questions: None) -> None:
    lines = [{"task_id": f"q{n}", "reply": str(n if n < 2 or sample else "?")} for n in range(3) for sample in range(2)]
    Path("samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    base = ("judge", "samples.jsonl", "--suite", "qa", "--dataset", "faq.jsonl", "--junit", "junit.xml", "--quiet")
    command(*base)
    assert [text.partition(":")[0] for text in read().values()] == ["", "Failure", "Failure"]
    assert (
        "gate failed: 1 of 3 tasks pass less than 0.5 of their samples (q1)"
        in command(*base, "--task-threshold", "0.5", code=1).err
    )
    assert [text.partition(":")[0] for text in read().values()] == ["", "Failure", ""]


def test_junit_holds_any_text(tmp_path: Path) -> None:
    hostile = "\x00\x1b[31m]]>&<![CDATA[\ud800\ufffe\x85 '\"" + "é" * 10_000_000
    cases = [
        Case(hostile[:40], 1234.5678, kind, hostile[:40], hostile, hostile) for kind in ("failure", "error", "skipped")
    ]
    path = tmp_path / "junit.xml"
    write_junit(
        path, [CaseSuite("a.\x00b", [*cases, Case("\x01", note=hostile)], {"run_id": "\x02"}, "2026-01-31T12:00:00")]
    )
    assert path.stat().st_size < 100_000
    read(str(path))
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    for case in suite:
        for result in case.result:
            assert len((result.text or "").encode()) <= 8192
            assert len(result.message.encode()) <= 8192
    assert "cut off, of 10,000,0" in next(iter(suite)).result[0].text


@pytest.mark.parametrize(("path", "says"), [(".", "is a folder"), ("none/x.xml", "lies in no folder")])
def test_junit_needs_a_place_before_anything_is_spent(command: Command, questions: None, path: str, says: str) -> None:
    run = ("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", "--model", "simulated", "--sink", "json")
    assert says in command(*run, "--junit", path, code=2).err
    assert not Path("benchmark_results").exists()


def test_junit_that_cannot_be_written_is_one_line(
    command: Command, questions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("koderz.analysis.junit.write_whole", full)
    run = ("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", "--model", "simulated", "--sink", "json", "--quiet")
    assert command(*run, "--junit", "x.xml", code=3).err.endswith(
        "koderz: x.xml can't be written (No space left on device)\n"
    )
    assert len([*Path("benchmark_results").glob("*.json")]) == 1  # the run is whole
