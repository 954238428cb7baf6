"""The types that JSON doesn't know, read off the calls in a task's own tests.

`f((1, 2), {3})` in a test and `[[1, 2], [3]]` among the published inputs say that the first argument is a
tuple and the second a set, so the many inputs that no test shows are given those types too.
`koderz.suites.oracle.restored` applies a shape.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

Shape = dict[str, Any]
"""What stands in place of a JSON value, and of those in it.

`filled` and `empty` name the type of a list with items and without, `items` is the shape of its items ("same":
this one again), `values` that of a dict's values; `keys` says whether a dict's keys are numbers, `number` whether
a text is one. None in place of a shape leaves the value as it is.
"""

_SEQUENCES = (list, tuple, set, frozenset)
_ABSENT = object()


def literal_calls(tree: ast.AST, entry_point: str) -> list[list[Any]]:
    """The arguments of every call of the function that has nothing but literals."""
    return [*_literals(tree, entry_point)]


def argument_shapes(calls: Sequence[Sequence[Any]], inputs: Sequence[Sequence[Any]]) -> tuple[Shape | None, ...]:
    """The shape of each argument, from `calls` in tests and the same as JSON; () where JSON is right as it is."""
    by_position = [[value for value in column if value is not _ABSENT] for column in _columns(calls)]
    as_json = [[value for value in column if value is not _ABSENT] for column in _columns(inputs)]
    shapes = [_shape(literals, raw) for literals, raw in zip_longest(by_position, as_json, fillvalue=())]
    return tuple(shapes) if any(shapes) else ()


def _columns(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    return zip_longest(*rows, fillvalue=_ABSENT)


def _literals(tree: ast.AST, entry_point: str) -> Iterator[list[Any]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point:
            try:
                arguments = [ast.literal_eval(argument) for argument in node.args]
            except (ValueError, TypeError, MemoryError, RecursionError):
                continue
            if not node.keywords:
                yield arguments


def _shape(literals: Sequence[Any], raw: Sequence[Any]) -> Shape | None:
    """What the `literals` that tests have in one place say of it, beside the `raw` JSON values in the same place."""
    lists = [value for value in literals if isinstance(value, _SEQUENCES)]
    dicts = [value for value in literals if isinstance(value, dict)]
    written_as_lists = [] if any(isinstance(value, dict) for value in raw) else dicts
    filled = _commonest(value for value in lists if value)
    empty = _commonest(value for value in chain(lists, written_as_lists) if not value)
    shape: Shape = {
        "filled": filled or empty.replace("dict", "list") or "list",
        "empty": empty or filled or "list",
        "items": _shape(*(_flat(values, _SEQUENCES) for values in (literals, raw))) if lists else None,
        "values": _shape(*(_flat(values, dict) for values in (literals, raw))) if dicts else None,
        "keys": bool(_flat_keys(dicts)) and all(_is_number(key) for key in _flat_keys(dicts)),
        "number": _are_numbers(literals) and any(isinstance(value, str) for value in raw),
    }
    return _nested(shape) if _says_something(shape) else None


def _nested(shape: Shape) -> Shape:
    """A tuple of tuples may go deeper in the inputs than in the tests."""
    items = shape["items"]
    if shape["filled"] == "tuple" and items and items["filled"] == "tuple" and items["items"] is None:
        return {**shape, "items": {**items, "items": "same"}}
    return shape


def _says_something(shape: Shape) -> bool:
    plain = shape["filled"] == "list" and shape["empty"] == "list"
    return not plain or any(shape[name] for name in ("items", "values", "keys", "number"))


def _commonest(values: Iterable[Any]) -> str:
    """Their type's name: "" for none, and of two equally common ones "list", which JSON has itself."""
    counts = Counter(type(value).__name__ for value in values)
    most = max(counts.values(), default=0)
    names = [name for name, count in counts.items() if count == most]
    return "list" if len(names) > 1 else "".join(names)


def _flat(values: Iterable[Any], kinds: type | tuple[type, ...]) -> list[Any]:
    inside: list[Any] = [value for value in values if isinstance(value, kinds)]
    return [item for value in inside for item in (value.values() if isinstance(value, dict) else value)]


def _flat_keys(dicts: Iterable[dict[Any, Any]]) -> list[Any]:
    return [key for one in dicts for key in one]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex) and not isinstance(value, bool)


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(_is_number(value) for value in values)
