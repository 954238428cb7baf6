"""Headings, sentences and tables, once, as plain text, Markdown or HTML. Whatever they hold is escaped."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Columns whose cells look like numbers are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


_RIGHT = ' style="text-align:right"'

Block = Heading | Text | Table


def as_text(blocks: Iterable[Block]) -> Iterator[str]:
    """Lines for a terminal, still to be made plain. An empty line stands around tables and before headings."""
    before: Block | None = None
    for block in blocks:
        if before is not None and not (isinstance(block, Text) and isinstance(before, Text)):
            yield ""
        if isinstance(block, Table):
            yield from _text_table(block)
        else:
            yield block.text
        before = block


def as_markdown(blocks: Iterable[Block]) -> Iterator[str]:
    """Lines of GitHub's Markdown."""
    for block in blocks:
        if isinstance(block, Heading):
            yield f"### {_markdown(block.text)}"
        elif isinstance(block, Text):
            yield _markdown(block.text)
        else:
            yield _markdown_row(block.header)
            yield _markdown_row(["---:" if right else "---" for right in _to_the_right(block)], escaped=True)
            yield from map(_markdown_row, block.rows)
        yield ""


def as_html(blocks: Iterable[Block]) -> str:
    """A fragment for a notebook."""
    return "\n".join(map(_html, blocks))


def _text_table(table: Table) -> Iterator[str]:
    rows = [[_one_line(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    right = _to_the_right(table)
    for number, row in enumerate(rows):
        cells = [_padded(cell, width, r) for cell, width, r in zip(row, widths, right, strict=True)]
        yield " | ".join(cells).rstrip()
        if not number:
            yield "-+-".join("-" * width for width in widths)


def _to_the_right(table: Table) -> list[bool]:
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.header)
    return [bool(column) and all(_is_number(cell) for cell in column) for column in columns]


def _is_number(cell: str) -> bool:
    return not cell or re.fullmatch(r"[-+$]*[\d.,]+ ?(%|s|points)?( .*)?", cell) is not None


def _padded(cell: str, width: int, right: bool) -> str:
    space = " " * (width - _width(cell))
    return space + cell if right else cell + space


def _width(text: str) -> int:
    """Columns that a terminal takes for it."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown_row(cells: Sequence[str], *, escaped: bool = False) -> str:
    return "| " + " | ".join(cell if escaped else _markdown(cell) for cell in cells) + " |"


def _markdown(text: str) -> str:
    """Nothing in it is taken for a link, HTML, emphasis or a cell's end."""
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", escape(_one_line(text), quote=False))


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h4>{escape(block.text)}</h4>"
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    right = _to_the_right(block)
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in block.header)
    body = "".join(f"<tr>{_html_cells(row, right)}</tr>" for row in block.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_cells(row: Sequence[str], right: Sequence[bool]) -> str:
    return "".join(f"<td{_RIGHT if r else ''}>{escape(cell)}</td>" for cell, r in zip(row, right, strict=True))
