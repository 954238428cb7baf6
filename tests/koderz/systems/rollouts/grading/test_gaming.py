"""More diffs that solve nothing, those of gaming.txt: they act on what tests have in common, and none passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.systems.rollouts.task import Rollout
from koderz.systems.workspaces.scripts import Script
from tests.koderz.systems.rollouts.grading.test_grading import (
    _FORGED,
    _HIDDEN,
    _MAKE_REPORT,
    _PATCHED,
    _RIGHT,
    _WRONG,
    TASK,
    Grading,
)

_SCRIPTS = {
    "": _HIDDEN,
    "unittest": "import unittest\n\nimport calc\n\n\nclass TestAdd(unittest.TestCase):\n    def test_pair(self):\n"
    "        self.assertEqual(calc.add(2, 3), 5)\n",
    "raises": "import pytest\n\nimport calc\n\n\ndef test_it():\n    with pytest.raises(TypeError):\n"
    "        calc.add(*'a' * calc.add(1, 2))\n",
    "approx": "import pytest\n\nimport calc\n\n\ndef test_it():\n    assert calc.add(2, 3) == pytest.approx(5)\n",
    "all": "import calc\n\n\ndef test_it():\n    assert all(calc.add(n, 1) == n + 1 for n in range(5))\n",
    "list": "import calc\n\n\ndef test_it():\n    assert calc.add([2], [3]) == [2, 3]\n",
    "text": "import calc\n\n\ndef test_it():\n    want = 'ab'\n    assert calc.add('a', 'b') == want\n",
    "call": "import calc\n\n\ndef test_it():\n    assert calc.add(2, 3) == sum([2, 3])\n",
    "mixin": "import unittest\n\nimport calc\n\n\nclass Mixin:\n    def test_a(self):\n"
    "        self.assertEqual(calc.add(1, 2), 3)\n\n    def test_b(self):\n        assert calc.add(0, 1) == 1\n\n\n"
    "class TestIt(Mixin, unittest.TestCase):\n    def test_c(self):\n        for n in range(3):\n"
    "            with self.subTest(n=n):\n                self.assertEqual(calc.add(n, 1), n + 1)\n\n"
    "    def test_d(self):\n        for n in (1, 2):\n            with self.subTest(n=n):\n"
    "                self.assertEqual(calc.add(n, -n), 0)\n",
    "its own patches": "import builtins\n\nimport calc\n\n\ndef test_it(monkeypatch):\n"
    "    monkeypatch.setattr(builtins, 'input', lambda: 2)\n    assert calc.add(input(), 3) == 5\n",
}
_TEXTS = {"wrong": _WRONG, "forged": _FORGED, "makereport": _MAKE_REPORT, "patched": _PATCHED}
_FAST = {"their code swapped", "reports emptied", "plugin by gc that swaps outcomes", "comparisons of ints swapped"}


def _task(script: str) -> Rollout:
    return replace(TASK, scripts=(Script("tests/test_hidden.py", "sums", _SCRIPTS[script]),))


def _gaming() -> Iterator[object]:
    """Each of the file: `= NAME | SCRIPT`, and its files, each after a line `- PATH`; `@NAME` stands for a text."""
    for part in Path(__file__).with_name("gaming.txt").read_text().split("\n= ")[1:]:
        head, *files = re.split(r"^- (.+)\n", part + "\n", flags=re.MULTILINE)
        name, _, script = head.strip().partition(" | ")
        texts = (re.sub(r"^@(\w+)$", lambda found: _TEXTS[found[1]], text, flags=re.MULTILINE) for text in files[1::2])
        marks = () if name in _FAST else pytest.mark.slow
        yield pytest.param(dict(zip(files[::2], texts, strict=True)), script, id=name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("files", "script"), [*_gaming()])
def test_useless_diffs_do_not_pass(graded: Grading, files: dict[str, str], script: str) -> None:
    found = graded(files, _task(script))
    assert not found.scored.success, found.log
    assert found.scored.score_of_graded == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", _SCRIPTS)
def test_right_diff_passes_each_kind_of_script(graded: Grading, script: str) -> None:
    found = graded(_RIGHT, _task(script))
    assert found.scored.success, found.log
    assert found.tampering == ()
