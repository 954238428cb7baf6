"""Suites that subclass `Suite`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.extend import JudgeContext, Judging, Suite, Task
from koderz.sandbox import NoSandbox
from koderz.settings.registry import Registry
from koderz.suites import SUITES, load_suite
from koderz.suites.suite import ProgramSuite

CONTEXT = JudgeContext(NoSandbox(), Judging())
HEAVY = ("mlflow", "modal", "httpx", "pandas", "scipy")

OWN = """
from koderz.extend import Suite, Task


class Sums(Suite):
    name, source = "sums", "two sums"
    tasks = tuple(Task(f"Sum/{n}", f"{n} + 1 = ?", str(n + 1), needs=frozenset(), digest=str(n)) for n in range(2))
    scorer = "number"


class Misspelt(Sums):
    mesures = ()
"""


class Sums(Suite):
    name = source = "sums"
    tasks = (Task("Sum/0", "1 + 1 = ?", "2", needs=frozenset()),)
    scorer = "number"


def test_suite_judges_by_the_scorer_that_it_names() -> None:
    verdicts = [asyncio.run(Sums().judge(Sums.tasks[0], reply, CONTEXT)) for reply in ("So it is 2.", "3")]

    assert [(each.verdict, each.cause, each.score) for each in verdicts] == [("passed", "", 1), ("failed", "answer", 0)]


def test_suite_with_an_unknown_scorer_is_told_which_there_are() -> None:
    class Own(Sums):
        scorer = "exact"

    with pytest.raises(KoderzError, match="there is no scorer 'exact'; choose from exact_match, f1"):
        Own().score(Sums.tasks[0], "2")


def test_suite_of_a_file_is_its_class(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.partition("class Misspelt")[0])

    assert [task.id for task in load_suite(f"{tmp_path}/own.py:Sums").tasks] == ["Sum/0", "Sum/1"]


def test_suite_with_a_misspelt_member_is_refused_when_loaded(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)

    with pytest.raises(KoderzError) as raised:
        load_suite(f"{tmp_path}/own.py:Misspelt")

    assert str(raised.value) == (
        f"--suite {tmp_path}/own.py:Misspelt: Misspelt has no member `mesures`; did you mean `measures`?"
    )


def test_suite_without_tasks_is_refused_when_loaded(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from koderz.extend import Suite\n\n\nclass Own(Suite):\n    name = source = 'a'\n"
    )

    with pytest.raises(KoderzError, match=r"own\.py:Own has no tasks"):
        load_suite(f"{tmp_path}/own.py:Own")


def test_suite_that_opens_nothing_says_so() -> None:
    openers = [f"open_{name}" for name in ("session", "workspace", "evaluator", "long_context")]

    assert not any(Sums().overrides(name) for name in openers)
    assert not isinstance(Sums(), ProgramSuite)
    assert isinstance(SUITES, Registry)


def test_suite_is_imported_without_heavy_libraries() -> None:
    code = f"import sys\nfrom koderz.extend import ProgramSuite, Suite\nprint({HEAVY!r} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code.replace(repr(HEAVY), repr(set(HEAVY)))], capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"
