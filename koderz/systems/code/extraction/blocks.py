"""The blocks of a reply that may be code, by kind, the plainest first.

Markdown is read as models write it rather than as CommonMark defines it: a fence may be
indented, quoted or in a list, its language may share a line with code, and an opening fence with a language ends a
block that nobody closed. Everything goes line by line, so time grows with the reply and not with what is in it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from koderz.systems.code.extraction.program import margin_of, mentions_definition

MOST_BLOCKS = 64  # the last ones; a model that repeats itself until its limit writes thousands

_BULLET = re.compile(r"(?:[-*+]|\d{1,3}[.)])[ \t]{1,4}(?=```|~~~)")
_MARK = re.compile(r"`{3,}|~{3,}")
_LANGUAGE = re.compile(r"\{?[ \t]?\.?([A-Za-z][\w+#.-]{0,30})(?=[ \t},:=]|$)")
_CODE = re.compile(r"(?:def|class|import|from|async|return|for|while|if|with|try)\b|@\w")
_BLANK = " \t\u00a0\u200b\ufeff"
_BEFORE_FENCE = _BLANK + ">"
# columns further in than the opening one; beyond, it belongs to the code, e.g. to a docstring
_DEEPEST_FENCE = 3
_MORE_ENDS = 3


@dataclass(frozen=True, slots=True)
class Block:
    """A text that may be code. `longer` are the texts up to a later fence, in case the first is part of the code."""

    text: str
    language: str = ""  # lower case; "" where none was named
    closed: bool = True
    longer: tuple[str, ...] = ()
    marked: bool = True  # as code, by a fence or the like


@dataclass(frozen=True, slots=True)
class Fence:
    """A line that opens or closes a block."""

    line: int
    indent: int
    quoted: bool
    mark: str
    info: str

    def closes(self, opening: Fence) -> bool:
        return not self.info and self.mark.startswith(opening.mark) and self.is_level_with(opening)

    def is_level_with(self, opening: Fence) -> bool:
        return self.indent <= opening.indent + _DEEPEST_FENCE


def fenced_blocks(text: str) -> list[Block]:
    """Return the last `MOST_BLOCKS` fenced blocks that hold anything, in the order in which they stand."""
    lines = text.split("\n")
    fences = [fence for number, line in enumerate(lines) if (fence := _fence(line, number))]
    numbers = [fence.line for fence in fences]
    blocks: list[Block] = []
    for opening, end, closed in reversed([*_spans(fences, len(lines))]):
        language, first = _first_line(opening)
        text = _content(opening, first, lines[opening.line + 1 : end])
        if not text.strip():
            continue
        later = bisect_right(numbers, end)
        ends = numbers[later : later + _MORE_ENDS]
        longer = tuple(_content(opening, first, lines[opening.line + 1 : each]) for each in ends)
        blocks.append(Block(text, language, closed, longer))
        if len(blocks) == MOST_BLOCKS:
            break
    return blocks[::-1]


def fenced_ranges(text: str) -> Iterator[range]:
    """Yield the numbers of the lines within each fenced block."""
    lines = text.split("\n")
    fences = [fence for number, line in enumerate(lines) if (fence := _fence(line, number))]
    yield from (range(opening.line + 1, end) for opening, end, _ in _spans(fences, len(lines)))


def fence_state(fence: Fence | None, line: str) -> Fence | None:
    """Return the fence that is open after a line, given the one that is open before it."""
    here = _fence(line, 0)
    if here is None or _one_liner(here) is not None:
        return fence
    if fence is None:
        return here
    return None if here.closes(fence) else fence


def _fence(line: str, number: int) -> Fence | None:
    if "```" not in line and "~~~" not in line:
        return None
    body = line.lstrip(_BEFORE_FENCE)
    if bullet := _BULLET.match(body):
        body = body[bullet.end() :]
    mark = _MARK.match(body)
    if mark is None:
        return None
    indent = len(line) - len(body)
    return Fence(number, indent, ">" in line[:indent], mark[0], body[mark.end() :].strip(_BLANK))


def _spans(fences: list[Fence], end: int) -> Iterator[tuple[Fence, int, bool]]:
    """Opening fences, each with the number of the line after its block, and whether that line closes the block."""
    opening: Fence | None = None
    for fence in fences:
        if opening is None:
            if _one_liner(fence) is not None:
                yield fence, fence.line + 1, True
            else:
                opening = fence
        elif fence.closes(opening):
            yield opening, fence.line, True
            opening = None
        elif _LANGUAGE.match(fence.info) and fence.is_level_with(opening):
            yield opening, fence.line, True
            opening = fence
    if opening is not None:
        yield opening, end, False


def _one_liner(fence: Fence) -> str | None:
    """The code of a fence that opens and closes on one line, as in ```` ```x = 1``` ````."""
    if fence.mark[0] != "`" or not fence.info.endswith(fence.mark):
        return None
    return fence.info.removesuffix(fence.mark)


def _first_line(opening: Fence) -> tuple[str, str]:
    """The language of a fence, and the code on the same line."""
    one_liner = _one_liner(opening)
    info = opening.info if one_liner is None else one_liner
    language = _LANGUAGE.match(info)
    rest = info[language.end() :].strip() if language else ""
    if _CODE.match(info):
        return "", info
    if language and (not rest or _CODE.match(rest)):
        return language[1].lower(), rest
    if one_liner is not None:
        return "", info
    # after it a title, a file name, options of a highlighter
    return language[1].lower() if language else "", ""


def _content(opening: Fence, first: str, lines: list[str]) -> str:
    own = [_without_quote(line) for line in lines] if opening.quoted else lines
    top = next((line for line in own if line.strip()), "")
    margin = 0 if opening.quoted else min(opening.indent, len(margin_of(top)))
    body = [line[min(margin, len(margin_of(line))) :] for line in own]
    return "\n".join([first, *body] if first else body)


def _without_quote(line: str) -> str:
    body = line.lstrip(" \t")
    return body[1:].removeprefix(" ") if body.startswith(">") else line


_TAG = r"(?:pre|code|answer|solution|program|python)\b[^<>\n]{0,80}"
_OPENING_TAG = re.compile(
    rf"^[ \t]*(?:<{_TAG}>\s{{0,9}}(?=<))*(?:<{_TAG}>|\[(?:PYTHON|CODE|ANSWER)\])",
    re.MULTILINE | re.IGNORECASE,
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
    # lone halves of pairs are marked
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _json_blocks(text: str) -> list[Block]:
    return [
        block for value in _json_strings(text) for block in fenced_blocks(value) or [Block(value)]
    ]


def _json_strings(text: str) -> list[str]:
    """All strings in a JSON object or array; a list of strings counts as the lines of one."""
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
        blocks.append(
            Block(
                text[opening.end() : closing.start() if closing else None],
                closed=closing is not None,
            )
        )
    return blocks[-MOST_BLOCKS:]


def _bare_blocks(text: str, entry_point: str) -> list[Block]:
    """The text from the last definition of the entry point, from the first definition, from the first line like code.

    The first such line comes last, since it leaves out least.
    """
    lines = text.split("\n")
    starts: dict[int, None] = {}
    inside: int | None = None  # the margin of the line that opened the block
    for number, line in enumerate(lines):
        margin = len(line) - len(line.lstrip())
        if not line.strip() or (inside is not None and margin > inside):
            continue
        inside = None
        if _is_code_line(_head(line)):
            starts[number] = None
            inside = margin if line.rstrip().endswith(":") else None
    definitions = [number for number in starts if _DEFINITION_LINE.match(_head(lines[number]))]
    own = [
        number for number in definitions if mentions_definition(_head(lines[number]), entry_point)
    ]
    first = [number for number in starts if number - 1 not in starts][:_MOST_STARTS]
    preferred = dict.fromkeys([*first, *definitions[:1], *own[-1:]])
    return [Block(_from_line(lines, number), marked=False) for number in reversed(preferred)]


def _head(line: str) -> str:
    return line.lstrip(_WRAPPERS)[:_CONSIDERED]


def _is_code_line(line: str) -> bool:
    return bool(_DEFINITION_LINE.match(line) or _STATEMENT_LINE.match(line))


def _from_line(lines: list[str], number: int) -> str:
    first = lines[number].lstrip("\"'“”‘’`*\ufeff")
    return "\n".join([first, *lines[number + 1 :]])
