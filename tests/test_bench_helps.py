"""scripts/bench_helps: what it draws is as promised, and the same each time."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.conftest import script_module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module("bench_helps")


def test_bench_helps_draws_what_is_promised_and_the_same_again(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "WORLDS", {"+16": 0.16})
    first, again = (next(script.drawn(100)) for _ in range(2))

    assert first == again
    assert not first.wrong
    assert first.cells[0] == "+16"


def test_bench_helps_says_what_is_not_as_promised(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "WORLDS", {"+16": 0.16})
    monkeypatch.setattr(script, "MOST_SHARE", 0.1)

    assert next(script.drawn(100)).wrong == "+16: takes more than 10%"


def test_bench_helps_has_a_model_that_gains_by_reading_the_skill(script: ModuleType) -> None:
    world = script.World(0.16)
    plain, given = (
        [world.passes(f"{number:03}", has_skill=has_skill) for number in range(400)] for has_skill in (False, True)
    )

    assert 8 < (sum(given) - sum(plain)) / 4 < 24
    assert world.__class__(0.16).passes("001", has_skill=True) == given[1]
