"""Calls that have a time limit each: who works is given its CPU time, and who waits is overdue at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koderz.sandbox.judge import cases
from koderz.sandbox.judge.findings import Overdue


class Doubling(cases.Cases):
    """A candidate that doubles, and needs so many seconds of CPU by each look at its clock."""

    def __init__(self, used: Sequence[float] = ()) -> None:
        self.signs = 0
        looks = iter(used)
        job = SimpleNamespace(entry_point="double", wall=0.01, case_timeout=3.0)
        zygote = SimpleNamespace(used=lambda: next(looks))
        super().__init__(cast("Any", job), cast("Any", zygote), self.sign)

    def sign(self) -> None:
        self.signs += 1

    def end(self) -> None:
        pass

    def _answer(self, *arguments: Any) -> Any:
        return 2 * arguments[0]


@pytest.mark.parametrize(
    ("used", "signs"),
    [
        ([0.0, 0.0, 0.0], 1),  # it waits
        ([0.0, 1.0, 1.0, 1.0], 2),  # from then on
        ([0.0, 1.0, 2.0, 3.0, 3.0], 3),  # it has used up what it may
    ],
)
def test_call_goes_on_while_it_computes_and_has_time_left(used: list[float], signs: int) -> None:
    doubling = Doubling(used)
    error, cpu = doubling._timed(lambda: time.sleep(60))
    assert isinstance(error, Overdue)
    assert (cpu, doubling.signs) == (used[-1], signs)


def test_calls_give_a_sign_of_life_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(cases, "time", SimpleNamespace(monotonic=lambda: now))
    doubling = Doubling()
    signs = []
    for now in (100.5, 101.0, 101.1, 101.2, 102.0, 102.2):  # noqa: B007 # the clock reads it
        assert doubling(4) == 8
        signs.append(doubling.signs)
    assert signs == [0, 0, 1, 1, 1, 2]
    assert doubling.calls == 6
