"""The screen of rollouts, as far as no run is needed for it."""

from __future__ import annotations

import pytest

from koderz.systems.rollouts.results.screen import completed


@pytest.mark.parametrize(
    ("statuses", "total", "told"),
    [
        (["launched"] * 4, 4, (True, "All 4 tasks completed!")),
        (["launched"] * 3, 4, (False, "3 of 4 tasks completed")),
        ([*["launched"] * 3, "launch_failed"], 4, (False, "3 of 4 tasks completed, 1 launch_failed")),
        (["launch_failed"], 4, (False, "0 of 4 tasks completed, 1 launch_failed")),
    ],
)
def test_tasks_are_completed_only_where_each_was_launched(
    statuses: list[str], total: int, told: tuple[bool, str]
) -> None:
    assert completed({f"stamp-{number}": status for number, status in enumerate(statuses)}, total) == told
