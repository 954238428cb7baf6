"""What holds for every reply: extraction never raises, ends soon, and says where the reply's own lines are."""

from __future__ import annotations

import ast
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koderz.systems.code.extraction.extraction import extract_program

PROMPT = 'import math\n\n\ndef area(sides):\n    """ The area. """\n'
CAUSES = {"", "length", "no_code", "no_entry_point", "refused", "syntax"}
LONG = 300_000  # characters

CODE = (
    "def area(sides):\n",
    "    return 1\n",
    "    '''\n",
    "return 2\n",
    "x = area([1])\n",
    "print(x)\n",
    "import os; y = 1\n",
    "class A:\n",
    "  def area(self):\n    return x\n",
    "from __future__ import annotations\n",
    "@area\n",
    "if x:\n",
    "else:\n",
    "lambda: x\n",
    "def g(): area.x = g()\n",
    "g()\n",
    "assert x\n",
    "area = g\n",
    "(\n",
    ")\n",
    "\\\n",
    "# …\n",
    "\n",
    "\t",
    "    ",
    "from a import *\n",
    "x: int\n",
    "del x\n",
    "async def area(): await x\n",
    "match x:\n  case [*y]: pass\n",
    "x.y[0] = 1\n",
)
MARKS = (
    "<|channel>thought\n",
    "<channel|>",
    "<|begin_of_thought|>",
    "<|end_of_thought|>\n",
    "<|inner_prefix|>",
    "<|inner_suffix|>",
    "assistantfinal",
    "</think >",
    "&lt;think&gt;\n",
    "Here is my thought process:\n",
    "Here is my response:\n",
    "### Response:\n",
)
WRITING = (
    "```python\n",
    "```\n",
    "```",
    "~~~\n",
    "````\n",
    "> ",
    "- ",
    "1. ",
    "<think>\n",
    "</think>\n",
    "<think>",
    "<code>",
    "</code>\n",
    "[PYTHON]",
    "[/PYTHON]",
    '{"code": "',
    '"}',
    "[",
    "]",
    ">>> ",
    "... ",
    "+",
    "-",
    "@@\n",
    "“",
    "’",
    "\u00a0",
    "\u200b",
    "\ufeff",
    "\r\n",
    "\r",
    "\0",
    "\ud800",
    "&lt;",
    "I can't",
    "Prose, and more.\n",
    "`",
    "**",
    '"',
    "'",
    "{",
    "<|channel|>final<|message|>",
    *MARKS,
    "\f",
    "\u2028",
)

programs = st.lists(st.sampled_from(CODE), max_size=14).map("".join)
replies = st.one_of(st.text(), programs, st.lists(st.sampled_from(CODE + WRITING), max_size=24).map("".join))
prompts = st.sampled_from(
    (PROMPT, "", "Write a function.", "def area(sides):", "import os\n", "def area(\n", "\ud800\0")
)
reasons = st.sampled_from(("stop", "length", "refusal", "tool_calls"))


@pytest.mark.slow
@given(replies, prompts, st.sampled_from(("area", "", "a b", "x", "(")), reasons)
def test_extraction_never_raises(reply: str, prompt: str, entry_point: str, reason: str) -> None:
    found = extract_program(reply, prompt, entry_point, finish_reason=reason)

    assert found.cause in CAUSES
    assert (found.program is not None) == (found.cause in ("", "syntax", "no_entry_point"))
    assert 0 <= found.line_offset <= (found.program or "").count("\n")
    if found.program is not None:
        found.program.encode()


@given(replies, prompts)
def test_program_parses_and_names_the_entry_point(reply: str, prompt: str) -> None:
    found = extract_program(reply, prompt, "area")

    if not found.cause:
        assert found.program is not None
        assert any(_names(node) == "area" for node in ast.walk(_parsed(found.program)))


@given(programs)
def test_extraction_is_idempotent(reply: str) -> None:
    first = extract_program(reply, "", "area")

    if not first.cause:
        again = extract_program(first.program or "", "", "area")
        assert again.cause == ""
        assert ast.dump(_parsed(again.program or "")) == ast.dump(_parsed(first.program or ""))


MARKED = "def area(sides):\n    # mark\n    return 1"


@pytest.mark.parametrize(
    ("reply", "own_line"),
    [
        (MARKED, 2),
        (f"```python\n\n{MARKED}\n```", 2),
        (f"So:\n```python\nimport os\n{MARKED}\n```", 3),
        (f"```python\nfrom __future__ import annotations\nprint(1)\n{MARKED}\n\nprint(area())\n```", 4),
        ("```python\nclass Solution:\n    def area(self, sides):\n        # mark\n        return 1\n```", 3),
        ("```python\ndef times(): ...\n```\n```python\ndef area(sides):\n    # mark\n    return times()\n```", 2),
        ("    x = 1\n    # mark\n    return x", 2),
        ("x = 1\n# mark\nreturn x", 2),
        (f"```python\n{MARKED}\n    (\n```", 2),
    ],
)
def test_line_offset_leads_from_program_to_reply(reply: str, own_line: int) -> None:
    found = extract_program(reply, PROMPT, "area")

    assert found.program is not None
    lines = [line.strip() for line in found.program.splitlines()]
    marked = lines.index("# mark") + 1
    assert marked - found.line_offset == own_line


REPEATED = (
    "```\n",
    "```python\n",
    "```python\nx\n```\n",
    "``` ",
    "~~~\n```\n",
    "`",
    "<think>",
    "</think>",
    "<think>\n",
    "</think>\n",
    "<think></think>",
    *MARKS,
    "<code>\n",
    "</code>",
    "\n",
    " ",
    "> ",
    "- ```\n",
    '{"a":',
    "[",
    '"',
    '"""\n',
    "def area(sides):\n",
    "def area(sides):\n    return 1\n",
    "```\ndef area(sides):\n    return 1 +\n```\n",
    "class A:\n def area(self): return 1\n",
    "a = 1\n",
    "a.b;",
    "area.x = 1\n",
    "def g(): x[0] = g()\ng()\n",
    "(",
    "1 + ",
    "not ",
    "a.",
    "x[",
    ">>> x\n",
    "+x\n",
    "&lt;",
    "\ud800",
    "from __future__ import annotations;",
    '```py\n"""\n```\n',
    "I can't ",
    "import x\n",
)


@pytest.mark.slow
@pytest.mark.parametrize("piece", REPEATED)
def test_long_reply_of_anything_comes_to_an_end(piece: str) -> None:
    endless = piece * (LONG // len(piece))

    for reply in (
        endless,
        f"```python\ndef area(sides):\n    return 1\n{endless[:120_000]}",
        f"    return 1\n{endless[:40_000]}",
    ):
        assert extract_program(reply, PROMPT, "area").cause in CAUSES


def test_program_longer_than_any_context_is_not_parsed() -> None:
    found = extract_program("```python\ndef area(sides):\n    return 1\n" + "x = 1\n" * 50_000 + "```", PROMPT, "area")

    assert found.cause == "syntax"


@pytest.mark.parametrize(
    "nested", ["(" * 150 + ")" * 150, "-" * 100_000 + "1", "1+" * 50_000 + "1", "a" + ".b" * 50_000, "9" * 5000]
)
def test_code_that_is_too_much_for_the_parser_is_no_python(nested: str) -> None:
    found = extract_program(f"```python\ndef area(sides):\n    return {nested}\n```", PROMPT, "area")

    assert found.cause in ("", "syntax")


def _parsed(program: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(program)


def _names(node: ast.AST) -> str | None:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
            return name
        case ast.alias(name=name, asname=asname):
            return asname or name
    return None
