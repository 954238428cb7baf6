"""The blocks of an answer that may be code, kind by kind, the plainest first."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from koderz.suites.code.extraction.fences import MOST_BLOCKS, Block, fenced_blocks
from koderz.suites.code.extraction.parsing import mentions_definition

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAG = r"(?:pre|code|answer|solution|program|python)\b[^<>\n]{0,80}"
_OPENING_TAG = re.compile(
    rf"^[ \t]*(?:<{_TAG}>\s{{0,9}}(?=<))*(?:<{_TAG}>|\[(?:PYTHON|CODE|ANSWER)\])", re.MULTILINE | re.IGNORECASE
)
_CLOSING_TAG = re.compile(rf"</{_TAG}>|\[/(?:PYTHON|CODE|ANSWER)\]", re.IGNORECASE)

_DEFINITION_LINE = re.compile(
    r"(?:async[ \t]+def|def|class)[ \t]+\w+[ \t]*[(:]"
    r"|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*[\w.]+)*[ \t]*(?:#.*)?$"
    r"|from[ \t]+[\w.]+[ \t]+import[ \t]|@[A-Za-z_]"
)
_STATEMENT_LINE = re.compile(
    r"(?:return|yield|raise|assert|del|global|nonlocal)\b|(?:for|while|if|with|try)\b.*:[ \t]*(?:#.*)?$"
    r"|[A-Za-z_][\w.]*\(.*\)[ \t]*(?:#.*)?$"
    r"|[A-Za-z_(*][\w.\[\](), *:]*?(?:[-+%|&^]|//?)?=[ \t]*[^\s=]"
)
_WRAPPERS = " \t\"'“”‘’`*\u00a0\ufeff"
_MOST_STARTS = 4
_CONSIDERED = 300  # characters of a line: enough to tell what kind it is


def block_kinds(answer: str, entry_point: str) -> Iterator[list[Block]]:
    """Yield lists of blocks, in the order in which kinds are tried; within a list later ones are preferred."""
    yield _json_blocks(answer)
    yield [Block(answer, marked=False)]
    fenced = fenced_blocks(answer)
    yield [inner for block in fenced for inner in _json_blocks(block.text) or [block]]
    yield _tagged_blocks(answer)
    yield _json_blocks(answer[answer.find("{") : answer.rfind("}") + 1])
    yield _bare_blocks(answer, entry_point)


def looks_like_code(text: str) -> bool:
    """Return whether a line of the text begins as a statement of Python, or of a language like it."""
    return any(_is_code_line(_head(line)) for line in text.split("\n"))


def plain(text: str) -> str:
    """Text with one kind of line end, that any encoder takes and any parser reads to its end."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # lone halves of pairs are marked
    return whole.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _json_blocks(text: str) -> list[Block]:
    return [block for value in _json_strings(text) for block in fenced_blocks(value) or [Block(value)]]


def _json_strings(text: str) -> list[str]:
    """All strings in a JSON object or array; a list of strings alone is taken for the lines of one."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]"):
        return []
    try:
        pending: list[object] = [json.loads(stripped, strict=False)]
    except (ValueError, RecursionError):
        return []
    found: list[str] = []
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            pending += reversed(value.values())
        elif isinstance(value, list):
            lines = [each for each in value if isinstance(each, str)]
            pending += ["\n".join(lines)] if lines and len(lines) == len(value) else reversed(value)
    return [plain(each) for each in found[-MOST_BLOCKS:]]


def _tagged_blocks(text: str) -> list[Block]:
    blocks: list[Block] = []
    position = 0
    while opening := _OPENING_TAG.search(text, position):
        closing = _CLOSING_TAG.search(text, opening.end())
        position = closing.end() if closing else len(text)
        blocks.append(Block(text[opening.end() : closing.start() if closing else None], closed=closing is not None))
    return blocks[-MOST_BLOCKS:]


def _bare_blocks(text: str, entry_point: str) -> list[Block]:
    """From the last definition of the entry point, from the first definition, from where lines begin to look like code.

    The first such line comes last, since it leaves out least.
    """
    lines = text.split("\n")
    starts = _outer_code_lines(lines)
    definitions = [number for number in starts if _DEFINITION_LINE.match(_head(lines[number]))]
    own = [number for number in definitions if mentions_definition(_head(lines[number]), entry_point)]
    first = [number for number in starts if number - 1 not in starts][:_MOST_STARTS]
    preferred = dict.fromkeys([*first, *definitions[:1], *own[-1:]])
    return [Block(_from_line(lines, number), marked=False) for number in reversed(preferred)]


def _outer_code_lines(lines: list[str]) -> dict[int, None]:
    """The numbers of the lines that look like code and aren't within a block that such a line opens."""
    found: dict[int, None] = {}
    inside: int | None = None  # the margin of the line that opened the block
    for number, line in enumerate(lines):
        margin = len(line) - len(line.lstrip())
        if not line.strip() or (inside is not None and margin > inside):
            continue
        inside = None
        if _is_code_line(_head(line)):
            found[number] = None
            inside = margin if line.rstrip().endswith(":") else None
    return found


def _head(line: str) -> str:
    return line.lstrip(_WRAPPERS)[:_CONSIDERED]


def _is_code_line(line: str) -> bool:
    return bool(_DEFINITION_LINE.match(line) or _STATEMENT_LINE.match(line))


def _from_line(lines: list[str], number: int) -> str:
    first = lines[number].lstrip("\"'“”‘’`*\ufeff")
    return "\n".join([first, *lines[number + 1 :]])
