"""The seeds in a test script, which determine its inputs, and the script with other seeds."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from typing import Final

_SEEDING: Final = frozenset(
    {
        *("seed", "seed_instance", "manual_seed", "manual_seed_all", "set_seed", "set_random_seed", "default_rng"),
        *("Random", "RandomState", "PRNGKey", "SeedSequence", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"),
    }
)
"""Functions whose first argument is a seed, of random, NumPy, PyTorch, TensorFlow, JAX, transformers and Faker."""

_NAMES: Final = ("seed", "random_state")  # what the name of an argument or a variable has in it
_MOST = 1 << 31  # that all of these take


def reseeded(source: str, drawn: int) -> str:
    """The script with other seeds, drawn by a number; empty if it has none. Equal seeds stay equal."""
    found = {(each.lineno, each.col_offset): each for each in _seeds(ast.parse(source))}
    if not found:
        return ""
    lines = source.encode().split(b"\n")
    for (line, column), node in sorted(found.items(), reverse=True):
        other = random.Random(f"{drawn}/{node.value!r}").randrange(1, _MOST)  # noqa: S311 repeatable on purpose
        text = lines[line - 1]
        lines[line - 1] = text[:column] + b"%d" % other + text[node.end_col_offset :]
    return b"\n".join(lines).decode()


def _seeds(tree: ast.AST) -> Iterator[ast.Constant]:
    """The numbers in the script that are seeds."""
    for node in ast.walk(tree):
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            given += node.args[:1] if _name(node.func) in _SEEDING else []
            given += [each.value for each in node.keywords if _is_seed(each.arg)]
        elif isinstance(node, ast.Assign):
            given += [node.value] if any(_is_seed(_name(each)) for each in node.targets) else []
        elif isinstance(node, ast.AnnAssign):
            given += [node.value] if _is_seed(_name(node.target)) else []
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            with_default = positional[len(positional) - len(node.defaults) :]
            pairs = [
                *zip(with_default, node.defaults, strict=True),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]
            given += [default for argument, default in pairs if _is_seed(argument.arg)]
        for each in given:
            if isinstance(each, ast.Constant) and type(each.value) is int:
                yield each


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_seed(name: str | None) -> bool:
    return any(each in (name or "").lower() for each in _NAMES)
