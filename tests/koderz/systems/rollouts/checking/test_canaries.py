"""Impossible test scripts: one expected value is another, or is contradicted."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable

import pytest

from koderz.systems.rollouts.checking.canaries import impossible

SOURCE = """import pytest
from tool import double, words

def test_double():
    assert double(2) == 4  # twice

@pytest.mark.parametrize("number, expected", [(1, 2), (3, 6)])
def test_more(number, expected):
    assert double(number) == expected

class TestWords:
    def test_words(self):
        found = words("a b")
        assert found == [
            "a",
            "b",
        ]
"""


def _passes(source: str, double: Callable[[int], int], words: Callable[[str], list[str]]) -> bool:
    """Whether all tests of the script pass on a tool."""
    tree = ast.parse(source.replace("from tool import double, words\n", ""))
    names: dict[str, object] = {"double": double, "words": words}
    exec(compile(tree, "script", "exec"), names)
    try:
        names["test_double"]()  # type: ignore[operator]
        for mark in names["test_more"].pytestmark:  # type: ignore[attr-defined]
            for row in mark.args[1]:
                names["test_more"](*row)  # type: ignore[operator]
        names["TestWords"]().test_words()  # type: ignore[operator]
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("contradicted", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_impossible_script_differs_in_one_expected_value(seed: int, *, contradicted: bool) -> None:
    found = impossible(SOURCE, random.Random(seed), contradicted=contradicted)
    assert found
    assert found != SOURCE
    assert not _passes(found, lambda number: 2 * number, str.split)
    assert _passes(SOURCE, lambda number: 2 * number, str.split)
    changed = [line for line in found.splitlines() if line not in SOURCE.splitlines()]
    assert len(changed) <= 3
    if contradicted and "parametrize" not in "".join(changed):
        assert found.count("assert") == SOURCE.count("assert") + 1  # the one that was there stands, too


def test_script_without_expected_values_can_not_be_made_impossible() -> None:
    for source in ("", "def test_it():\n    assert ready()\n", "def broken(:", "x = 1\nassert x == 1\n"):
        assert impossible(source, random.Random(1), contradicted=False) == ""


def test_same_draw_makes_the_same_script() -> None:
    first, second = (impossible(SOURCE, random.Random("a"), contradicted=True) for _ in range(2))
    assert first == second
