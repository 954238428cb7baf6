"""What `koderz verify` says of the choice of tasks, arms and samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

from koderz.cli import app
from koderz.systems.publishing.verify.subject import is_even
from koderz.testing import a_plan
from koderz_tracker.records import Cell


@pytest.mark.parametrize(
    ("samples", "even"),
    [
        ((1, 4, 1, 4), True),  # as koderz has them of an optimizer beside the initial prompt
        ((4, 4, 4, 4), True),
        ((1, 4, 1, 3), False),
        ((1, 4, 4, 4), False),
        ((2, 4, 2, 4), False),
        ((1, 4, 1), False),
        ((1, 4, 1, 4, 1), False),
    ],
)
def test_verify_knows_the_samples_of_optimizers_and_of_their_baseline(samples: Sequence[int], even: bool) -> None:
    record = a_plan(2, arms=("none", "few_shot"))
    arms = [record.arms[0], structs.replace(record.arms[1], baseline="none")]
    cells = [Cell(f"T/{n // 2 % 2}", arms[n % 2].name, count) for n, count in enumerate(samples)]
    record = structs.replace(record, arms=arms, cells=cells)
    assert is_even(record) is even


def test_verify_speaks_of_one_task(tmp_path: Path) -> None:
    (tmp_path / "faq.jsonl").write_text(json.dumps({"id": "q", "input": "What is 1 + 1?", "target": "2"}) + "\n")
    run = ("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", "--model", "simulated", "--sink", "json", "--quiet")
    with chdir(tmp_path):
        assert CliRunner().invoke(app, [*run]).exit_code == 0
        done = CliRunner().invoke(app, ["verify", "latest", "--dataset", "faq.jsonl", "--quiet"])
    assert "all of the suite's 1 task;" in done.output
