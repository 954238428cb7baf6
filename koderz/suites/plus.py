"""EvalPlus' rows as `check(candidate)` tests: thousands of inputs, and the reference to say what is right.

In its releases a row has `base_input`, `plus_input` and `atol`. In its Hugging Face exports `test` holds all of
that as code that needs numpy: what is taken over are the inputs and the tolerance. Either way the test made here
runs the reference first, once, and judges by `koderz.suites.oracle`. `contract` says which inputs are valid; all
that are published are.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from koderz.suites.dataset import Row
from koderz.suites.shapes import argument_shapes, literal_calls
from koderz.suites.tasks import as_python, bindings

HUMANEVAL_ORACLES: Mapping[str, str] = {"find_zero": "is_root"}
MBPP_ORACLES: Mapping[str, str] = {
    "similar_elements": "has_same_elements",
    "find_char_long": "has_same_elements",
    "common_in_nested_lists": "has_same_elements",
    "extract_singly": "has_same_elements",
    "larg_nnum": "has_same_elements",
    "intersection_array": "has_same_elements",
    "find_dissimilar": "has_same_elements",
    "Diff": "has_same_elements",
    "check_str": "is_found_too",
    "text_match_three": "is_found_too",
    "text_starta_endb": "is_found_too",
    "are_equivalent": "is_any",
    "sum_div": "is_equal_or_zero",
    "surface_Area": "is_surface_area",
    "digit_distance_nums": "is_digit_distance",
}
"""Entry points of the tasks that aren't judged by equality → the function of the oracle that judges them."""

_TEST = Template("""\
$oracle

TOLERANCE = $tolerance
PROGRAM = $program


def drawn():
    return $inputs


GIVEN = drawn()
EXPECTED = results_of(PROGRAM, $entry_point, GIVEN)


def check(candidate):
    inputs = drawn()
    for arguments, given, expected in zip(inputs, GIVEN, EXPECTED):
        result = candidate(*arguments)
        assert $accepts(given, result, expected, TOLERANCE)
""")

_DATA = re.compile(r"^(?P<indent>[ \t]*)(?P<name>inputs|results) = (?P<value>\[.*\])[ \t\r]*$", re.MULTILINE)
_TYPED = re.compile(r"\b(?:tuple|set|frozenset|complex)\b")


def plus_test(
    row: Row, entry_point: str, program: str, *, oracles: Mapping[str, str], calls: str | None = None
) -> str | None:
    """The source of a test; None for a row that isn't EvalPlus'. `program` is the reference, whole.

    `calls` is Python that calls the function with the types that its inputs have to have; without it they are as
    JSON has them. Raises KoderzError for a row that nothing can be judged by.
    """
    if "base_input" in row.fields:
        inputs, tolerance = _released(row, entry_point, calls), row.number("atol", 0)
    elif (exported := _exported(row)) is not None:
        inputs, tolerance = exported
    else:
        return None
    _check_reference(row, entry_point, program)
    return _TEST.substitute(
        oracle=_oracle(),
        tolerance=repr(tolerance),
        program=ascii(program),
        inputs=inputs,
        entry_point=ascii(entry_point),
        accepts=oracles.get(entry_point, "is_equal"),
    )


@cache
def _oracle() -> str:
    return Path(__file__).with_name("oracle.py").read_text(encoding="utf-8")


def _released(row: Row, entry_point: str, calls: str | None) -> str:
    """An expression for the inputs of a release."""
    base, plus = row.lists("base_input"), row.lists("plus_input")
    if not base + plus:
        raise row.error("the fields 'base_input' and 'plus_input' hold no input")
    shapes = () if calls is None else argument_shapes(_shown_calls(row, entry_point, calls), base)
    return f"inputs_of({json.dumps(base + plus)!a}, {shapes!r})"


def _shown_calls(row: Row, entry_point: str, source: str) -> list[list[Any]]:
    calls = literal_calls(as_python(row, "assertion", source), entry_point)
    if not calls and _TYPED.search(row.text("contract", "")):
        raise row.error(
            f"no test in the field 'assertion' shows {entry_point} called, so that the types of its inputs, which "
            "JSON doesn't hold, can't be told; take a later release of the file"
        )
    return calls


def _exported(row: Row) -> tuple[str, float] | None:
    """An expression for the inputs in an export's test, and its tolerance. None for a test of another form."""
    test = row.text("test", "")
    inputs = next((found["value"] for found in _DATA.finditer(test) if found["name"] == "inputs"), None)
    if inputs is None:
        return None
    without = _DATA.sub(r"\g<indent>\g<name> = []", test)  # the rest is small: the data would take seconds to parse
    loops = [node for node in ast.walk(as_python(row, "test", without)) if isinstance(node, ast.For)]
    tolerances = [_tolerance(loop) for loop in loops if isinstance(loop.iter, ast.Call)]
    return (_named(inputs), tolerances[0]) if tolerances and tolerances[0] is not None else None


def _tolerance(loop: ast.For) -> float | None:
    """Of `assertion(…, atol)` or `assert … <= atol`."""
    match loop.body:
        case [ast.Expr(ast.Call(ast.Name("assertion"), [*_, ast.Constant(float() | int() as tolerance)]))]:
            return tolerance
        case [ast.Assert(ast.Compare(_, [ast.LtE()], [ast.Constant(float() | int() as tolerance)]))]:
            return tolerance
    return None


def _named(inputs: str) -> str:
    """The literal with a value for the names that `repr` writes for floats beyond numbers."""
    return f"(lambda inf, nan: {inputs})(math.inf, math.nan)"


def _check_reference(row: Row, entry_point: str, program: str) -> None:
    if not program.strip():
        raise row.error("there is no reference, so nothing says what is right")
    if entry_point not in bindings(as_python(row, "canonical_solution", program)):
        raise row.error(f"the reference doesn't define the function {entry_point}")
