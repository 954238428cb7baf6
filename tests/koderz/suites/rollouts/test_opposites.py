"""Scripts turned round fail where the others pass."""

from __future__ import annotations

import pytest

from koderz.suites.rollouts.opposites import opposite


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
def test_the_first_assertion_is_turned_round(line: str, other: str) -> None:
    form = "import x\n\n\nclass TestIt:\n    def test_a(self):\n        g = 1\n        {}\n        assert g == 1\n"
    found = opposite(form.format(line))
    assert found.source == form.format(other)
    assert found.tests == {"TestIt::test_a"}


@pytest.mark.parametrize(
    "body",
    [
        "if x:\n        return\n    assert f(1) == 2",
        "assert f(1) or g(1)",
        "for each in x:\n        assert each",
        "with raises(KeyError):\n        f(1)",
        "assert 1 < f(1) < 3",
    ],
)
def test_what_not_every_run_comes_to_or_is_no_small_change_is_left(body: str) -> None:
    source = f"def test_a():\n    {body}\n"
    assert opposite(source) == opposite(opposite(source).source)
    assert opposite(source).source == source
    assert not opposite(source).tests


def test_what_is_no_python_is_left() -> None:
    assert opposite("def test_a(:\n").source == "def test_a(:\n"
