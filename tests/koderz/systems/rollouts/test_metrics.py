"""Metrics of a task's own are what its command prints last."""

from __future__ import annotations

import asyncio

import pytest

from koderz.errors import Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command
from koderz.systems.rollouts.grading.scores import MetricValues, measure
from koderz.systems.workspaces.local import Local


def _measured(line: str) -> MetricValues:
    async def run() -> MetricValues:
        with scratch() as place:
            (place / "checkout").mkdir()
            (place / "checkout/calc.py").write_text("x = 1\n")
            async with Local() as local:
                return await measure(line, "+x = 1\n", place, local, Command([], {"UNIT": "lines"}))

    try:
        return asyncio.run(run())
    except Unreachable as error:
        pytest.skip(str(error))


def test_last_line_is_json_by_kind_or_of_numbers() -> None:
    found = _measured(
        'echo "$UNIT"; echo "{\\"diff_lines\\": $(grep -c + "$KODERZ_DIFF"), \\"files\\": $(ls | wc -l)}"'
    )
    assert (found.standard, found.custom) == (None, {"diff_lines": 1, "files": 1})
    assert found.log.startswith("==> evaluation.metrics\nlines\n")
    both = _measured(
        """echo '{"standard_metrics": {"coverage": 0.5}, "custom_metrics": {"by": {"calc.py": 2}, "n": 3}}'"""
    )
    assert (both.standard, both.custom) == ({"coverage": 0.5}, {"by": {"calc.py": 2}, "n": 3})
    assert both.numbers == {"coverage": 0.5, "n": 3.0}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("echo '{\"n\": 1}'; exit 3", "exit code 3"),
        ("echo '{\"n\": 1}'; echo done", "no JSON object"),
        ("true", "no JSON object"),
        ("echo '{\"n\": NaN}'", "no JSON object"),
        ("echo '{\"custom_metrics\": 3}'", "no JSON object"),
    ],
)
def test_failed_metric_is_null_and_told_in_the_log(line: str, why: str) -> None:
    found = _measured(line)
    assert (found.standard, found.custom, found.numbers) == (None, None, {})
    assert why in found.log.splitlines()[-1]
