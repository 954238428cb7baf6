"""The changes of code that `scripts/mutate` makes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parent.parent / "scripts" / "mutate"))


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("a < b", ["(a <= b)"]),
        ("a == b is not c", ["(a != b is not c)", "(a == b is c)"]),
        ("a and b", ["(a or b)"]),
        ("not a", ["(a)"]),
        ("a + b", ["(a - b)"]),
        ("a[3:]", ["4"]),
        ("f(x=True)", ["pass", "False"]),
        ("f'{a + 1}'", []),
        ("assert a < 1", []),
        ("a: 'int | 3' = None", []),
        ("def f():\n    return (\n        a\n    )", ["return (None)"]),
        ("def f():\n    return None", []),
        ("while a:\n    a -= 1\n    break", ["pass", "2", "pass"]),
        ("a.b = c", ["pass"]),
    ],
)
def test_mutate_changes_one_thing_at_a_time(tmp_path: Path, code: str, changed: list[str]) -> None:
    (tmp_path / "code.py").write_text(code)
    assert [place.new for place in SCRIPT["places"]("code", str(tmp_path / "code.py"))] == changed


def test_mutate_leaves_lines_where_they_are() -> None:
    found: list[Any] = [*SCRIPT["places"]("journal", "tracker/journal.py")]
    lines = (SCRIPT["ROOT"] / "tracker/journal.py").read_text().count("\n")
    assert len(found) > 50
    assert {place.source.count("\n") for place in found} == {lines}
    assert len({place.source for place in found}) == len(found)
    for place in found:
        compile(place.source, place.path, "exec")
