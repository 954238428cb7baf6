"""The page of names that other packages extend koderz with."""

from __future__ import annotations

import subprocess
import sys

import pytest

import koderz
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


MISSPELT = {
    "class Own(koderz.extend.Suite):\n    mesures = ()": "Own has no member `mesures`; did you mean `measures`?",
    "koderz.extend.solver(option=None)": "Solver has no member `option`; did you mean `options`?",
    "class Own(koderz.extend.Provider):\n    adress = ''": "Own has no member `adress`; did you mean `address`?",
    "class Own(koderz.extend.Engine):\n    outlive = True": "Own has no member `outlive`; did you mean `outlives`?",
    "class Own(koderz.extend.Sandbox):\n    def judg(self): ...": "Own has no member `judg`; did you mean `judge`?",
    "class Own(koderz.extend.Sink):\n    def takes(self, _): ...": "Own has no member `takes`; did you mean `take`?",
    "koderz.extend.System(name='own', suits={})": "System has no member `suits`; did you mean `suites`?",
    "koderz.extend.System(name='own', zebras={})": "System has no member `zebras`",
}


@pytest.mark.parametrize("source", MISSPELT, ids=lambda source: source.partition("(")[0].removeprefix("class Own"))
def test_extend_refuses_misspelt_members_of_each_kind(source: str) -> None:
    with pytest.raises(koderz.KoderzError) as refused:
        exec(source, {"koderz": koderz})

    assert str(refused.value) == MISSPELT[source]


def test_extend_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match=r"'koderz\.extend' has no attribute 'solvr'"):
        koderz.extend.solvr  # noqa: B018
