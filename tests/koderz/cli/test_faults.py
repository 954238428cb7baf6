"""Rates and claims beside faults: an honest model, and one that hangs on what it would fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell
from tests.koderz.analysis import builders
from tests.koderz.cli.conftest import Command

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
    builders.write(
        folder / f"{HONEST}.json", builders.document([True] * 80 + [False] * 20, run_id=HONEST, model="honest")
    )
    hanging = builders.document([True] * 60, run_id=HANGING, model="hanging", planned=100, status="incomplete")
    rate = {"success_rate_bounds": [60.0, 100.0]}
    hanging |= {"faults": faults(range(60, 100)), "summary": hanging["summary"] | rate}
    builders.write(folder / f"{HANGING}.json", hanging)
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
    assert "with them 60.0 to 100.0%" in page
