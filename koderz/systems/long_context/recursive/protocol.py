"""The protocol of a recursive language model: blocks of code, final answers, and the output of code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SHOWN = 20_000  # characters of what one block printed

_OPENS = re.compile(r"^\s*(`{3,})\s*(\w*)")
_FINAL = re.compile(r"^[ \t]*FINAL(_VAR)?\(", re.MULTILINE)


class Said(NamedTuple):
    """A parsed reply."""

    blocks: tuple[str, ...]  # of code that is to run
    is_open: bool  # the last block has no closing fence
    final: str | None  # the answer that stands outside of all fences
    final_variable: str | None  # or the variable that holds it


def read(reply: str) -> Said:
    """The blocks and the final answer of a reply. Text in a fence is never a final answer."""
    blocks: list[str] = []
    outside: list[str] = []
    code: list[str] = []
    fence, runs = "", False
    for line in reply.split("\n"):
        opening = _OPENS.match(line)
        if fence:
            if line.strip() == fence:
                blocks += ["\n".join(code)] if runs else []
                fence = ""
            else:
                code.append(line)
        elif opening:
            fence, runs, code = opening[1], opening[2].lower() == "repl", []
        else:
            outside.append(line)
    is_open = bool(fence) and runs
    if is_open:
        blocks.append("\n".join(code))
    final, variable = _final("\n".join(outside))
    return Said(tuple(block.strip() for block in blocks if block.strip()), is_open, final, variable)


def told(cells: Sequence[Mapping[str, Any]], room: int = SHOWN) -> str:
    """The output of a reply's blocks as the model sees it: at most `room` characters of each."""
    if len(cells) == 1:
        return _block("REPL output:", cells[0], room)
    return "\n\n".join(_block(f"REPL output (block {n}):", cell, room) for n, cell in enumerate(cells, 1))


def cut(text: str, room: int = SHOWN) -> str:
    """The text, or its beginning with the number of characters left out."""
    return text if len(text) <= room else f"{text[:room]}... + [{len(text) - room} chars...]"


def _block(heading: str, cell: Mapping[str, Any], room: int) -> str:
    text = cut(cell["output"], room)
    if cell["variables"]:
        text = f"{text}\n\nREPL variables: {cell['variables']}".strip()
    return f"{heading}\n{text or 'No output'}"


def _final(text: str) -> tuple[str | None, str | None]:
    found = _FINAL.search(text)
    if not found:
        return None, None
    inside = _balanced(text[found.end() :]).strip()
    if found[1]:
        return None, inside.strip("\"' \t\n")
    return inside, None


def _balanced(text: str) -> str:
    """The text before the parenthesis that closes; all of it if none does."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:place]
    return text
