"""Scripts turned round fail where the others pass, and what is made of runs that end at a limit."""

from __future__ import annotations

import asyncio
import operator
import random
import re
import unittest
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from koderz.systems.rollouts.doubt import opposites, unbelieved
from koderz.systems.workspaces.scripts import Script, ScriptResult

_FORM = "import x\n\n\nclass TestIt:\n    def test_a(self):\n        g = 1\n        {}\n"


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("assert f(1) == 2", "assert f(1) != 2"),
        ("assert (f(1) < 2), 'text'", "assert (f(1) >= 2), 'text'"),
        ("assert 'é' not in f('é')", "assert 'é' in f('é')"),
        ("assert f(1)  is   not None", "assert f(1)  is None"),
        ("assert not f(1)", "assert f(1)"),
        ("assert not (f(1) or g)", "assert (f(1) or g)"),
        ("assert f(1) and g", "assert not f(1) and g"),
        ("assert f.x", "assert not f.x"),
        ("assert f(\n        1\n    ) \\\n        == 2", "assert f(\n        1\n    ) \\\n        != 2"),
        ("self.assertEqual(f(1), 2)", "self.assertNotEqual(f(1), 2)"),
        ("self.assertIsNotNone(f(1))", "self.assertIsNone(f(1))"),
    ],
)
def test_single_test_is_negated_the_second_time(line: str, other: str) -> None:
    _, found = opposites(_FORM.format(line))
    assert found.source == _FORM.format(other)
    assert ([*found.turned], [*found.left]) == (["TestIt::test_a"], [])


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("assert f(1) == 2", "assert f(1) == @"),
        ("assert -2 == f(1)", "assert -@ == f(1)"),
        ("assert f(1) == True", "assert f(1) == False"),
        ("assert f('a') == 'b'", "assert f('a') == '@'"),
        ("assert f(1) == [1, {'a': (2.5,)}]", "assert f(1) == [@, {'a': (@,)}]"),
        ("assert f(1) == []", "assert f(1) == [@]"),
        ("assert f(1) == {}", "assert f(1) == {@: @}"),
        ("assert f(1) == approx(0.5, abs=3)", "assert f(1) == approx(@, abs=3)"),
        ("assert 'a' in f(1)", "assert 'a@' in f(1)"),
        ("assert f(1) == g(2)", "assert (f(1)) in (@)"),
        ("assert f(1)", "assert (f(1)) in (@)"),
        ("assert 1 < f(1) < 3", "assert (1 < f(1) < 3) in (@)"),
        ("assert f(1) is None", "assert (f(1) is None) in (@)"),
        ("self.assertEqual(f(1), 2)", "self.assertEqual(f(1), @)"),
        ("self.assertEqual(f(1), h, msg='x')", "self.assertIn(f(1), (@))"),
        ("self.assertTrue(f(1))", "self.assertIn(f(1), (@))"),
        ("self.assertAlmostEqual(f(1), 2.5)", "self.assertAlmostEqual(f(1), @)"),
        ("np.testing.assert_allclose(f(1), [2.5])", "np.testing.assert_allclose(f(1), [@])"),
        ("with pytest.raises(KeyError):\n            f(1)", "with pytest.raises(@Error):\n            f(1)"),
        ("self.assertRaises(KeyError, f, 1)", "self.assertRaises(@Error, f, 1)"),
        (
            "with self.subTest(n=1):\n            assert f(1) == 2",
            "with self.subTest(n=1):\n            assert f(1) == @",
        ),
        ("for n in range(3):\n            assert f(n) == 2", "for n in range(3):\n            assert f(n) == @"),
        ("want = 'b'\n        assert f(1) == want", "want = '@'\n        assert f(1) == want"),
    ],
)
def test_expected_value_is_changed_the_first_time(line: str, other: str) -> None:
    found, _ = opposites(_FORM.format(line))
    assert found.turned == {"TestIt::test_a"}
    assert found.source != _FORM.replace("{}", line)
    assert re.fullmatch(re.escape(_FORM.replace("{}", other)).replace("@", ".+"), found.source)


