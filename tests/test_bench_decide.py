"""scripts/bench_decide: its tables are the page's, and what stands there is as promised."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.conftest import script_module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module("bench_decide")


@pytest.fixture(scope="module")
def tables(script: ModuleType) -> list[list[list[str]]]:
    """The rows of the page's tables, cell by cell."""
    written = script.PAGE.read_text(encoding="utf-8").partition(script.BEGIN)[2].partition(script.END)[0]
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
        for table in written.strip().split("\n\n")
    ]


def test_bench_decide_has_written_errors_as_promised(script: ModuleType, tables: list[list[list[str]]]) -> None:
    rows = tables[0]

    assert len(rows) == 2 * len(script.PARTS) + 8
    assert {tasks for _, tasks, _, _ in rows} == {"164", "1,000"}
    assert max(float(share) for _, _, *shares in rows for share in shares) <= 5


def test_bench_decide_has_written_tasks_beside_the_fixed_test(
    script: ModuleType, tables: list[list[list[str]]]
) -> None:
    for parts, difference, fixed, half, *_ in tables[1]:
        tasks = script.fixed(float(parts.split()[0]) / 100, float(difference.split()[0]) / 100)
        assert f"{tasks:,}" == fixed
        assert 0.8 < int(half.replace(",", "")) / tasks < 1.2


def test_bench_decide_has_written_savings_as_promised(tables: list[list[list[str]]]) -> None:
    for _, true, _, _, share, promised in tables[2]:
        assert float(share.split()[0]) <= float(promised.split()[1]) == (60 if true == "none" else 40)


def test_bench_decide_draws_the_same_rows_again(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "PARTS", (0.05,))
    monkeypatch.setattr(script, "TASKS", (164,))
    found = [next(script.errors(1000)) for _ in range(2)]

    assert found[0] == found[1]
    assert found[0].holds
