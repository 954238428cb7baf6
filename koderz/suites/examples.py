"""The examples in a task's own docstring, as tests: what a solver may see when the tests stay hidden."""

from __future__ import annotations

import ast
import re
import textwrap

_ARROWS = re.compile(r"^\s*(?:[-*•]\s*)?(?P<call>\w+\s*\(.*\))\s*(?:==|=>|➞|->|→|=|returns?)\s*(?P<value>.+?)\s*$")


def examples_test(prompt: str, entry_point: str) -> str | None:
    """The source of a `check(candidate)` that asserts the examples; None where there are none to be read."""
    docstring = _docstring(prompt, entry_point)
    pairs = _doctests(docstring, entry_point) or _arrows(docstring, entry_point)
    if not pairs:
        return None
    asserts = "\n".join(f"    assert {call} == {value}" for call, value in pairs)
    return f"def check({entry_point}):\n{asserts}\n"


def _docstring(prompt: str, entry_point: str) -> str:
    """The docstring of the prompt's function, or the prompt itself where it can't be parsed."""
    try:
        tree = ast.parse(prompt)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return prompt
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == entry_point:
            return ast.get_docstring(node) or ""
    return prompt


def _doctests(docstring: str, entry_point: str) -> list[tuple[str, str]]:
    import doctest  # which loads pdb

    try:
        examples = doctest.DocTestParser().get_examples(textwrap.dedent(docstring))
    except ValueError:
        return []
    pairs = [(example.source.strip(), example.want.strip()) for example in examples]
    return [pair for pair in pairs if _is_pair(*pair, entry_point)]


def _arrows(docstring: str, entry_point: str) -> list[tuple[str, str]]:
    """Lines such as `f(1, 2) ➞ 3` and `f(1, 2) == 3`."""
    found = [matched for line in docstring.splitlines() if (matched := _ARROWS.match(line))]
    pairs = [(matched["call"], matched["value"].rstrip(".")) for matched in found]
    return [pair for pair in pairs if _is_pair(*pair, entry_point)]


def _is_pair(call: str, value: str, entry_point: str) -> bool:
    """Whether the text is a call of the function with a literal result."""
    try:
        node = ast.parse(call, mode="eval").body
        ast.literal_eval(value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point
