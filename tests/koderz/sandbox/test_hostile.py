"""Programs that lie, steal, break out and use up: none is passed, and none gets anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from koderz.sandbox import Job
from tests.koderz.sandbox.conftest import LEVELS, Judges
from tests.koderz.sandbox.hostile import PROGRAMS

CATEGORIES = sorted({program["category"] for program in PROGRAMS})
WAITING = ("leftovers", "resources")
"""Whose programs are waited for until their time is up: on one isolation in the fast tests."""
ON_EACH_RUNG = [
    pytest.param(
        isolation,
        category,
        id=f"{isolation}-{category}",
        marks=pytest.mark.slow if category in WAITING and isolation != "with namespaces" else (),
    )
    for isolation in LEVELS
    for category in CATEGORIES
]

TEST = """
def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(2, 2) == 4
"""
CARELESS_TEST = """
def check(candidate):
    for got, expected in zip(map(candidate, [1, 2], [2, 2]), [3, 4]):
        try:
            assert got == expected
        except AssertionError:
            raise
"""
CATCH_ALL_TEST = """
def check(candidate):
    for _ in range(3):
        try:
            candidate(1, 2)
        except:
            pass
"""


def jobs(category: str, test: str) -> dict[str, Job]:
    chosen = [program for program in PROGRAMS if program["category"] == category]
    return {program["name"]: Job(program["source"], test, "add", timeout=0.25, memory_mb=256) for program in chosen}


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "category"), ON_EACH_RUNG, indirect=["layers"])
def test_hostile_programs_do_not_pass(
    category: str, layers: Sequence[str], judged: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KODERZ_TEST_SECRET", "a key")
    programs = jobs(category, TEST)
    outcomes = judged(*programs.values(), layers=layers, wall_extra=1.0)
    passed = [name for name, outcome in zip(programs, outcomes, strict=True) if outcome.verdict == "passed"]
    assert passed == []


def test_exception_of_the_candidate_cannot_end_a_loop_of_the_tests(judged: Judges) -> None:
    programs = jobs("exceptions", CARELESS_TEST)
    assert {outcome.verdict for outcome in judged(*programs.values())} == {"error"}


def test_tests_that_catch_everything_pass_nobody_who_is_gone(judged: Judges) -> None:
    programs = jobs("endings", CATCH_ALL_TEST)
    programs.pop("a signal to itself")  # is refused, and goes on
    programs.pop("an end after a first good answer")
    outcomes = judged(*programs.values(), Job("def add(x, y): return 3", CATCH_ALL_TEST, "add"))
    assert [outcome.verdict for outcome in outcomes] == ["error"] * len(programs) + ["passed"]


@pytest.mark.slow
def test_tests_that_catch_everything_pass_nobody_who_is_late(judged: Judges) -> None:
    late = Job("import time\ndef add(x, y): time.sleep(600)", CATCH_ALL_TEST, "add", timeout=0.1)
    (outcome,) = judged(late, wall_extra=1.0)
    assert (outcome.verdict, outcome.cause) == ("timeout", "wall")


def test_result_cannot_have_the_tests_run_beside_the_program(judged: Judges) -> None:
    """Tests move into the candidate's process for what they hand over, never for what they are handed."""
    back = "def check(candidate):\n    assert candidate(candidate(1, 2), 2) == 3\n"
    deep = (
        "from decimal import Decimal\ndef add(x, y):\n    result = Decimal(1)\n"
        "    for _ in range({}): result = [result]\n    return result\n"
    )
    outcomes = judged(*(Job(deep.format(depth), back, "add") for depth in (1, 150, 190, 199, 200, 201)))
    assert all("in-process" not in outcome.isolation for outcome in outcomes)
    assert {outcome.verdict for outcome in outcomes} == {"failed"}


def test_returned_object_cannot_have_the_tests_run_beside_it(judged: Judges) -> None:
    back = "def check(candidate):\n    assert candidate(candidate(1, 2), 2) == 3\n"
    (outcome,) = judged(Job("def add(x, y): return add if x == 1 else 3", back, "add"))
    assert (outcome.verdict, "in-process" in outcome.isolation) == ("failed", False)


def test_candidate_leaves_nothing_for_the_next(judged: Judges) -> None:
    """What one changes in its interpreter, its files or the system is gone with it."""
    spoil = (
        "import builtins, sys, os, random, math\n"
        "builtins.sorted = math.floor = lambda *a: 3\nsys.modules['json'] = None\nsys.setrecursionlimit(50)\n"
        "random.seed(99)\nos.environ['LEFT'] = 'behind'\nos.umask(0o777)\n"
        "def add(x, y): return x + y\n"
    )
    look = (
        "import json, math, os, sys\n"
        "def add(x, y): return 3 if (sorted([4]), math.floor(2.5), os.environ.get('LEFT')) == ([4], 2, None) else 0\n"
    )
    test = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
    outcomes = judged(*(Job(f"{source}# {number}", test, "add") for number in range(4) for source in (spoil, look)))
    assert [outcome.verdict for outcome in outcomes] == ["passed"] * 8


def test_candidates_learn_nothing_of_the_programs_before_them(judged: Judges) -> None:
    secret = "reference" + "_solution_of_an_earlier_job"
    search = (
        "import gc\ndef add(x, y):\n    needle = 'reference' '_solution_of'\n"
        "    found = [o for o in gc.get_objects() if isinstance(o, dict) and any("
        "isinstance(v, str) and needle in v and v is not needle for v in list(o.values()))]\n"
        "    return len(found)\n"
    )
    reference = Job(f"# {secret}\ndef add(x, y): return x + y", TEST, "add")
    nothing = "def check(candidate):\n    assert candidate(1, 2) == 0\n"
    first, second = judged(reference, Job(search, nothing, "add"))
    assert (first.verdict, second.verdict) == ("passed", "passed")
