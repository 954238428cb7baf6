"""Tables and sentences on a terminal: folded between words, with fewer columns if it is narrow.

Where standard output is no terminal, nothing is folded, cut or left out, so that `grep`, `awk` and a log get all of it.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from operator import attrgetter

from koderz.analysis.blocks import Block, Table, Text
from koderz.cli.console import say_all
from koderz.streams import plain

# characters of a word that is kept whole: as many as a run's id has, or else fewer
_WHOLE = (30, 20, 16)
_JOINT = re.compile(r"(?<=[/:,@])|(?<=[^\d]-)")  # where a line may end within a longer one
_OWN_WIDTH = attrgetter("width")
_COMMAND = re.compile(r"(?<=: )koderz .+$")


def print_blocks(blocks: Iterable[Block]) -> None:
    """Prints blocks as wide as the terminal, with empty lines around ruled tables and before headings."""
    say_all(_lines(blocks, terminal_width()))


def terminal_width() -> int | None:
    """The columns of the terminal that results go to, or COLUMNS; None if the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fits(table: Table, width: int) -> bool:
    """Whether the table takes one line a row at this width, with its optional and equal columns left out."""
    columns = _columns(table)
    alike = {column.head for column in _alike(columns, table)}
    needed = [
        column.width
        for column in columns
        if column.head not in alike and column.head not in table.optional
    ]
    return _taken(needed, "  " if not table.ruled else " | ") <= width


def _lines(blocks: Iterable[Block], width: int | None) -> Iterator[str]:
    before: Block | None = None
    for block in blocks:
        if before and block != Text("") and not (_is_close(block) and _is_close(before)):
            yield ""
        if isinstance(block, Table):
            yield from _table_lines(block, width)
        else:
            yield from _sentence_lines(plain(re.sub(r"[\n\t]+", " ", block.text)), width)
        before = block


def _is_close(block: Block) -> bool:
    return isinstance(block, Text) or (isinstance(block, Table) and not block.ruled)


def _sentence_lines(text: str, width: int | None) -> Iterator[str]:
    """The text folded into lines with indentation. A command at its end stays in one piece, to be copied."""
    if width is None or _width(text) <= width:
        yield text
        return
    margin = " " * (len(text) - len(text.lstrip()))
    command = _COMMAND.search(text)
    sentence = text[: command.start()] if command else text
    first, *others = _folded(sentence.strip(), max(width - len(margin) - 2, 1))
    yield margin + first
    yield from (f"{margin}  {line}" for line in others)
    if command:
        yield f"{margin}  {command[0]}"


@dataclass(slots=True)
class _Column:
    head: str
    cells: Sequence[str]  # each on one line, without the head
    right: bool
    width: int = 0  # of the widest, until it is fitted
    floor: int = 0  # how narrow it may become

    def __post_init__(self) -> None:
        self.width = max(
            _width(line) for cell in (self.head, *self.cells) for line in cell.split("\n")
        )

    def least(self, whole: int, *, tall: bool) -> int:
        """The smallest width that breaks no word of up to `whole` characters.

        The head stays in one line, or takes two at most if `tall`.
        """
        bodies = self.cells if self.right and whole > _WHOLE[-1] else _words(self.cells, whole)
        heads = [
            half for line in self.head.split("\n") for half in (_halves(line) if tall else [line])
        ]
        return max(map(_width, chain(bodies, heads)), default=0)

    def same(self, *, ruled: bool) -> str:
        """The text that all rows share; empty if rows differ or only one has text."""
        values = [cell for cell in self.cells if ruled or cell]
        return values[0] if len(values) > 1 and len({*values}) == 1 else ""

    def above(self, other: _Column) -> _Column:
        """The two columns as one, the other's cells on a second line."""

        def both(first: str, second: str) -> str:
            if not second:
                return first
            return first + (" · " if "\n" in first else "\n  ") + second

        return _Column(
            both(self.head, other.head), [*map(both, self.cells, other.cells)], right=False
        )


def _halves(text: str) -> tuple[str, str]:
    """The text on two lines that are as short as possible."""
    words = text.split()
    splits = [(" ".join(words[:n]), " ".join(words[n:])) for n in range(1, len(words) + 1)]
    return min(splits, key=lambda lines: max(map(_width, lines)), default=("", ""))


def _words(texts: Iterable[str], whole: int) -> set[str]:
    """The words that lines may not break."""
    words = {word for text in texts for word in text.split()}
    long = {word for word in words if len(word) > whole}
    return (words - long).union(
        *({piece[: _WHOLE[0]] for piece in _JOINT.split(word)} for word in long)
    )


def _table_lines(table: Table, width: int | None) -> Iterator[str]:
    gaps = (" | ",) if table.ruled else ("  ", " ")
    columns = _columns(table)
    fitting, gap = (columns, gaps[0]) if width is None else _fitted(columns, table, width, gaps)
    if table.header:
        yield from _row_lines([column.head for column in fitting], fitting, gap)
    if table.ruled:
        yield "-+-".join("-" * column.width for column in fitting)
    for row in zip(*(column.cells for column in fitting), strict=True):
        yield from _row_lines(row, fitting, gap)
    shown = {head.strip() for column in fitting for head in re.split("\n| · ", column.head)}
    hidden = [column for column in columns if column.head not in shown]
    alike = {column.head: value for column in hidden if (value := column.same(ruled=table.ruled))}
    if alike:
        common = ", ".join(f"{head} {value}" for head, value in alike.items())
        yield from _sentence_lines(f"(in each row: {common})", width)
    if others := [column.head for column in hidden if column.head not in alike]:
        yield from _sentence_lines(
            f"(hidden to fit {width} columns: {', '.join(others)}; a pipe shows all)", width
        )


