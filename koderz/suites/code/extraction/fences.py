"""Where a reply keeps its code: reasoning set aside, then the fenced blocks in order.

Markdown is read as models write it rather than as CommonMark defines it: a fence may be indented, quoted or in a list,
its language may share a line with code, and an opening fence with a language ends a block that nobody closed.
Everything goes line by line, so time grows with the reply and not with what is in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_BLOCKS = 64  # the last ones; a model that repeats itself until its limit writes thousands

_TAG_NAME = r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis)"
_OPENING = re.compile(rf"(?:<\|?(?:seed:|start_)?|◁|\[(?=think)){_TAG_NAME}(?:\|?>|▷|\])", re.IGNORECASE)
_CLOSING = re.compile(rf"(?:<\|?|◁|\[)(?:/|end_)(?:seed:)?{_TAG_NAME}(?:\|?>|▷|\])", re.IGNORECASE)
_FINAL_CHANNEL = "<|channel|>final<|message|>"

_BULLET = re.compile(r"(?:[-*+]|\d{1,3}[.)])[ \t]{1,4}(?=```|~~~)")
_MARK = re.compile(r"`{3,}|~{3,}")
_LANGUAGE = re.compile(r"\{?[ \t]?\.?([A-Za-z][\w+#.-]{0,30})(?=[ \t},:=]|$)")
_CODE = re.compile(r"(?:def|class|import|from|async|return|for|while|if|with|try)\b|@\w")
_BLANK = " \t\u00a0\u200b\ufeff"
_BEFORE_FENCE = _BLANK + ">"
_DEEPEST_FENCE = 3  # columns further in than the opening one; beyond, it belongs to the code, e.g. to a docstring
_MORE_ENDS = 3


@dataclass(frozen=True, slots=True)
class Block:
    """Text that may be code. `longer` are the texts up to a later fence, in case the first one belongs to the code."""

    text: str
    language: str = ""  # lower case; "" where none was named
    closed: bool = True
    longer: tuple[str, ...] = ()
    marked: bool = True  # as code, by a fence or the like


@dataclass(frozen=True, slots=True)
class _Fence:
    line: int
    indent: int
    quoted: bool
    mark: str
    info: str

    def closes(self, opening: _Fence) -> bool:
        return not self.info and self.mark.startswith(opening.mark) and self.is_level_with(opening)

    def is_level_with(self, opening: _Fence) -> bool:
        return self.indent <= opening.indent + _DEEPEST_FENCE


@dataclass(frozen=True, slots=True)
class _Span:
    opening: _Fence
    end: int  # the number of the line after its last
    closed: bool


def split_reasoning(text: str) -> tuple[str, str]:
    """Return the answer, and what stands in reasoning that was begun and never ended ("" mostly).

    Closed reasoning is dropped, as is everything before a closing tag that has no opening one: some chat templates put
    the opening tag into the prompt. A tag counts only at the edge of a line, so that code about tags stays whole.
    """
    if not _OPENING.search(text) and not _CLOSING.search(text):
        return text.rpartition(_FINAL_CHANNEL)[2], ""
    answer: list[str] = []
    thoughts: list[str] | None = None
    fence: _Fence | None = None
    lines = text.rpartition(_FINAL_CHANNEL)[2].rstrip().split("\n")[::-1]
    while lines:
        line = lines.pop()
        if thoughts is not None:
            if closings := list(_CLOSING.finditer(line)):
                thoughts = None
                lines.append(line[closings[-1].end() :])
            else:
                thoughts.append(line)
        elif (rest := _after_stray_closing(line)) is not None and (rest.strip() or lines):
            answer, fence = [rest], None
        elif fence is None and (opening := _OPENING.match(line.lstrip())):
            thoughts = []
            lines.append(line.lstrip()[opening.end() :])
        else:
            fence = _fence_state(fence, line)
            answer.append(line)
    return "\n".join(answer), "\n".join(thoughts or ())


def fenced_blocks(text: str) -> list[Block]:
    """Return the last `MOST_BLOCKS` fenced blocks that hold anything, in the order in which they stand."""
    lines = text.split("\n")
    fences = [fence for number, line in enumerate(lines) if (fence := _fence(line, number))]
    spans = [span for span in _spans(fences, len(lines)) if _holds_anything(span, lines)][-MOST_BLOCKS:]
    later = _later_ends(spans, fences)
    return [_block(span, lines, ends) for span, ends in zip(spans, later, strict=True)]


def _after_stray_closing(line: str) -> str | None:
    """What follows the last closing tag of a line if that is at its start or end; else None."""
    closings = list(_CLOSING.finditer(line))
    if not closings or (line[: closings[-1].start()].strip() and line[closings[-1].end() :].strip()):
        return None
    return line[closings[-1].end() :]


def _fence_state(fence: _Fence | None, line: str) -> _Fence | None:
    here = _fence(line, 0)
    if here is None or _one_liner(here) is not None:
        return fence
    if fence is None:
        return here
    return None if here.closes(fence) else fence


def _fence(line: str, number: int) -> _Fence | None:
    if "```" not in line and "~~~" not in line:
        return None
    body = line.lstrip(_BEFORE_FENCE)
    if bullet := _BULLET.match(body):
        body = body[bullet.end() :]
    mark = _MARK.match(body)
    if mark is None:
        return None
    indent = len(line) - len(body)
    return _Fence(number, indent, ">" in line[:indent], mark[0], body[mark.end() :].strip(_BLANK))


def _spans(fences: list[_Fence], end: int) -> list[_Span]:
    spans: list[_Span] = []
    opening: _Fence | None = None
    for fence in fences:
        if opening is None:
            if _one_liner(fence) is not None:
                spans.append(_Span(fence, fence.line + 1, closed=True))
            else:
                opening = fence
        elif fence.closes(opening):
            spans.append(_Span(opening, fence.line, closed=True))
            opening = None
        elif _LANGUAGE.match(fence.info) and fence.is_level_with(opening):
            spans.append(_Span(opening, fence.line, closed=True))
            opening = fence
    if opening is not None:
        spans.append(_Span(opening, end, closed=False))
    return spans


def _one_liner(fence: _Fence) -> str | None:
    """The code of a fence that opens and closes on one line, as in ```` ```x = 1``` ````."""
    if fence.mark[0] != "`" or not fence.info.endswith(fence.mark):
        return None
    return fence.info.removesuffix(fence.mark)


def _holds_anything(span: _Span, lines: list[str]) -> bool:
    return bool(_first_line(span.opening)[1]) or any(
        lines[number].strip() for number in range(span.opening.line + 1, span.end)
    )


def _later_ends(spans: list[_Span], fences: list[_Fence]) -> list[list[int]]:
    """For each span the next few fence lines after its end, one pass for all."""
    numbers = [fence.line for fence in fences]
    ends: list[list[int]] = []
    position = 0
    for span in spans:
        while position < len(numbers) and numbers[position] <= span.end:
            position += 1
        ends.append(numbers[position : position + _MORE_ENDS])
    return ends


def _block(span: _Span, lines: list[str], later: list[int]) -> Block:
    language, first = _first_line(span.opening)
    start = span.opening.line + 1
    texts = [_content(span.opening, first, lines[start:end]) for end in (span.end, *later)]
    return Block(texts[0], language, span.closed, tuple(texts[1:]))


def _first_line(opening: _Fence) -> tuple[str, str]:
    """The language of a fence, and the code that shares its line."""
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
    return language[1].lower() if language else "", ""  # after it a title, a file name, options of a highlighter


def _content(opening: _Fence, first: str, lines: list[str]) -> str:
    own = [_without_quote(line) for line in lines] if opening.quoted else lines
    top = next((line for line in own if line.strip()), "")
    margin = 0 if opening.quoted else min(opening.indent, _leading_blanks(top))
    body = [line[min(margin, _leading_blanks(line)) :] for line in own]
    return "\n".join([first, *body] if first else body)


def _leading_blanks(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _without_quote(line: str) -> str:
    body = line.lstrip(" \t")
    return body[1:].removeprefix(" ") if body.startswith(">") else line
