"""What a plus test judges by. This file's text stands at the head of every such test, so it leans on nothing else.

It runs on the trusted side. Results are compared as EvalPlus does, whose special cases have functions of their own.
Source: evalplus/evalplus, evalplus/eval/__init__.py, _special_oracle.py and data/mbpp.py, as of v0.3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

RELATIVE = 1e-7  # beside the tolerance, as numpy.allclose is called there
FLOATS = 1e-6  # tolerance of a task that states none, once a result is a float or all floats
_LARGEST = 2**64  # of the integers that numpy compares with a tolerance

Arguments = list[Any]
"""Of one call."""


def as_tuples(value: Any) -> Any:
    """A list as a tuple, and the lists in it likewise."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def results_of(program: str, entry_point: str, inputs: list[Arguments]) -> list[Any]:
    """What the reference returns. It gets inputs of its own, which it may change."""
    namespace: dict[str, Any] = {"__name__": "reference"}
    exec(compile(program, "<reference>", "exec", dont_inherit=True), namespace)  # noqa: S102 - the suite's own
    return [namespace[entry_point](*arguments) for arguments in inputs]


def tolerances_of(expected: list[Any], stated: float, sets: Iterable[int]) -> list[float]:
    """The tolerance of each result. `sets` are the numbers of results that are judged together.

    Where a task states none, the first result of a set that is a float makes it `FLOATS` for the rest of the set.
    """
    found: list[float] = []
    for size in sets:
        tolerance = stated
        for value in expected[len(found) : len(found) + size]:
            tolerance = tolerance or (FLOATS if _is_floats(value) else 0)
            found.append(tolerance)
    return found


# Whether a result is right: the arguments, the result, that of the reference, and the tolerance.


def is_equal(_: Arguments, result: Any, expected: Any, tolerance: float) -> bool:
    """Equal, or of the same type with every number close."""
    return bool(result == expected) or _is_close(result, expected, tolerance)


def is_root(arguments: Arguments, result: Any, _: Any, tolerance: float) -> bool:
    """Any root of the polynomial is right."""
    try:
        value = sum(factor * math.pow(result, power) for power, factor in enumerate(arguments[0]))
        return bool(abs(value) <= tolerance)
    except (TypeError, ValueError, OverflowError):
        return False


def has_same_elements(_: Arguments, result: Any, expected: Any, tolerance: float) -> bool:
    """Neither order nor number counts."""
    try:
        return set(result) == set(expected) or _is_close(result, expected, tolerance)
    except TypeError:
        return False


def is_found_too(_: Arguments, result: Any, expected: Any, __: float) -> bool:
    """What matches a pattern may be said by a bool, or by anything but None; the reference returns the match."""
    return (result if isinstance(result, bool) else result is not None) == (expected is not None)


def is_any(_: Arguments, __: Any, ___: Any, ____: float) -> bool:
    """The task's tests contradict its text, so that every result counts."""
    return True


def is_equal_or_zero(arguments: Arguments, result: Any, expected: Any, tolerance: float) -> bool:
    return is_equal(arguments, result, expected, tolerance) or result == 0


def is_surface_area(arguments: Arguments, result: Any, expected: Any, tolerance: float) -> bool:
    """The height of the pyramid may also be taken as that of its apex, not of its sides."""
    if is_equal(arguments, result, expected, tolerance):
        return True
    base, height = arguments
    upright = round(base**2 + 2 * base * math.sqrt((base / 2) ** 2 + height**2))
    return isinstance(result, (int, float)) and abs(result - upright) <= tolerance


def is_digit_distance(arguments: Arguments, result: Any, expected: Any, tolerance: float) -> bool:
    """The digits may also be compared place by place."""
    if is_equal(arguments, result, expected, tolerance):
        return True
    one, other = map(str, arguments)
    width = max(len(one), len(other))
    try:
        pairs = zip(one.zfill(width), other.zfill(width), strict=True)
        return bool(result == sum(abs(int(left) - int(right)) for left, right in pairs))
    except ValueError:  # a sign
        return False


def _is_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def _is_close(result: Any, expected: Any, tolerance: float) -> bool:
    return tolerance > 0 and type(result) is type(expected) and _are_numbers_close(result, expected, tolerance)


def _are_numbers_close(result: Any, expected: Any, tolerance: float) -> bool:
    """As numpy.allclose has it, to which lists and tuples are the same, and nothing but numbers is close."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(result, (list, tuple)) or len(result) != len(expected):
            return False
        return all(_are_numbers_close(one, other, tolerance) for one, other in zip(result, expected, strict=True))
    if not (_is_number(result) and _is_number(expected)):
        return False
    if result != result:
        return bool(expected != expected)  # both NaN
    bound = tolerance + RELATIVE * abs(expected)
    return bool(result == expected) or (math.isfinite(bound) and abs(result - expected) <= bound)


def _is_number(value: Any) -> bool:
    return isinstance(value, (float, complex)) or (isinstance(value, int) and abs(value) < _LARGEST)