def _columns(table: Table) -> list[_Column]:
    rows = [
        [plain(" ".join(cell.split())) for cell in row]
        for row in (table.header, *table.rows)
        if row
    ]
    heads, bodies = (rows[0], rows[1:]) if table.header else ([""] * len(table.right), rows)
    columns = zip(*bodies, strict=True) if bodies else [()] * len(heads)
    return [
        _Column(head, cells, right)
        for head, cells, right in zip(heads, columns, table.right, strict=True)
    ]


def _fitted(
    columns: Sequence[_Column], table: Table, width: int, gaps: Sequence[str]
) -> tuple[Sequence[_Column], str]:
    """The columns that fit, with their widths, and the gap between them.

    What is the same in each row goes first. Other columns go before gaps get narrower, and both before a word is
    broken.
    """
    wide, narrow = gaps[0], gaps[-1]
    fitting = columns
    for column in _alike(columns, table):
        if _taken([each.width for each in fitting], wide) <= width:
            break
        fitting = [each for each in fitting if each is not column]
    if _taken([column.width for column in fitting], wide) <= width:
        return fitting, wide
    for head in table.optional:
        if (
            _taken([column.floor for column in _narrowed(fitting, _WHOLE[0], tall=False)], wide)
            <= width
        ):
            break
        # The column goes; its cells may move below those of another.
        under = table.under.get(head)
        gone = next((column for column in fitting if column.head == head), None)
        others = [column for column in fitting if column.head != head]
        if gone is None or under is None:
            fitting = others
        else:
            fitting = [
                column.above(gone) if column.head.partition("\n")[0] == under else column
                for column in others
            ]
    gap = wide
    for whole, tall, gap in (
        (_WHOLE[0], False, wide),
        (_WHOLE[0], False, narrow),
        (_WHOLE[0], True, narrow),
        (_WHOLE[1], True, narrow),
        (_WHOLE[2], True, wide),
    ):
        if _taken([column.floor for column in _narrowed(fitting, whole, tall=tall)], gap) <= width:
            break
    _share_out(fitting, width - len(gap) * (len(fitting) - 1))
    return fitting, gap


def _alike(columns: Sequence[_Column], table: Table) -> Sequence[_Column]:
    """The columns with equal rows, which may be left out, in order: the optional ones first."""
    order = {head: number for number, head in enumerate(table.optional)}
    found = [column for column in columns[1:] if column.head and column.same(ruled=table.ruled)]
    return sorted(found, key=lambda column: order.get(column.head, len(order)))


def _taken(widths: Sequence[int], gap: str) -> int:
    return sum(widths) + len(gap) * (len(widths) - 1)


def _narrowed(columns: Sequence[_Column], whole: int, *, tall: bool) -> Sequence[_Column]:
    for column in columns:
        column.floor = column.least(whole, tall=tall)
    return columns


def _share_out(columns: Sequence[_Column], room: int) -> None:
    """Gives columns the width that they want or can have: numbers first, then texts, the narrowest first."""
    spare = max(0, room - sum(column.floor for column in columns))
    by_want = sorted(columns, key=lambda column: (not column.right, column.width - column.floor))
    for number, column in enumerate(by_want):
        share = spare if column.right else spare // (len(columns) - number)
        more = max(0, min(column.width - column.floor, share))
        column.width = column.floor + more
        spare -= more
    while (
        sum(map(_OWN_WIDTH, columns)) > room and (widest := max(columns, key=_OWN_WIDTH)).width > 1
    ):
        widest.width -= 1


def _row_lines(row: Sequence[str], columns: Sequence[_Column], gap: str) -> Iterator[str]:
    folded = [
        [part for line in cell.split("\n") for part in _folded(line, column.width)]
        for cell, column in zip(row, columns, strict=True)
    ]
    for cells in zip_longest(*folded, fillvalue=""):
        yield gap.join(
            _padded(cell, column) for cell, column in zip(cells, columns, strict=True)
        ).rstrip()


def _padded(cell: str, column: _Column) -> str:
    space = " " * (column.width - _width(cell))
    return space + cell if column.right else cell + space


def _folded(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns. A longer word is broken after a joint, or anywhere."""
    if _width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        pieces = [word] if _width(word) <= width else _JOINT.split(word)
        for piece in (*pieces[:-1], f"{pieces[-1]} "):
            if lines[-1] and _width(lines[-1] + piece.rstrip()) > width:
                lines.append("")
            lines[-1] += piece
            if _width(lines[-1].rstrip()) > width:
                from rich.cells import chop_cells

                lines[-1:] = chop_cells(lines[-1], width)
    return [line.rstrip() for line in lines]


def _width(text: str) -> int:
    """The columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
