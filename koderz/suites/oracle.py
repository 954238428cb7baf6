"""What a plus test judges by. This file's text stands at the head of every such test, so it leans on nothing else.

It runs on the trusted side. Floats are close as EvalPlus has it; its special cases have functions of their own.
Source: evalplus/evalplus, evalplus/eval/__init__.py and _special_oracle.py, as of v0.3.1.
"""

from __future__ import annotations

import json
import math
from typing import Any

RELATIVE = 1e-7  # beside the tolerance, as numpy.allclose is called there
FLOATS = 1e-6  # tolerance of a task that states none, where a result is a float or all floats


def inputs_of(text: str, shapes: tuple[Any, ...]) -> list[list[Any]]:
    """The arguments of every call, made anew each time, with the types back that JSON doesn't know."""
    calls: list[list[Any]] = json.loads(text)
    if not shapes:
        return calls
    return [[*map(restored, call, shapes + (None,) * (len(call) - len(shapes)))] for call in calls]


def restored(value: Any, shape: dict[str, Any] | None) -> Any:
    """A JSON value as what the task's own tests have in its place; see `koderz.suites.shapes`."""
    if not shape:
        return value
    if isinstance(value, list):
        inner = shape if shape["items"] == "same" else shape["items"]
        items = [restored(item, inner) for item in value]
        kinds = {"tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict, "list": list}
        return kinds[shape["filled" if items else "empty"]](items)
    if isinstance(value, dict):
        return {_number(key) if shape["keys"] else key: restored(item, shape["values"]) for key, item in value.items()}
    return _number(value) if shape["number"] and isinstance(value, str) else value


def results_of(program: str, entry_point: str, inputs: list[list[Any]]) -> list[Any]:
    """What the reference returns. It gets inputs of its own, which it may change."""
    namespace: dict[str, Any] = {"__name__": "reference"}
    exec(compile(program, "<reference>", "exec", dont_inherit=True), namespace)  # noqa: S102 - the suite's own
    return [namespace[entry_point](*arguments) for arguments in inputs]


def is_equal(_: list[Any], result: Any, expected: Any, tolerance: float) -> bool:
    """Equal, or of the same type with every float close."""
    if result == expected:
        return True
    if not tolerance and _is_floats(expected):
        tolerance = FLOATS
    return type(result) is type(expected) and _is_close(result, expected, tolerance)


def is_root(arguments: list[Any], result: Any, _: Any, tolerance: float) -> bool:
    """Any root of the polynomial is right."""
    try:
        value = sum(factor * math.pow(result, power) for power, factor in enumerate(arguments[0]))
        return bool(abs(value) <= tolerance)
    except (TypeError, ValueError, OverflowError):
        return False


def has_same_elements(_: list[Any], result: Any, expected: Any, __: float) -> bool:
    """Neither order nor number counts."""
    try:
        return set(result) == set(expected)
    except TypeError:
        return False


def is_found_too(_: list[Any], result: Any, expected: Any, __: float) -> bool:
    """What matches a pattern may be said by a bool, or by anything but None."""
    return _is_found(result) == _is_found(expected)


def is_any(_: list[Any], __: Any, ___: Any, ____: float) -> bool:
    """The task's tests contradict its text, so that every result counts."""
    return True


def is_equal_or_zero(arguments: list[Any], result: Any, expected: Any, tolerance: float) -> bool:
    return is_equal(arguments, result, expected, tolerance) or result == 0


def is_surface_area(arguments: list[Any], result: Any, expected: Any, tolerance: float) -> bool:
    """The height of the pyramid may also be taken as that of its apex, not of its sides."""
    base, height = arguments
    upright = round(base * base + 2 * base * math.hypot(base / 2, height))
    return is_equal(arguments, result, expected, tolerance) or _is_close(result, upright, tolerance)


def is_digit_distance(arguments: list[Any], result: Any, expected: Any, tolerance: float) -> bool:
    """The digits may also be compared place by place."""
    one, other = map(str, arguments)
    width = max(len(one), len(other))
    try:
        pairs = zip(one.zfill(width), other.zfill(width), strict=True)
        by_place = sum(abs(int(left) - int(right)) for left, right in pairs)
    except ValueError:  # a sign
        by_place = None
    return is_equal(arguments, result, expected, tolerance) or (by_place is not None and result == by_place)


def _number(text: str) -> Any:
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _is_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def _is_close(result: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, (list, tuple)):
        if type(result) is not type(expected) or len(result) != len(expected):
            return False
        return all(_is_close(one, other, tolerance) for one, other in zip(result, expected, strict=True))
    if result == expected or not (isinstance(result, (float, complex)) or isinstance(expected, (float, complex))):
        return bool(result == expected)
    try:
        if result != result:
            return bool(expected != expected)  # both NaN
        bound = tolerance + RELATIVE * abs(expected)
        return tolerance > 0 and math.isfinite(bound) and abs(result - expected) <= bound
    except (TypeError, OverflowError):
        return False


def _is_found(result: Any) -> bool:
    return result if isinstance(result, bool) else result is not None
