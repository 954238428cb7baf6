"""Lessons of programs: what failed and what fixed it, without a line of either."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from koderz.systems.code.programs import lesson_of
from koderz.types import Verdict

WRONG = "def f(x):\n    return [y for y in x]\n"
RIGHT = "import math\n\n\ndef f(x):\n    return sorted(x)\n"


def tried(*causes: str, programs: Sequence[str] = ()) -> list[Verdict]:
    sources = programs or [WRONG if cause else RIGHT for cause in causes]
    return [
        Verdict("failed" if cause else "passed", cause, program=source)
        for cause, source in zip(causes, sources, strict=True)
    ]


def test_lesson_tells_the_failure_and_what_the_pass_did_otherwise() -> None:
    lesson = lesson_of("T/0", tried("syntax", "assertion", ""))

    assert lesson is not None
    assert lesson.cause == "assertion"
    assert "failed (syntax), then failed (assertion)" in lesson.text
    assert "now with sorted(), the module math; without a list comprehension" in lesson.text


@pytest.mark.parametrize("causes", [("",), ("assertion",), ("assertion", "assertion")])
def test_lesson_is_absent_where_nothing_was_mended(causes: tuple[str, ...]) -> None:
    assert lesson_of("T/0", tried(*causes)) is None


@pytest.mark.parametrize("program", ["def f(:", "(" * 5000, "x\0", "#" * 100_000, ""])
def test_programs_that_are_none_still_teach(program: str) -> None:
    lesson = lesson_of("T/0", tried("syntax", "", programs=[program, RIGHT]))
    assert lesson is not None
    assert "written anew" in lesson.text


def test_lesson_tells_a_line_that_had_only_to_go() -> None:
    lesson = lesson_of("T/0", tried("assertion", "", programs=["a = 1\nprint(a)\n", "a = 1\n"]))
    assert lesson is not None
    assert lesson.text.endswith("What fixed it: one line taken out; without print().")
