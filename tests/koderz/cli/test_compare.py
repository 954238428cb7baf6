"""`koderz benchmark compare`, as it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from koderz.analysis.statistics import drop_alarm
from tests.conftest import Shell
from tests.koderz.analysis import builders
from tests.koderz.cli.conftest import Command


@pytest.fixture
def runs(koderz: Shell) -> Path:
    """Two bare files, good.json far better than bad.json, a comparative one, and one on other tasks."""
    folder = koderz.folder
    builders.write(folder / "good.json", builders.document([True] * 18 + [False] * 2, run_id=builders.RUN))
    builders.write(folder / "bad.json", builders.document([True] * 8 + [False] * 12, run_id=builders.OTHER))
    builders.write(folder / "both.json", builders.comparative([False] * 4 + [True] * 6, [True] * 10))
    builders.write(folder / "else.json", builders.document({"X/0": [True]}))
    builders.write(folder / "none.json", builders.document([]))
    builders.write(folder / "fake.json", builders.document([True] * 20, model="simulated"))
    builders.write(folder / "evil.json", builders.document({"<script>\x1b[31m|": [True]}, model="<b>|x"))
    return folder


def test_compare_takes_two_files_from_elsewhere(command: Command, runs: Path) -> None:
    done = command("benchmark", "compare", "bad.json", "good.json")

    assert re.search(r"Success rate +\| 40\.0% \(8/20\) \| 90\.0% \(18/20\) \| \+50\.0 points", done.out)
    assert done.out.startswith(
        "B passes 18 of 20, A 8 of 20: +50.0 points (95% interval +25.8 to +70.1). B is better (p < 0.001).\n\nA (base"
    )
    assert "B gained: T/8, T/9" in done.out
    assert done.err == ""


def test_compare_begins_with_its_verdict_and_leaves_methods_to_details(command: Command, runs: Path) -> None:
    builders.write(runs / "nine.json", builders.document([True] * 9 + [False], run_id=builders.RUN))
    builders.write(runs / "six.json", builders.document([True] * 6 + [False] * 4, run_id=builders.OTHER))
    verdict = (
        "B passes 9 of 10, A 6 of 10: +30.0 points (95% interval -6.1 to +60.3). "
        "Too few tasks to tell (p = 0.109); from 58 points on it would show.\n"
    )

    brief = command("compare", "six.json", "nine.json").out
    whole = command("compare", "six.json", "nine.json", "--details").out

    assert brief.startswith(verdict)
    assert whole.startswith(verdict)
    assert "McNemar" not in brief
    assert "Failed attempts by cause" not in brief
    assert "Failed attempts by cause" in whole
    assert "McNemar" in whole
    assert "recovered from no" not in whole
    assert json.loads(command("compare", "six.json", "nine.json", "--json").out)["headline"] + "\n" == verdict


def test_compare_refuses_two_runs_without_a_common_task(command: Command, runs: Path) -> None:
    done = command("compare", "good.json", "else.json", code=2)

    assert done.err.count("\n") == 1
    assert "have no task in common, so there is nothing to compare" in done.err
    assert done.out == ""


def test_compare_of_many_names_models_in_one_matrix(command: Command, runs: Path) -> None:
    for name, passes in (("local-1:7b", 4), ("local-2:7b", 19), ("local-3:7b", 20)):
        outcomes = [True] * passes + [False] * (20 - passes)
        builders.write(runs / f"{name}.json", builders.document(outcomes, model=name, run_id=f"bench_{name}"))

    out = command("compare", "local-1:7b.json", "local-2:7b.json", "local-3:7b.json").out

    assert out.startswith("Best, with no difference shown among them: local-3:7b, local-2:7b; tier 2: local-1:7b.\n")
    rows = [line.split() for line in out.splitlines() if re.match(r"\d \| local", line)]
    assert [[cell for cell in row if cell != "|"][1:] for row in rows] == [
        ["local-3:7b", "=", "+"],
        ["local-2:7b", "=", "+"],
        ["local-1:7b", "-", "-"],
    ]
    assert "is better than bench_" not in out


def test_compare_json_has_its_contract(command: Command, runs: Path) -> None:
    found = json.loads(command("benchmark", "compare", "bad.json", "good.json", "--json").out)

    assert (found["pairs"], found["a_only"], found["b_only"], found["paired"]) == (20, 0, 10, True)
    assert found["mcnemar_p"] == pytest.approx(2 / 2**10)
    assert found["difference"] == pytest.approx(50.0)
    assert len(found["interval"]) == 2
    assert found["a"]["success_rate"] == 40.0
    assert (found["gates_failed"], found["gates_warning"]) == ([], None)


def test_measure_says_what_is_compared_and_by_which_methods(command: Command, runs: Path) -> None:
    dearer = [{**row, "cost": 0.02 + 0.001 * (i % 3)} for i, row in enumerate(builders.rows([True] * 20))]
    builders.write(runs / "dear.json", builders.document([True] * 20, results=dearer))

    done = command("benchmark", "compare", "good.json", "dear.json", "--measure", "cost", "--details")

    assert done.out.startswith("cost: B $0.02095, A $0.01000: +$0.01095 (95% interval ")
    assert re.search(r"Avg cost +\| +\$0\.01000 \| +\$0\.02095 \| +\+\$0\.01095", done.out)
    assert "B is worse in cost: +$0.01095 (p < 0.001)." in done.out
    assert "Sign-flip permutation test, paired by task: p < 0.001." in done.out
    assert "Interval of cost: BCa bootstrap of tasks." in done.out
    assert "Intervals of the other measures: Tango's score interval." in done.out
    found = json.loads(command("benchmark", "compare", "good.json", "dear.json", "--measure", "cost", "--json").out)
    assert found["measure"] == {
        "name": "cost",
        "direction": "lower",
        "unit": "$",
        "two_valued": False,
        "average": "",
        "bounds": None,
    }
    success = found["measures"]["success"]  # the others are the same throughout, and take no part
    assert (success["p_value"], success["p_holm"], success["at_once"]) == pytest.approx((0.220, 0.220, 1), abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["good.json", "bad.json", "--fail-on-regression"], 1, "dropped by 50.0 points, p < 0.001 (lost: T/8, T/9"),
        (["bad.json", "good.json", "--fail-on-regression"], 0, ""),
        (["good.json", "bad.json", "--max-drop", "50"], 0, ""),
        (["good.json", "bad.json", "--max-drop", "49.9"], 1, "more than the 49.9 allowed"),
        (["good.json", "bad.json", "--max-drop", "40", "--confidence", "0.95"], 0, ""),
        (
            ["good.json", "bad.json", "--max-drop", "20", "--confidence", "0.95"],
            1,
            "20 allowed with a confidence of 0.95",
        ),
        (["good.json", "bad.json", "--confidence", "0.95"], 2, "--confidence is that of --max-drop"),
        (["good.json", "--min-success-rate", "85"], 0, ""),
        (["bad.json", "good.json", "--min-success-rate", "85"], 0, ""),
        (["good.json", "bad.json", "--min-success-rate", "85"], 1, "success rate of 40.0%, below the 85% asked for"),
        (["bad.json", "--min-success-rate", "40"], 0, ""),
        (["good.json", "--max-cost", "0.1"], 1, "cost $0.2000, above the $0.1 allowed"),
        (["both.json", "--fail-on-regression", "--min-success-rate", "100"], 0, ""),
        (["both.json", "--arm", "zero-shot", "--min-success-rate", "61"], 1, "60.0%"),
        (["good.json", "else.json", "--fail-on-regression"], 2, "no task in common"),
        (["good.json", "else.json", "--min-success-rate", "85"], 0, ""),
        (["good.json", "--fail-on-regression"], 2, "name the baseline, then the candidate"),
        (["good.json", "none.json", "--max-drop", "1"], 2, "has no results, so no gate can judge it"),
        (["none.json", "good.json", "--max-drop", "1"], 2, "no task in common"),
        (["good.json", "bad.json", "else.json", "--max-drop", "1"], 2, "gates judge one candidate"),
        (["good.json", "bad.json", "--measure", "cost", "--fail-on-regression"], 0, ""),
        (["good.json", "bad.json", "--measure", "speed"], 2, "no result has a measure 'speed'; choose from success"),
        (["good.json", "--max", "cost=0.001"], 1, "an average cost of $0.01000, above the $0.00100 asked for"),
        (["good.json", "--min", "success=95"], 1, "an average success of 90.0%, below the 95.0% asked for"),
        (["good.json", "--min", "success"], 2, "write a measure and its limit, e.g. score=0.8"),
        (["good.json", "--min", "score=1"], 2, "has a measure 'score', so no gate can judge it"),
        (["good.json"], 2, "name a second run"),
        (["good.json", "fake.json"], 2, "--allow-simulated"),
        (["good.json", "fake.json", "--allow-simulated"], 0, ""),
        (["good.json", "gone.json"], 2, "gone.json can't be read"),
        (["good.json", "none.json"], 0, ""),
        (["good.json", "bad.json", "--alpha", "0"], 2, "alpha"),
        ([], 2, "holds no two runs on the same tasks"),
    ],
)
def test_gates_and_errors_are_exit_codes_and_one_line(
    command: Command, runs: Path, arguments: list[str], code: int, says: str
) -> None:
    done = command("benchmark", "compare", *arguments, code=code)

    assert says in done.err
    assert len(done.err.splitlines()) == (1 if code else 0)


def test_gate_on_a_drop_says_how_often_it_shuts_on_equals(command: Command, runs: Path) -> None:
    gate = ("benchmark", "compare", "bad.json", "good.json", "--max-drop", 5)
    plain, sure = command(*gate), command(*gate, "--confidence", 0.95)
    assert (
        "--max-drop 5 shuts in 32% of comparisons like this one where A and B are equally good; with --conf"
        in plain.out
    )
    assert "--max-drop 5 --confidence 0.95 shuts in 2.4% of comparisons like this one where A and B are eq" in sure.out
    alarms = json.loads(command(*gate, "--json").out)["false_alarms"]
    assert alarms == {"zero-shot": pytest.approx(drop_alarm(20, 0.5, 0.05))}
    assert json.loads(command("benchmark", "compare", "bad.json", "good.json", "--json").out)["false_alarms"] == {}


def test_compare_shows_a_run_in_progress_and_passes_no_gate(command: Command, koderz: Shell, runs: Path) -> None:
    koderz("benchmark", 0, 3, "--mode", "zero-shot", "--quiet", "--model", "simulated")
    (summary,) = koderz.results.glob("*.json")
    summary.unlink()
    journal = summary.with_suffix("") / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines() if '"kind":"finished"' not in line]
    journal.write_text("\n".join(lines) + "\n")

    gated = command("benchmark", "compare", "fake.json", "latest", "--min-success-rate", 1, code=2)

    assert f"koderz benchmark resume {summary.stem}" in gated.err
    allowed = command("benchmark", "compare", "fake.json", "latest", "--min-success-rate", 1, "--allow-incomplete")
    assert "B was left unfinished: 3 of 3 experiments are judged." in allowed.out
    assert "A and B have no task in common, so they are compared unpaired" in allowed.out
    assert "was left unfinished: 3 of 3 experiments are judged" in allowed.err


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("interrupted", f"end it with: koderz benchmark resume {builders.RUN}, or"),
        ("stopped", f"koderz benchmark resume {builders.RUN} --max-cost MORE"),
        ("failed", "koderz benchmark resume"),
        ("detached", "koderz benchmark resume"),
        ("incomplete", "koderz benchmark resume"),
    ],
)
def test_half_a_run_passes_no_gate_unless_that_is_allowed(
    command: Command, runs: Path, status: str, remedy: str
) -> None:
    builders.write(runs / "half.json", builders.document([True] * 18 + [False] * 2, status=status, planned=40))
    told = f"{builders.RUN} is {status}: 20 of 40 experiments are judged"

    shut = command("benchmark", "compare", "half.json", "--min-success-rate", 85, code=2)
    assert (told in shut.err, remedy in shut.err, len(shut.err.splitlines())) == (True, True, 1)
    assert "--allow-incomplete" in shut.err

    gate = ("benchmark", "compare", "bad.json", "half.json", "--min-success-rate", 85, "--allow-incomplete")
    assert command(*gate).err == f"warning: {told}, and the gates are about those alone\n"
    assert json.loads(command(*gate, "--json").out)["gates_warning"].startswith(told)
    assert f"Warning: {told}" in command(*gate, "--markdown").out
    failed = command(*gate[:-1], "--max-cost", 0.1, "--allow-incomplete", code=1)
    assert [line.split(":")[0] for line in failed.err.splitlines()] == ["warning", "gate failed"]

    assert "gates" not in command("benchmark", "compare", "bad.json", "half.json").err  # which none were asked for
    assert (
        command("benchmark", "compare", "half.json", "good.json", "--min-success-rate", 85).err == ""
    )  # of A, the note


def test_compare_warns_of_faults_beside_the_gates(command: Command, runs: Path) -> None:
    faults = [{"experiment_id": "exp_0", "problem_id": "T/9", "solver": "zero-shot", "reason": "the server was gone"}]
    builders.write(runs / "faulty.json", builders.document([True], status="incomplete", planned=2, faults=faults))
    builders.write(runs / "old.json", builders.document([True], planned=2, faults=faults))

    done = command("benchmark", "compare", "faulty.json", "--min-success-rate", 45)

    assert "is incomplete: 1 of 2 experiments are judged" in done.err
    assert command("benchmark", "compare", "old.json", "--min-success-rate", 45).err == ""  # which says nothing of it


def test_compare_of_more_than_two_is_a_leaderboard(command: Command, runs: Path) -> None:
    done = command("benchmark", "compare", "good.json", "bad.json", "both.json")
    found = json.loads(command("benchmark", "compare", "good.json", "bad.json", "both.json", "--json").out)

    assert done.out.startswith("Best, with no difference shown among them: ")
    assert "tier 2: m-1" not in done.out
    assert "Row against column" in done.out
    assert "6 tests, Holm-corrected, at 0.05" in done.out
    told = command("benchmark", "compare", "good.json", "bad.json", "both.json", "--details").out
    assert "6 tests, two-sided, Holm-corrected, at 0.05:" in told
    assert [row["success_rate"] for row in found["leaderboard"]] == [100.0, 90.0, 60.0, 40.0]
    assert len(found["pairwise"]) == 6
    assert [(pair["a_tier"], pair["b_tier"]) for pair in found["pairwise"] if pair["significant"]] == [(1, 2)]
    assert [row["ranks"] for row in found["leaderboard"]] == [[1, 4], [1, 3], [1, 4], [2, 4]]
    assert [row["tier"] for row in found["leaderboard"]] == [1, 1, 1, 2]
    for row in found["leaderboard"]:
        assert row["mean_interval_together"][0] <= row["mean_interval"][0]


def test_compare_markdown_has_tables_and_escapes_markup(command: Command, runs: Path) -> None:
    done = command("benchmark", "compare", "evil.json", "evil.json", "--markdown")

    assert done.out.startswith("### koderz: No significant difference")
    assert "|  | A | B | B - A | 95% interval |" in done.out
    assert "&lt;b&gt;\\|x" in done.out
    assert "<" not in done.out


def test_compare_shows_no_control_character(command: Command, runs: Path) -> None:
    builders.write(runs / "good2.json", builders.document({"<script>\x1b[31m|": [False]}))

    done = command("benchmark", "compare", "evil.json", "good2.json")

    assert "\\x1b[31m" in done.out
    assert "\x1b" not in done.out


@pytest.mark.slow
def test_compare_without_names_takes_two_runs(koderz: Shell) -> None:
    for mode in ("zero-shot", "iterative"):
        koderz("benchmark", 0, 6, "--mode", mode, "--quiet", "--model", "simulated")

    done = koderz("benchmark", "compare", "--details")

    assert "Failed attempts by cause" in done.out
    assert "mode | zero-shot | iterative" in done.out
