"""Replies of a model that works in a session, taken apart, and what it is told of its code."""

from __future__ import annotations

from typing import Any

import pytest

from koderz.systems.long_context.recursive.protocol import Said, read, told

BLOCK = "```repl\nx = 1\n```"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", Said((), False, None, None)),
        ("prose only", Said((), False, None, None)),
        (BLOCK, Said(("x = 1",), False, None, None)),
        (f"look\n{BLOCK}\nthen\n```repl  \ny = 2\nz\n```\n", Said(("x = 1", "y = 2\nz"), False, None, None)),
        ("```python\nx = 1\n```", Said((), False, None, None)),
        ("```repl\nx = 1", Said(("x = 1",), True, None, None)),
        ("```repl\n\n```", Said((), False, None, None)),
        ("```repl\nFINAL(no)\n```", Said(("FINAL(no)",), False, None, None)),
        ("```\nFINAL(no)\n```", Said((), False, None, None)),
        (f"{BLOCK}\nFINAL(yes)", Said(("x = 1",), False, "yes", None)),
        ("  FINAL(f(x) and (y))) rest", Said((), False, "f(x) and (y)", None)),
        ('FINAL("quoted")', Said((), False, '"quoted"', None)),
        ("FINAL(two\nlines)", Said((), False, "two\nlines", None)),
        ("FINAL(never closed", Said((), False, "never closed", None)),
        ("I say FINAL(no) in a line", Said((), False, None, None)),
        ("FINAL_VAR( 'name' )", Said((), False, None, "name")),
        ("FINAL_VAR(name)\nFINAL(text)", Said((), False, None, "name")),
        ("FINAL()", Said((), False, "", None)),
        ("````repl\nprint('```')\n````", Said(("print('```')",), False, None, None)),
    ],
)
def test_reply_is_parsed(reply: str, said: Said) -> None:
    assert read(reply) == said


def cell(output: str = "", *variables: str) -> dict[str, Any]:
    return {"output": output, "variables": [*variables]}


def test_block_results_are_told() -> None:
    assert told([cell()]) == "REPL output:\nNo output"
    assert told([cell("1", "x")]) == "REPL output:\n1\n\nREPL variables: ['x']"
    assert told([cell("1"), cell("2")]) == "REPL output (block 1):\n1\n\nREPL output (block 2):\n2"
    assert told([cell("a" * 20_005)]) == f"REPL output:\n{'a' * 20_000}... + [5 chars...]"
