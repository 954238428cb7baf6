"""Replies of a model that works in a session, taken apart, and what it is told of its code."""

from __future__ import annotations

from typing import Any

import pytest

from koderz.systems.long_context.recursive.recursion import ParsedReply, output_text, read

BLOCK = "```repl\nx = 1\n```"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", ParsedReply((), False, None, None)),
        ("prose only", ParsedReply((), False, None, None)),
        (BLOCK, ParsedReply(("x = 1",), False, None, None)),
        (f"look\n{BLOCK}\nthen\n```repl  \ny = 2\nz\n```\n", ParsedReply(("x = 1", "y = 2\nz"), False, None, None)),
        ("```python\nx = 1\n```", ParsedReply((), False, None, None)),
        ("```repl\nx = 1", ParsedReply(("x = 1",), True, None, None)),
        ("```repl\n\n```", ParsedReply((), False, None, None)),
        ("```repl\nFINAL(no)\n```", ParsedReply(("FINAL(no)",), False, None, None)),
        ("```\nFINAL(no)\n```", ParsedReply((), False, None, None)),
        (f"{BLOCK}\nFINAL(yes)", ParsedReply(("x = 1",), False, "yes", None)),
        ("  FINAL(f(x) and (y))) rest", ParsedReply((), False, "f(x) and (y))", None)),
        ("FINAL(1) alpha 2) beta)", ParsedReply((), False, "1) alpha 2) beta", None)),
        ("FINAL(yes) (or so I think)", ParsedReply((), False, "yes", None)),
        ("FINAL(a\nb) c)\nd)", ParsedReply((), False, "a\nb) c", None)),
        ("FINAL_VAR(n) 2) m)", ParsedReply((), False, None, "n")),
        ('FINAL("quoted")', ParsedReply((), False, '"quoted"', None)),
        ("FINAL(two\nlines)", ParsedReply((), False, "two\nlines", None)),
        ("FINAL(never closed", ParsedReply((), False, "never closed", None)),
        ("I say FINAL(no) in a line", ParsedReply((), False, None, None)),
        ("FINAL_VAR( 'name' )", ParsedReply((), False, None, "name")),
        ("FINAL_VAR(name)\nFINAL(text)", ParsedReply((), False, None, "name")),
        ("FINAL()", ParsedReply((), False, "", None)),
        ("````repl\nprint('```')\n````", ParsedReply(("print('```')",), False, None, None)),
    ],
)
def test_reply_is_parsed(reply: str, said: ParsedReply) -> None:
    assert read(reply) == said


def test_reply_of_an_older_run_ends_at_its_balanced_parenthesis() -> None:
    assert read("FINAL(1) alpha 2) beta)", 1).final == "1"


def cell(output: str = "", *variables: str) -> dict[str, Any]:
    return {"output": output, "variables": [*variables]}


def test_block_results_are_told() -> None:
    assert output_text([cell()]) == "REPL output:\nNo output"
    assert output_text([cell("1", "x")]) == "REPL output:\n1\n\nREPL variables: ['x']"
    assert output_text([cell("1"), cell("2")]) == "REPL output (block 1):\n1\n\nREPL output (block 2):\n2"
    assert output_text([cell("a" * 20_005)]) == f"REPL output:\n{'a' * 20_000}... + [5 chars...]"
