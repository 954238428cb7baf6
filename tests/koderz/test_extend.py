"""The page of names that other packages extend koderz with."""

from __future__ import annotations

import subprocess
import sys

import pytest

import koderz.extend


@pytest.mark.parametrize("name", koderz.extend.__all__)
def test_extend_exports_each_name_with_a_docstring(name: str) -> None:
    found = getattr(koderz.extend, name)

    assert getattr(found, "__doc__", "") or name == "Message"  # an alias of a type has none


def test_extend_loads_nothing_until_a_name_is_used() -> None:
    source = (
        "import sys, koderz.extend\nprint([name for name in sys.modules if name.startswith(('koderz.', 'msgspec'))])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert "msgspec" not in done.stdout
    assert "koderz.solvers" not in done.stdout


def test_extend_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match=r"'koderz\.extend' has no attribute 'solvr'"):
        koderz.extend.solvr  # noqa: B018
