"""EvalPlus' rows as `check(candidate)` tests: thousands of inputs, with the reference's results to compare.

In its releases a row has `base_input`, `plus_input` and `atol`. In its Hugging Face exports `test` holds all of
that as code that needs numpy: what is taken over are the inputs and the tolerance. Either way the test made here
runs the reference first, once, and judges by `koderz.systems.code.oracle`. `contract` says which inputs are valid; all
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
from typing import Any, NamedTuple

from koderz.suites.dataset import Row
from koderz.systems.code.extraction.statements import bound, statements
from koderz.systems.code.tasks import as_python
from koderz.types import Judging

LIMITS = Judging(timeout=60.0, memory_mb=4096, call_timeout=10.0)
"""EvalPlus' own: a minute for all inputs (`EVALPLUS_TIMEOUT_PER_TASK`) and 4 GB (`EVALPLUS_MAX_MEMORY_BYTES`).

It gives one input 4 seconds, or 4 times what the reference takes, by the clock; that is at most 8 seconds, so that
nothing it passes runs out of 10 seconds of CPU, and a program that doesn't end is done with sooner than in a minute.
"""

HUMANEVAL_ORACLES: Mapping[str, str] = {"find_zero": "is_root"}
_OF_MBPP: Mapping[str, str] = {
    "has_same_elements": "similar_elements find_char_long common_in_nested_lists extract_singly larg_nnum "
    "intersection_array find_dissimilar Diff",
    "is_found_too": "check_str text_match_three text_starta_endb",
    "is_any": "are_equivalent",
    "is_equal_or_zero": "sum_div",
    "is_surface_area": "surface_Area",
    "is_digit_distance": "digit_distance_nums",
}
MBPP_ORACLES: Mapping[str, str] = {
    name: oracle for oracle, names in _OF_MBPP.items() for name in names.split()
}
"""Entry points of the tasks that aren't judged by equality → the oracle's function that judges them."""

_TEST = Template("""\
$oracle

import json

PROGRAM = $program


def drawn():
    return $inputs


GIVEN = drawn()
EXPECTED = results_of(PROGRAM, $entry_point, GIVEN)
TOLERANCES = tolerances_of(EXPECTED, $tolerance, $sets)


def check(candidate):
    inputs = drawn()
    for arguments, given, expected, tolerance in zip(inputs, GIVEN, EXPECTED, TOLERANCES):
        result = candidate(*arguments)
        assert $accepts(given, result, expected, tolerance)
""")

_DATA = re.compile(
    r"^(?P<indent>[ \t]*)(?P<name>inputs|results) = (?P<value>\[.*\])[ \t\r]*$", re.MULTILINE
)


class _Judged(NamedTuple):
    """The parts of a row's test, as expressions."""

    inputs: str
    tolerance: float
    sets: str  # the numbers of results that are judged together


def plus_test(
    row: Row, entry_point: str, program: str, *, oracles: Mapping[str, str], restored: str = "call"
) -> str | None:
    """The source of a test; None for a row of another format. `program` is the whole reference.

    `restored` is the expression that gives a release's inputs, those of one `call`, the types JSON doesn't know.
    Raises KoderzError for a row that nothing can be judged by.
    """
    judged = _released(row, restored) if "base_input" in row.fields else _exported(row)
    if judged is None:
        return None
    if not program.strip():
        raise row.error("there is no reference, so nothing says what is right")
    if entry_point not in bound(statements(as_python(row, "canonical_solution", program))):
        raise row.error(f"the reference doesn't define the function {entry_point}")
    return _TEST.substitute(
        oracle=_oracle(),
        tolerance=repr(judged.tolerance),
        sets=judged.sets,
        program=ascii(program),
        inputs=judged.inputs,
        entry_point=ascii(entry_point),
        accepts=oracles.get(entry_point, "is_equal"),
    )


@cache
def _oracle() -> str:
    return Path(__file__).with_name("oracle.py").read_text(encoding="utf-8")


def _released(row: Row, restored: str) -> _Judged:
    base, plus = _calls(row, "base_input"), _calls(row, "plus_input")
    if not base + plus:
        raise row.error("the fields 'base_input' and 'plus_input' hold no input")
    inputs = f"[{restored} for call in json.loads({json.dumps(base + plus)!a})]"
    return _Judged(inputs, row.number("atol", 0), f"({len(base)}, {len(plus)})")


def _calls(row: Row, name: str) -> list[list[Any]]:
    """The inputs in a field. The release of MBPP+ has `{}` for none."""
    return [] if row.fields.get(name) == {} else row.lists(name)


def _exported(row: Row) -> _Judged | None:
    """The parts of an exported test; None for a test of another form."""
    test = row.text("test", "")
    inputs = next(
        (found["value"] for found in _DATA.finditer(test) if found["name"] == "inputs"), None
    )
    if inputs is None:
        return None
    # the rest is small: the data would take seconds to parse
    without = _DATA.sub(r"\g<indent>\g<name> = []", test)
    loops = [
        node for node in ast.walk(as_python(row, "test", without)) if isinstance(node, ast.For)
    ]
    tolerances = [_tolerance(loop) for loop in loops if isinstance(loop.iter, ast.Call)]
    if not tolerances or tolerances[0] is None:
        return None
    # The names are those that repr writes for infinite floats and NaN.
    return _Judged(
        f"(lambda inf, nan: {inputs})(math.inf, math.nan)", tolerances[0], "(1,) * len(EXPECTED)"
    )


def _tolerance(loop: ast.For) -> float | None:
    """The tolerance in `assertion(…, atol)` or `assert … <= atol`."""
    match loop.body:
        case [
            ast.Expr(
                ast.Call(ast.Name("assertion"), [*_, ast.Constant(float() | int() as tolerance)])
            )
        ]:
            return tolerance
        case [
            ast.Assert(ast.Compare(_, [ast.LtE()], [ast.Constant(float() | int() as tolerance)]))
        ]:
            return tolerance
    return None
