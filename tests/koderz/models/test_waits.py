"""Waits that servers ask for."""

from __future__ import annotations

from koderz.models.faults import LONGEST_WAIT, longest


def test_wait_of_nothing_is_a_wait() -> None:
    assert longest([0.0, None]) == 0.0
    assert longest([0.0, 2.0, float("nan")]) == 2.0
    assert longest([1e9]) == LONGEST_WAIT
    assert longest([None, float("inf")]) is None