_BODIES = """
assert add(2, 3) == 5
assert 5 == add(2, 3)
assert add("a", "b") == "ab"
assert add([1], [2]) == [1, 2]
assert add((), ()) == ()
assert not add([], [])
assert {add(1, 1), 5} == {5, 2}
assert {"a": [add(1, 1)]} == {"a": [2]}
assert add(0.1, 0.2) == pytest.approx(0.3)
assert add([0.1], [0.2]) == pytest.approx([0.1, 0.2], abs=1e-3)
assert add(2, 3) == add(3, 2)
assert add("x", "yz") == "xyz" and add(1, 1) == 2
assert add(1, 0) is True or add(1, 0)
assert 3 in add([2], [3])
assert add(2, 3) > 4 > 3
assert add(Decimal("1.5"), 1) == Decimal("2.5")
assert add(b"a", b"\\x00") == b"a\\x00"
assert isinstance(add(1, 1), int)
with pytest.raises(TypeError): add(1, "a")
with pytest.raises((TypeError, KeyError), match="str"): add(1, "a")
pytest.raises(TypeError, add, 1, "a")
case.assertEqual(add(2, 3), 5)
case.assertEqual([add(2, 3)], [add(3, 2)], "they differ")
case.assertListEqual(add([1], [2]), [1, 2])
case.assertAlmostEqual(add(0.1, 0.2), 0.3, places=3)
case.assertTrue(add(2, 3))
case.assertFalse(add(0, 0))
case.assertIsNone(print(add(1, 1)))
case.assertIn(3, add([2], [3]))
case.assertRaises(TypeError, add, 1, "a")
case.assertNotEqual(add(2, 3), 6)
for n in (1, 2): assert add(n, 0) == n
want = "ab"; assert add("a", "b") == want
"""


class _Swapped(int):
    __eq__, __ne__, __hash__ = int.__ne__, int.__eq__, int.__hash__


class _Equal:
    """Is equal to everything, and different from nothing."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _passes(source: str, add: Callable[..., object]) -> bool:
    space = {"add": add, "pytest": pytest, "case": unittest.TestCase(), "Decimal": Decimal}
    try:
        exec(compile(source, "script", "exec"), space)
        space["test_it"]()  # type: ignore[operator]
    except Exception:
        return False
    return True


@pytest.mark.parametrize("body", _BODIES.strip().splitlines())
def test_right_code_fails_what_is_turned_round(body: str) -> None:
    source = f"def test_it():\n    {body}\n".replace(": add(", ":\n        add(").replace(
        ": assert", ":\n        assert"
    )
    assert _passes(source, operator.add)
    for seed in range(20):
        for found in opposites(source, random.Random(seed)):
            assert found.turned == {"test_it"}
            assert not _passes(found.source, operator.add), found.source


@pytest.mark.parametrize(
    "body", ["assert add(2, 3) == 5", "assert add(2, 3) == add(3, 2)", "case.assertEqual(add(2, 3), 5)"]
)
@pytest.mark.parametrize("add", [lambda a, b: _Swapped(a - b), lambda a, b: _Equal()], ids=["swapped", "equal"])
def test_hostile_equality_passes_when_turned_round(body: str, add: Callable[..., object]) -> None:
    source = f"def test_it():\n    {body}\n"
    if "add(3" not in body:
        assert _passes(source, add)
    for seed in range(20):
        assert _passes(opposites(source, random.Random(seed))[0].source, add)


def test_tests_are_turned_round_once_and_left_once() -> None:
    source = "".join(f"def test_{n}():\n    assert f({n}) == {n}\n\n\n" for n in range(9)) + "def test_x():\n    f()\n"
    halves = set()
    for seed in range(20):
        one, two = opposites(source, random.Random(seed))
        assert one.turned | two.turned == {f"test_{n}" for n in range(9)}
        assert not one.turned & two.turned
        assert one.left == two.turned | {"test_x"}
        assert two.left == one.turned | {"test_x"}
        halves.add(one.turned)
    assert len(halves) > 10


def test_parameters_that_are_written_down_are_others() -> None:
    rows = "[(1, 2), pytest.param(3, 4, id='x')]"
    source = f"@pytest.mark.parametrize('a, want', {rows})\ndef test_it(a, want):\n    assert f(a) == want\n"
    found, _ = opposites(source)
    changed = re.search(r"\(1, (\d+)\), pytest\.param\(3, (\d+), id='x'\)", found.source)
    assert changed
    assert changed[1] != "2"
    assert changed[2] != "4"


@pytest.mark.parametrize(
    "body",
    [
        "if x:\n        return\n    assert f(1) == 2",
        "for each in x:\n        assert each",
        "with x:\n        assert f(1) == 2",
        "while f():\n        assert f(1) == 2",
        "self.assertLess(f(1), 2)",
        "assert_that(f(1), 2)",
    ],
)
def test_unreliable_asserts_are_left(body: str) -> None:
    source = f"def test_a():\n    {body}\n"
    for found in opposites(source):
        assert (found.source, [*found.turned], [*found.left]) == (source, [], ["test_a"])


def test_invalid_python_is_left() -> None:
    for found in opposites("def test_a(:\n"):
        assert (found.source, [*found.turned]) == ("def test_a(:\n", [])


_SOURCE = "def test_a():\n    assert f(1) == 2\n\n\ndef test_b():\n    assert f(2) == 3\n"
_SCRIPT = Script("test_f.py", "", _SOURCE)
_PASSED = ScriptResult(
    "test_f.py", success=True, output="", tests={"test_f.py::test_a": True, "test_f.py::test_b": True}
)
_HUNG = ScriptResult("test_f.py", success=False, output="", cause="timeout")


def _judged(script: Script) -> ScriptResult:
    """By a right f(): what says something else than before fails."""
    tests = {f"test_f.py::test_{name}": line in script.content for name, line in _LINES.items()}
    return ScriptResult("test_f.py", success=False, output="", tests=tests)


_LINES = {"a": "assert f(1) == 2\n", "b": "assert f(2) == 3\n"}


def _found(*runs: Callable[[Script], ScriptResult]) -> dict[int, tuple[str, str]]:
    """What isn't believed where the runs end so, one after the other."""
    left = [*runs]

    async def run(scripts: Sequence[Script]) -> list[ScriptResult]:
        return [*map(left.pop(0), scripts)]

    async def control(scripts: Sequence[Script]) -> list[ScriptResult]:
        return [_HUNG for _ in scripts]

    found = asyncio.run(unbelieved([_SCRIPT], [_PASSED], run, control))
    assert not left
    return found


