"""Headings, sentences and tables, for terminals and here as Markdown and HTML with their content escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from koderz.streams import plain


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Columns of cells that look like numbers are aligned to the right."""

    header: Sequence[str]  # empty: no heads
    rows: Sequence[Sequence[str]]
    # heads of the columns that a narrow terminal may do without, the first one first
    optional: Sequence[str] = ()
    # False: a listing with space between its columns, where a blank is the same as above it
    ruled: bool = True
    # optional heads that move under another instead of going
    under: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := {*self.optional, *self.under, *self.under.values()} - set(self.header):
            raise ValueError(f"no column is called {', '.join(unknown)}")

    @property
    def right(self) -> list[bool]:
        """Whether each column is aligned to the right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [bool(column) and all(map(_is_number, column)) for column in columns]


Block = Heading | Text | Table

_RIGHT = ' style="text-align:right"'


def as_markdown(blocks: Iterable[Block]) -> Iterator[str]:
    """Lines of GitHub's Markdown."""
    for block in blocks:
        if isinstance(block, Heading):
            yield f"### {_markdown(block.text)}"
        elif isinstance(block, Text):
            yield _markdown(block.text)
        else:
            yield _markdown_row(block.header)
            yield _markdown_row(["---:" if right else "---" for right in block.right], escaped=True)
            yield from map(_markdown_row, block.rows)
        yield ""


def as_html(blocks: Iterable[Block]) -> str:
    """An HTML fragment for a notebook."""
    return "\n".join(map(_html, blocks))


def _is_number(cell: str) -> bool:
    return not cell or re.fullmatch(r"-|≥?[-+$]*[\d.,:/]+ ?(%|s|points)?( .*)?", cell) is not None


def _markdown_row(cells: Sequence[str], *, escaped: bool = False) -> str:
    return "| " + " | ".join(cell if escaped else _markdown(cell) for cell in cells) + " |"


def _markdown(text: str) -> str:
    """The text escaped for Markdown, without links, HTML, emphasis or the end of a cell.

    Underscores within words, as ids have them, mean nothing there and stay as they are.
    """
    return re.sub(
        r"([\\`*\[\]|~#]|(?<![^\W_])_|_(?![^\W_]))",
        r"\\\1",
        escape(plain(" ".join(text.split())), quote=False),
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h4>{escape(block.text)}</h4>"
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    right = block.right
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in block.header)
    body = "".join(f"<tr>{_html_cells(row, right)}</tr>" for row in block.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_cells(row: Sequence[str], right: Sequence[bool]) -> str:
    return "".join(
        f"<td{_RIGHT if r else ''}>{escape(cell)}</td>" for cell, r in zip(row, right, strict=True)
    )
