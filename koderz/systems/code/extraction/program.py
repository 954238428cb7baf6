"""Conversion of text that may be Python into code.

A block of a reply is often Python but for how it was written down: indented as a whole, with typographic quotes, as a
session at the interpreter's prompt, as a diff, or with prose after it. `Parser.read` undoes just that, and only where
the text as it stands does not parse; it never mends what a model got wrong.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from koderz.systems.code.extraction.statements import (
    DEFINITIONS,
    FUNCTIONS,
    IMPORTS,
    Offer,
    Statement,
    bound,
    descendants,
    offer_of,
    parse,
    statements,
)

# characters, about 32,000 tokens; the densest code of that size parses in half a second
LONGEST = 128 * 1024
_MOST_CUTS = 6
_MOST_WRAPPERS = 3

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"))
_SPACES = dict.fromkeys(map(ord, "\u00a0\u1680\u202f\u205f\u3000"), " ") | dict.fromkeys(
    range(8192, 8203), " "
)
_VISIBLE: dict[int, str | None] = {**_INVISIBLE, **_SPACES, 0x2028: "\n", 0x2029: "\n", 0x85: "\n"}
_STRAIGHT = str.maketrans("“”„‟‘’‚‛′″", "\"\"\"\"'''''\"")
_PAIRS = {"“": "”", "‘": "’", '"': '"', "'": "'", "`": "`", "*": "*"}
_DIFF_MARKS = ("--- ", "+++ ", "@@", "diff ", "index ", "-", "\\ ")


@dataclass(frozen=True)
class Code:
    """A text that parses. `whole` is false if prose or a broken end was cut off after it."""

    text: str
    tree: ast.Module
    entry_point: str
    whole: bool = True

    @cached_property
    def body(self) -> Sequence[Statement]:
        return statements(self.tree)

    @cached_property
    def offer(self) -> Offer | None:
        """The way in which the code offers the entry point."""
        return offer_of(self.body, self.entry_point) if self.entry_point in self.text else None


class Parser:
    """Parses text within a budget of characters, so that no reply can occupy the caller for long."""

    def __init__(self, entry_point: str, budget: int = 2 * LONGEST) -> None:
        self._entry_point, self._left = entry_point, budget

    def parse(self, text: str) -> Code | int:
        """Return the code, or the number (from 1) of the line with the syntax error; 0 if unknown."""
        if len(text) > min(LONGEST, self._left):
            return 0
        try:
            found: Code | int = Code(text, parse(text), self._entry_point)
        except SyntaxError as error:
            found = error.lineno or 0
        self._left -= _effort(text, found)
        return found

    def read(self, texts: Iterable[str]) -> Code | None:
        """Return the code in the first form of the first text that parses; if none does, the leading part of one."""
        failed: list[tuple[str, int]] = []
        for form in (form for text in texts for form in _forms(text, self._entry_point)):
            found = self.parse(form)
            if isinstance(found, Code):
                return found
            failed.append((form, found))
        leading = (self._leading_part(form, line) for form, line in failed)
        return next((code for code in leading if code), None)

    def _leading_part(self, text: str, error_line: int) -> Code | None:
        """The top-level statements before the broken one, unless it or a later one defines the entry point."""
        lines = text.split("\n")
        for _ in range(_MOST_CUTS):
            end = _statement_start(lines, error_line)
            leading = "\n".join(lines[:end]).rstrip()
            if not leading or mentions_definition("\n".join(lines[end:]), self._entry_point):
                return None
            found = self.parse(leading)
            if isinstance(found, Code):
                return replace(found, whole=False)
            lines, error_line = lines[:end], found
        return None


def _effort(text: str, found: Code | int) -> int:
    """The characters that parsing took; those behind an error are only split into tokens."""
    if isinstance(found, Code) or not found:
        return len(text)
    return len(text) * found // (text.count("\n") + 1) + len(text) // 16


def mentions_definition(text: str, entry_point: str) -> bool:
    """Whether a line of the text begins a definition of the entry point."""
    name = re.escape(entry_point) if entry_point else r"\w"
    return (
        re.search(rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b", text, re.MULTILINE)
        is not None
    )


def dedented(text: str) -> str:
    """The text without blank lines around it, and without the margin of its first line."""
    lines = text.rstrip().split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    margin = margin_of(lines[first])
    return "\n".join(line.removeprefix(margin) for line in lines[first:])


def margin_of(line: str) -> str:
    """The blanks at the beginning of a line."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def _statement_start(lines: list[str], error_line: int) -> int:
    """The index of the line that begins the top-level statement with the error; 0 if there is none."""
    index = min(error_line, len(lines)) - 1
    while index > 0 and (not lines[index].strip() or lines[index][0] in " \t#)]}"):
        index -= 1
    while index > 0 and lines[index - 1].startswith("@"):
        index -= 1
    return max(index, 0)


def _forms(text: str, entry_point: str) -> Iterator[str]:
    if len(text) > LONGEST:
        return
    seen: set[str] = set()
    for form in map(dedented, _raw_forms(text, entry_point)):
        if form and form not in seen:
            seen.add(form)
            yield form


