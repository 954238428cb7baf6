"""Tests made from the examples in a task's own prompt, for solvers from which the real tests are hidden.

Taken are only those that are written out as a call with its result: doctests, `f(1) => 2` with any of the usual
arrows, `f(1) should return 2`, `For x = 1 the output should be 2`, `Input: x = 1` above `Output: 2`, and asserts
at the end of the prompt. What is said in prose, or takes reckoning, is left alone.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from koderz.systems.code.extraction.statements import FUNCTIONS, free_names, parse, statements

_BULLET = re.compile(r"^(?:>>>\s*|[-*•]\s+|for\s+)?(?=[A-Za-z_])")
_ARROW = re.compile(r"\s*#?\s*(?:={1,2}>|-{1,2}>|➞|→|==|should (?:return|be)\b|returns?\b)")
_EQUALS = re.compile(r"\s*=(?!=)")
_ASSIGNED = re.compile(
    r"For (?P<given>.+?),?\s+the (?:.*\bthe )?(?:output|result) should be (?P<value>.+)"
)
_INPUT, _OUTPUT = re.compile(r"Input:(?P<given>.+)"), re.compile(r"Output:(?P<value>.+)")
_REMARK = re.compile(r"\s+[#(]")
_WORDS = {"true": "True", "false": "False"}
# what may stand around the call
_AROUND = frozenset({"abs", "list", "round", "set", "sorted", "tuple"})


class _Description(NamedTuple):
    """The prompt's text about its function."""

    entry_point: str
    parameters: Sequence[str]
    text: str


def examples_test(prompt: str, entry_point: str) -> str | None:
    """The source of a `check(candidate)` that asserts the examples; None where there are none to be read."""
    told = _read(prompt, entry_point)
    setup, asserts = _asserts(told)
    if not asserts:
        asserts = [f"assert {call} == {value}" for call, value in _examples(told)]
    if not asserts:
        return None
    body = "".join(f"    {line}\n" for line in dict.fromkeys(asserts))
    return "".join(f"{line}\n" for line in setup) + f"def check({entry_point}):\n{body}"


def _read(prompt: str, entry_point: str) -> _Description:
    """The prompt's text: the docstring of the function, or of the prompt, or else the prompt as it is."""
    try:
        tree = parse(prompt)
    except SyntaxError:
        return _Description(entry_point, (), prompt)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.name == entry_point:
            parameters = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            return _Description(entry_point, parameters, _docstring(prompt, node.body))
    return _Description(entry_point, (), _docstring(prompt, tree.body) or prompt)


def _docstring(prompt: str, body: Iterable[ast.stmt]) -> str:
    r"""The first text among the statements as written between its quotes, with escapes left as they are."""
    for statement in body:
        match statement:
            case ast.Expr(ast.Constant(str())):
                source = ast.get_source_segment(prompt, statement) or ""
                return inspect.cleandoc(source.lstrip("rRuU").strip("\"'"))
    return ""


def _asserts(told: _Description) -> tuple[list[str], list[str]]:
    """The asserts in code at the end of the text, and the code before them."""
    lines = told.text.splitlines()
    for start, line in enumerate(lines):
        if (
            line
            and not line[0].isspace()
            and any(later.startswith("assert") for later in lines[start:])
        ):
            tree = _module("\n".join(lines[start:]))
            if tree and not free_names(statements(tree)) - {told.entry_point}:
                setup = [node for node in tree.body if not isinstance(node, ast.Assert)]
                asserts = [node for node in tree.body if isinstance(node, ast.Assert)]
                return [*map(ast.unparse, setup)], [*map(ast.unparse, asserts)]
    return [], []


def _examples(told: _Description) -> Iterator[tuple[str, str]]:
    """Calls of the function, each with what it returns, as source."""
    lines = [line.strip() for line in told.text.splitlines()]
    for line, following in pairwise([*lines, ""]):
        for call, value in _offers(told, line, following):
            literal = _literal(value)
            if call and literal and _is_call(told, call):
                yield call, literal
                break


def _offers(told: _Description, line: str, following: str) -> Iterator[tuple[str, str]]:
    """Possible calls with results in the line, or in it and the next."""
    text = _BULLET.sub("", line)
    call = _leading_call(text)
    rest = text[len(call) :].strip()
    if arrow := _ARROW.match(rest) or (_EQUALS.match(rest) if not _is_formula(told) else None):
        yield call, rest[arrow.end() :]
    elif line.startswith(">>>") and (not rest or rest.startswith("#")):
        yield call, following
    if assigned := _ASSIGNED.match(line):
        yield _call_with(told, assigned["given"]), assigned["value"]
    if (given := _INPUT.match(line)) and (output := _OUTPUT.match(following)):
        yield _call_with(told, given["given"]), output["value"]


def _is_formula(told: _Description) -> bool:
    """Whether the function is defined by equations, so that `f(1) = 3` may only be where they begin."""
    return re.search(rf"\b{re.escape(told.entry_point)}\([^\W\d]\w*\)\s*=", told.text) is not None


def _leading_call(text: str) -> str:
    """The call at the beginning of the text; empty if there is none."""
    for end in (found.end() for found in re.finditer(r"\)", text)):
        match _module(text[:end]):
            case ast.Module([ast.Expr(ast.Call())]):
                return text[:end]
    return ""


def _is_call(told: _Description, source: str) -> bool:
    """Whether the source calls the function and needs nothing that isn't in it."""
    names = {node.id for node in ast.walk(parse(source)) if isinstance(node, ast.Name)}
    return told.entry_point in names and names <= _AROUND | {told.entry_point}


def _call_with(told: _Description, given: str) -> str:
    """The call with the given arguments, named or as they are; empty if they can't be read."""
    match _module(f"_({given})"):
        case ast.Module([ast.Expr(ast.Call(_, arguments, keywords))]):
            by_name = {keyword.arg: keyword.value for keyword in keywords}
            if not arguments and by_name.keys() == set(told.parameters):
                arguments = [by_name[name] for name in told.parameters]
            if len(arguments) == len(told.parameters):
                return f"{told.entry_point}({', '.join(map(ast.unparse, arguments))})"
    return ""


def _literal(text: str) -> str:
    """The value that the text states, with an optional remark after it; empty if unclear."""
    for stated in (text.strip().rstrip(".,;"), text.strip(), _REMARK.split(text.strip())[0]):
        match _module(_WORDS.get(stated, stated)):
            case ast.Module([ast.Expr(value)]) if _is_literal(value):
                # ("a") may stand for ("a",)
                unclear = stated.startswith("(") and not isinstance(value, ast.Tuple)
                return "" if unclear else ast.unparse(value)
    return ""


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _module(source: str) -> ast.Module | None:
    try:
        return parse(source)
    except SyntaxError:
        return None
