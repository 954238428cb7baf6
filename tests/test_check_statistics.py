"""scripts/check_statistics: its rows are the docs', what it promises holds, and it fails where something doesn't."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import script_module

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reference" / "statistics.md").read_text(encoding="utf-8")
with (ROOT / "docs" / "reference" / "accuracy.csv").open(encoding="utf-8", newline="") as file:
    HEADS, *CASES = (tuple(row) for row in csv.reader(file))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module("check_statistics")


def test_check_statistics_has_written_all_cases(script: ModuleType) -> None:
    assert script.HEADS == HEADS
    assert [(what, case, promise) for what, case, _, promise, _ in CASES] == [
        (check.what, check.case, check.promise) for check in script.checks()
    ]


def test_check_statistics_has_written_the_ranges_of_the_page(script: ModuleType) -> None:
    table = script.ranges(CASES)

    assert "| pass@1's interval holds it | 9 | 93.6 to 98.9 | ≥ 93 |" in table
    assert PAGE.partition(script.BEGIN)[2].partition(script.END)[0].strip() == table.strip()


@pytest.mark.parametrize(
    "what",
    [
        "Wilson's interval holds the rate, at the worst rate",
        "a score's interval holds its mean, at the worst of shares of 2 to 98 %",
        "the score test rejects equal rates, at the worst share of flips",
        "not chosen: McNemar's mid-p test, at the worst share of flips",
        "--max-drop 5 shuts on equal models, as it says itself",
        "7 points show where 15 % of 164 tasks flip",
    ],
)
def test_check_statistics_finds_what_the_table_says(script: ModuleType, what: str) -> None:
    enumerated = [check for check in script.checks() if check.what == what and not check.draws][:3]
    assert enumerated

    for check in enumerated:
        row = check.row()
        assert row.holds
        assert row.cells in CASES


@pytest.mark.parametrize(
    "what",
    [
        "pass@1's interval holds it",
        "the interval of an amount holds its mean",
        "pass@k's interval holds it",
        "pass^k's interval holds it, at the worst of tasks alike of rates of 30 to 95 % and unlike ones",
    ],
)
def test_check_statistics_holds_where_it_draws(script: ModuleType, what: str) -> None:
    for check in [check for check in script.checks() if check.what == what][:3]:
        assert check.row(quick=True).holds, check.case


def test_check_statistics_fails_where_something_does_not_hold(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = script.Check("an interval", "4 tasks", lambda draws, rng: (0.9, 0.001), least=0.93, draws=100)
    monkeypatch.setattr(script, "checks", lambda: [wrong])
    monkeypatch.setattr(sys, "argv", ["check_statistics", "--quick"])

    assert script.main() == 1
    assert "| an interval | 4 tasks | 90.0 | ≥ 93 | 100 draws, SE 0.1 | DOES NOT HOLD" in capsys.readouterr().out