def _raw_forms(text: str, entry_point: str) -> Iterator[str]:
    yield text
    visible = dedented(text.translate(_VISIBLE))
    yield visible
    yield visible.translate(_STRAIGHT)
    bare = visible  # without quotes, backticks or asterisks around it
    for _ in range(_MOST_WRAPPERS):
        if "```" not in bare and bare[-1:] == _PAIRS.get(bare[:1]):
            bare = bare[1:-1].strip("\n")
    yield bare
    if "\t" in visible:  # mixed tabs and spaces: tabs at four columns, then at eight
        for width in (4, 8):
            yield "\n".join(
                margin_of(line).expandtabs(width) + line.lstrip(" \t")
                for line in visible.split("\n")
            )
    lines = text.translate(_VISIBLE).split("\n")
    if any(line.startswith(">>>") for line in lines):  # the input of a session at the prompt
        typed = (line for line in lines if line.startswith((">>> ", "... ")))
        yield "\n".join(line[4:] for line in typed)
    if any(line.startswith("+") for line in lines):  # the new side of a diff
        kept = (line for line in lines if not line.startswith(_DIFF_MARKS))
        yield "\n".join(line[1:] if line[:1] in ("+", " ") else line for line in kept)
    if "&" in visible:
        yield html.unescape(visible)
    before, fence, after = visible.partition("```")
    # a fence that was not on a line of its own
    if fence and not mentions_definition(after, entry_point):
        yield before


_GIVEN = (*DEFINITIONS, *IMPORTS, ast.Assign, ast.AnnAssign, ast.If, ast.Try)
_FUTURE_IMPORT = re.compile(r"from[ \t]+__future__[ \t]+import[ \t]+[\w \t,]+")


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of a prompt that complete every program."""

    text: str = ""  # its imports and helpers, without the function that is asked for
    names: frozenset[str] = frozenset()
    # all of it, where it ends in the head of the function that is asked for, open for a body
    head: str = ""
    indent: str = "    "  # of that body


def read_context(prompt: str, entry_point: str, parser: Parser) -> Context:
    """Return the context in a prompt; an empty one if the prompt is prose, as in MBPP."""
    text = prompt.strip("\n").rstrip()
    found = parser.parse(text)
    if not isinstance(found, Code):
        found = parser.parse(f"{text}\n    pass")  # a signature alone
    if not isinstance(found, Code):
        return Context()
    body = found.body
    asked_for = [
        each for each in body if isinstance(each.node, FUNCTIONS) and each.node.name == entry_point
    ]
    other = [each for each in body if each in asked_for or not isinstance(each.node, _GIVEN)]
    names = bound(body) - bound(other)
    given = blanked(found.text, other).strip("\n") if names else ""
    last = body[-1].node if body else None
    if isinstance(last, FUNCTIONS) and last.name == entry_point:
        margin = margin_of(found.text.split("\n")[last.body[0].lineno - 1])
        return Context(given, names, text, margin or "    ")
    return Context(given, names)


def joined(given: Sequence[str], code: str, delegate: str, parser: Parser) -> tuple[str, int]:
    """Return the program made of the context and the code after it, and the number of lines before the code.

    What the code defines wins over what is given, because it comes later. Imports from `__future__` move to the top,
    where alone they are allowed; their lines stay behind as blank ones, so that line numbers hold.
    """
    parts = [part.strip("\n") for part in given if part.strip()]
    futures: list[str] = []
    if parts:
        moved = [_without_futures(part, parser) for part in (*parts, code)]
        *parts, code = [text for text, _ in moved]
        futures = list(dict.fromkeys(line for _, lines in moved for line in lines))
    before = "".join(f"{line}\n" for line in futures) + "".join(f"{part}\n\n\n" for part in parts)
    after = f"\n\n\n{delegate}" if delegate else "\n"
    return before + code + after, before.count("\n")


def blanked(text: str, gone: Iterable[Statement]) -> str:
    """The text with the lines of these statements emptied, and without a dangling continuation at its end."""
    lines = text.split("\n")
    for each in gone:
        first = each.first_line - 1
        # a line that only continues is part of the next
        while first > 0 and lines[first - 1].strip() == "\\":
            first -= 1
        lines[first : each.last_line] = [""] * (each.last_line - first)
    return "\n".join(lines).rstrip(" \t\n\\")


def as_body(code: Code, indent: str) -> str:
    """The code indented as a function's body; lines within a string of several lines stay as they are."""
    inside: set[int] = set()
    for node in descendants(code.tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno:
            inside.update(range(node.lineno, node.end_lineno or 0))
    lines = code.text.split("\n")
    return "\n".join(
        line if number in inside or not line.strip() else indent + line
        for number, line in enumerate(lines)
    )


def _without_futures(text: str, parser: Parser) -> tuple[str, list[str]]:
    """The text with blank lines in place of its `__future__` imports, and those imports."""
    found = parser.parse(text) if "__future__" in text else 0
    if not isinstance(found, Code):
        return text, []
    lines = text.split("\n")
    futures: list[str] = []
    for node in found.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures += [f"from __future__ import {alias.name}" for alias in node.names]
            _blank(lines, node)
    return "\n".join(lines), futures


def _blank(lines: list[str], node: ast.stmt) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno)
    if first + 1 == last and ";" in lines[first]:
        lines[first] = _FUTURE_IMPORT.sub("pass", lines[first])
    else:
        lines[first:last] = [""] * (last - first)
