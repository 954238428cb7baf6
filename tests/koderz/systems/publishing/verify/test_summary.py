"""Summaries beside a journal: each figure that doesn't follow from it is found, without a judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import koderz
from koderz.systems.publishing.verify.conclusions import check_summary
from koderz.systems.publishing.verify.findings import Verification
from koderz.testing import a_journal, a_plan
from koderz_tracker.sinks.json import encode_summary
from koderz_tracker.summary import summarize
from tests.tracker.builders import judged

Check = Callable[..., Verification]


@pytest.fixture
def checked(tmp_path: Path) -> Check:
    """Checks a summary, or one that `change` makes of the run's, by another version of koderz if that says so."""

    def check(change: Any, version: str = koderz.__version__) -> Verification:
        plan = a_plan(2, environment={"koderz": version})
        folder = a_journal(tmp_path, judged(0), judged(1, False), plan=plan)
        document = orjson.loads(b"".join(encode_summary(summarize(folder))))
        path = tmp_path / "summary.json"
        path.write_bytes(orjson.dumps(change(document) if callable(change) else change))
        result = Verification(run_id=None)
        check_summary(folder, path, result)
        return result

    return check


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda summary: {name: value for name, value in summary.items() if name not in names}


def test_summary_passes_in_whatever_order_its_keys_stand(checked: Check) -> None:
    found = checked(lambda summary: dict(reversed(summary.items())))

    assert not found.findings
    assert not found.notes
    assert found.figures > 20


@pytest.mark.parametrize("summary", [[], "text", 3, None])
def test_summary_that_is_no_object_is_a_finding(checked: Check, summary: object) -> None:
    (found,) = checked(summary).findings

    assert (found.kind, found.where, found.derived) == ("figure", "summary.json", "an object")


@pytest.mark.parametrize("name", ["paid", "planned", "environment"])
def test_summary_without_a_figure_is_found(checked: Check, name: str) -> None:
    assert [found.where for found in checked(without(name)).findings] == [name]


def test_summary_with_a_further_figure_is_found(checked: Check) -> None:
    found = checked(lambda summary: {**summary, "paid": {**summary["paid"], "saved": 3.0}})

    assert [each.where for each in found.findings] == ["paid.saved"]


def test_summary_of_another_version_may_lack_what_is_newer(checked: Check) -> None:
    found = checked(without("paid", "environment"), "0.0.1")

    assert not found.findings
    assert found.notes == ["written by koderz 0.0.1, whose summaries have no environment, paid"]


@pytest.mark.parametrize(
    "change", [without("planned"), lambda summary: {**summary, "planned": 9}, lambda summary: {**summary, "new": 1}]
)
def test_summary_of_another_version_has_the_old_figures_and_no_more(checked: Check, change: object) -> None:
    found = checked(change, "0.0.1")

    assert len(found.findings) == 1
