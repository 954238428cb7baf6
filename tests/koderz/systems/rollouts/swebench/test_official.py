"""Verdicts on logs, beside those that the official harness gave on the same logs.

`official.jsonl.gz` was recorded with swebench 5.0.2 from PyPI: `scripts/check_swebench --logs 800 --seed 3 --record`.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.systems.rollouts.swebench.reports import PARSERS, Expected, report_of

RECORDED = Path(__file__).with_name("official.jsonl.gz")


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]


@pytest.mark.parametrize("name", PARSERS)
def test_logs_have_the_official_reports(name: str, tmp_path: Path) -> None:
    cases = [case for case in recorded() if case["log_parser"] == name]
    assert len(cases) > 30
    for case in cases:
        log = tmp_path / "test_output.txt"
        log.write_text(case["log"])
        expected = Expected(case["FAIL_TO_PASS"], case["PASS_TO_PASS"], case["eval_type"])

        found = report_of(expected, log.read_text(), PARSERS[name])

        assert found == case["report"], case["log"]
        assert json.dumps(found) == json.dumps(case["report"])


def test_parsers_are_20_names_of_7_functions() -> None:
    assert len(PARSERS) == 20
    assert len({*PARSERS.values()}) == 7


def test_django_log_with_a_bare_word_at_its_end_is_read() -> None:
    assert PARSERS["parse_log_django"]("test_a (b.C) ... ok\nFAIL:\nERROR:") == {"test_a (b.C)": "PASSED"}


@pytest.mark.parametrize("name", PARSERS)
def test_logs_made_to_be_slow_are_read_in_time(name: str) -> None:
    """Each takes a fraction of a second, where a search that steps back takes minutes."""
    for line in ("a ... Testing against Django installed in b\n", "_ a b.py:", " .py: _ ", "[", "FAILED [a]"):
        PARSERS[name](line * 20_000)