def _hung(_: Script) -> ScriptResult:
    return _HUNG


def _passing(_: Script) -> ScriptResult:
    return _PASSED


def _cut(script: Script) -> ScriptResult:
    """It ended in the second of its tests, where the first is of those that have to fail."""
    first = next(name for name, line in _LINES.items() if line not in script.content)
    other = "ab".replace(first, "")
    tests = {f"test_f.py::test_{first}": False, f"test_f.py::test_{other}": False}
    unfinished = frozenset([f"test_f.py::test_{other}"])
    return ScriptResult("test_f.py", success=False, output="", cause="timeout", tests=tests, unfinished=unfinished)


def test_reversed_failure_is_believed_also_after_a_timeout() -> None:
    assert _found(_judged, _judged) == {}
    assert _found(_cut, _judged) == {}
    assert _found(_hung, _judged, _judged) == {}


def test_reversed_tests_that_hang_are_not_believed_and_say_why() -> None:
    """It may hang at random: one of seven such rollouts would pass."""
    found = _found(_judged, _hung, _hung)
    assert found == {0: ("timeout", "it ended (timeout) before a test had failed that has to fail turned round")}


def test_test_in_which_the_run_ended_has_not_failed() -> None:
    def within(_: Script) -> ScriptResult:
        return replace(_HUNG, tests=dict.fromkeys(_PASSED.tests, False), unfinished=frozenset(_PASSED.tests))

    assert _found(*[within] * 4)[0][0] == "timeout"


def test_run_that_ended_with_a_false_pass_gets_no_second_chance() -> None:
    def lying(_: Script) -> ScriptResult:
        return replace(_HUNG, tests=_PASSED.tests)

    assert _found(lying, _judged)[0][0] == "tampering"


def test_base_run_that_ends_at_a_limit_is_named() -> None:
    cause, why = _found(_passing, _judged)[0]
    assert cause == "tampering"
    assert "doesn't fail turned round; without the agent's changes the run ended (timeout)" in why
