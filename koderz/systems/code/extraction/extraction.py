"""Extraction of the program that a model's reply means.

    reply ─▶ its answer, reasoning set aside ─▶ blocks that may be code ─▶ the one that answers ─▶ the program

Kinds of blocks are tried in the order of `block_kinds`; the first kind that answers the task wins.
Within a kind it is the last block that defines the entry point, since a reply that has several corrects itself; then
the last that is a body for the prompt's head; then all of them together. Only where no kind has that, a block will do
that merely names the entry point. Nothing is executed, and nothing repaired: a repair undoes how code was written down
(`koderz.systems.code.extraction.program`), not what it says.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from koderz.systems.code.extraction.blocks import (
    PYTHON,
    Block,
    Extraction,
    Fence,
    Search,
    block_kinds,
    fence_state,
    fenced_ranges,
    looks_like_code,
    plain,
)
from koderz.systems.code.extraction.program import (
    LONGEST,
    Parser,
    dedented,
    margin_of,
    mentions_definition,
)
from koderz.systems.code.extraction.statements import DEFINITIONS, IMPORTS

_REFUSING = frozenset({"refusal", "content_filter"})  # finish reasons
_REFUSAL = re.compile(
    r"\b(?:I(?:['’]m| am) (?:sorry|unable|not able|afraid)|I (?:can(?:['’]t|not| not)|won['’]t|will not)"
    r"|I (?:must )?(?:decline|refuse)|sorry, but|as an AI)\b",
    re.IGNORECASE,
)
_OPENING_WORDS = 400  # characters; a refusal comes first


def extract_program(
    reply: str, prompt: str, entry_point: str, *, finish_reason: str = "stop"
) -> Extraction:
    """Return the program in a model's reply to a task; never raises.

    `prompt` is the code that was to be completed, as HumanEval has it, or prose or "" where a whole function was asked
    for. `entry_point` is the name that the tests call; with "" any function will do. `finish_reason` is the model's:
    after "length" a last block that isn't closed is the last choice, and reasoning that never ended is no answer. A
    function within which a limit or a filter ended the reply is none, even if it parses.
    """
    text = plain(reply)
    search = Search(plain(prompt), entry_point)
    if own := first_turn(text, USERS_TURN):
        # What follows a user's turn was made up by a model that didn't stop, if it had answered before.
        answer, unfinished = split_reasoning(own)
        found = _extract(search, answer, entry_point, "stop")
        if not (unfinished or found.cause):
            return found
    answer, unfinished = split_reasoning(text)
    found = _extract(search, answer, entry_point, finish_reason)
    cut = "refused" if finish_reason in _REFUSING else ""
    if finish_reason == "length":
        cut = "length"
    if (
        cut
        and not found.cause
        and _extract(search, _settled(answer), entry_point, finish_reason).cause
    ):
        return Extraction(None, cut)
    if found.cause and unfinished and finish_reason != "length":
        # The model ended of its own accord within its reasoning: what it says there is all the answer there is.
        meant = _extract(search, unfinished, entry_point, finish_reason)
        return found if meant.cause else meant
    return found


def _extract(search: Search, answer: str, entry_point: str, finish_reason: str) -> Extraction:
    seen: list[list[Block]] = []
    # A model that doesn't stop makes up a next task. A heading such as "### Response:" doesn't tell by itself: it may
    # stand before the only answer. So the text before it counts if it answers the task.
    for text in filter(None, (first_turn(answer), answer)):
        seen.clear()
        for kind in block_kinds(text, entry_point):
            blocks = _cut_off_first(kind) if finish_reason == "length" else kind
            found = (
                search.defining(blocks, "defined")
                or search.completing(blocks)
                or search.combining(blocks)
            )
            if found:
                return found
            seen.append(blocks)
    weak = (found for blocks in seen if (found := search.defining(blocks, "weak")))
    every = [block for blocks in seen for block in blocks]
    return next(weak, None) or _without_program(search, every, answer, entry_point, finish_reason)


def _settled(answer: str) -> str:
    """The answer without its last piece of code, if the end of the reply may have cut that off.

    The piece begins at the last line that isn't indented, in a block that no fence closes, or in a text without fences.
    """
    lines = answer.split("\n")
    fence, start = None, 0
    for number, line in enumerate(lines, 1):
        before, fence = fence, fence_state(fence, line)
        start = start if fence is before else number
    if start and fence is None:
        return answer
    margin = fence.indent if fence else 0
    outer = [
        n
        for n, line in enumerate(lines[start:], start)
        if line.strip() and len(margin_of(line)) <= margin
    ]
    return "\n".join(lines[: outer[-1] if outer else start])


def _cut_off_first(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with the last one first, the least preferred, if the end of the reply cut it off."""
    return [*blocks[-1:], *blocks[:-1]] if blocks and not blocks[-1].closed else list(blocks)


def _without_program(
    search: Search, blocks: Sequence[Block], answer: str, entry_point: str, finish_reason: str
) -> Extraction:
    if finish_reason in _REFUSING:
        return Extraction(None, "refused")
    for marked in (True, False):
        alike = [block for block in blocks if block.marked is marked]
        if broken := _broken(
            search, [block for block in alike if mentions_definition(block.text, entry_point)]
        ):
            return broken
        if code := [text for block in alike if (text := _as_code(search, block))]:
            naming = [text for text in code if entry_point in text]
            return search.as_it_stands((naming or code)[-1], "no_entry_point")
    meant = [
        block
        for block in blocks
        if block.marked
        and block.text.strip()
        and (block.language.startswith("py") or looks_like_code(block.text))
    ]
    refused = _REFUSAL.search(answer[:_OPENING_WORDS])
    return _broken(search, meant) or Extraction(None, "refused" if refused else "no_code")


def _broken(search: Search, blocks: Sequence[Block]) -> Extraction | None:
    """The result for the last block that doesn't parse to its end."""
    for block in reversed(blocks):
        code = search.reading(block)
        if not (code and code.whole):
            found = search.as_it_stands(dedented(block.text), "syntax")
            return replace(found, reason=_syntax_error(found.program or "", found.line_offset))
    return None


def _syntax_error(program: str, line_offset: int) -> str:
    if len(program) > LONGEST:
        return f"It has {len(program):,} characters; more than {LONGEST:,} aren't read."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(program, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line - line_offset})" if line else ""
        return f"{type(error).__name__}: {getattr(error, 'msg', error)}{where}"
    return ""


def _as_code(search: Search, block: Block) -> str:
    """A block as code without the entry point, or "". An unmarked block must at least define something."""
    code = search.reading(block)
    if code is None:
        return ""
    if not block.marked:
        is_code = any(isinstance(each.node, (*DEFINITIONS, *IMPORTS)) for each in code.body)
    else:
        is_code = block.language in PYTHON and any(
            not isinstance(each.node, ast.Expr) or each.runs.calls for each in code.body
        )
    return code.text if is_code else ""


# Every family of models marks its reasoning in words of its own, so a mark is read by its shape: `<|x>` and `<x|>`,
# `<|begin_of_x|>` and `<|end_of_x|>`, `<|x_prefix|>` and `<|x_suffix|>`, `<x>` and `</x>` are pairs, and after the last
# closing one the answer begins. Marks in a program's strings are none: what parses as Python has no marks.

_THOUGHT = (
    r"think|thought|reason|reflection|scratchpad|analysis|"
    r"rationale|monologue|deliberation|(?<![a-z])cot(?![a-z])"
)
_OF_THOUGHTS = re.compile(_THOUGHT, re.IGNORECASE)
_THOUGHT_FOLLOWS = re.compile(rf"[ \t]*(?:{_THOUGHT})\w*[ \t]*(?=\n|<|$)", re.IGNORECASE)
# Between these is an answer or a turn, which isn't left out whatever follows.
_OF_ANSWERS = re.compile(
    r"answer|solution|response|final|code|program|python|^(?:im|turn|text|sentence)$", re.IGNORECASE
)
_FINAL = re.compile(
    r"<\|channel\|>\s?final\b[^<\n]{0,40}(?:<\|constrain\|>[^<\n]{0,40})?<\|message\|>"
    r"|assistantfinal"  # what is left of it where a server strips special tokens
    r"|^Here is my response:"
)
_MARK = re.compile(
    rf"(?P<final>{_FINAL.pattern})"
    r"|(?P<left>(?:<|&lt;|\\u003c)(?P<slash>\\?/)?[|｜]?|◁|\[)[ ]?(?P<inner_slash>/?)[ ]?(?P<name>[^\W\d][\w:▁-]{0,39})"
    r"[ ]?(?P<right>[|｜]?(?:>|&gt;|\\u003e)|▷|\])"
)
_SIDE_FIRST = re.compile(r"(begin|start|end|stop)(?:[_▁]of)?[_▁](.+)")
_SIDE_LAST = re.compile(r"(.+)[_▁](begin|start|open|prefix|end|stop|close|suffix)")
# a token that a vocabulary has in reserve: MedGemma's thoughts are between two
_UNUSED = re.compile(r"unused\d+")
_CLOSING_WORDS = frozenset({"end", "stop", "close", "suffix"})
# of a line that are tried, from either end; a model may repeat one until its limit
_MOST_MARKS = 16
_QUOTES = frozenset("\"'`")
# The heading of a next turn: what follows was made up by a model that didn't stop.
_NEXT_TURN = re.compile(
    r"^#{2,4} (?:Instruction|Input|Response|User|Human|Question):?[ \t]*$", re.MULTILINE
)
# The beginning of a user's turn, which no model's reply has: ChatML's, Llama's, Gemma's, Phi's, Granite's, Mistral's.
USERS_TURN = re.compile(
    r"(?:(?:</s>|<end_of_turn>)\s{0,8})?(?:<\|im_start\|>user\b|<\|start_header_id\|>user<\|end_header_id\|>|<start_of_turn>user\b"
    r"|<\|user\|>|<\|start_of_role\|>user<\|end_of_role\|>|\[INST\]|^#{2,4} (?:Human|User): )",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class _Mark:
    start: int
    end: int
    key: str  # alike in the two marks of a pair
    closes: bool
    special: bool  # by its form no text or code, so that it may stand within a line
    of_thoughts: bool
    one_sided: bool = False  # `<x|>`, which closes without an opening one, too


def split_reasoning(text: str) -> tuple[str, str]:
    """Return the answer, and the text of reasoning that never ended (usually "").

    Closed reasoning is dropped, as is everything before a closing mark that has no opening one: some chat templates put
    the opening mark into the prompt. A tag counts only at the edge of a line, so that code about tags stays whole.
    """
    return _Reader(text).read() if _MARK.search(text) else (text, "")


def first_turn(answer: str, marks: re.Pattern[str] = _NEXT_TURN) -> str:
    """Return what stands before the first mark of a next turn; "" if there is none, or nothing before it."""
    inside = _program_lines(answer, marks)
    for turn in marks.finditer(answer):
        if answer.count("\n", 0, turn.end()) not in inside:
            return answer[: turn.start()].rstrip()
    return ""


class _Reader:
    """Goes through a reply line by line; the rest of a line after a mark is read as a line of its own."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = [*enumerate(text.rstrip().split("\n"))][::-1]
        self._protected = _program_lines(text, _MARK)
        self._answer: list[str] = []
        self._thoughts: list[tuple[int, str]] | None = None
        self._is_special = False  # whether a special mark opened them
        self._key = ""  # of the mark that opened the thoughts
        self._opened: set[str] = set()
        self._fence: Fence | None = None

    def read(self) -> tuple[str, str]:
        while self._lines:
            number, line = self._lines.pop()
            marks = [] if number in self._protected else [*_marks(line)]
            if self._thoughts is not None:
                self._think(number, line, marks)
            elif (end := self._beginning(number, line, marks)) is not None:
                self._answer, self._fence = [], None
                self._lines.append((number, line[end:]))
            elif opening := self._opening(line, marks):
                self._thoughts, self._key, self._is_special = [], opening.key, opening.special
                self._answer += [line[: opening.start]] if line[: opening.start].strip() else []
                self._lines.append((number, line[opening.end :]))
            elif (rest := self._without_marks(line, marks)) != line:
                self._lines.append((number, rest))
            else:
                self._fence = fence_state(self._fence, line)
                self._answer.append(line)
            if not self._lines and self._thoughts and self._is_special:
                self._end_by_another_mark()
        return "\n".join(self._answer), "\n".join(line for _, line in self._thoughts or ())

    def _end_by_another_mark(self) -> None:
        """Ends thoughts that no mark of their own ends, as `<|think|>` before `<|content|>`, where code follows one."""
        thoughts, self._is_special = self._thoughts or [], False
        following = ""
        for index, (number, line) in reversed([*enumerate(thoughts)]):
            marks = [] if number in self._protected else [*_marks(line)]
            for mark in reversed(marks[-_MOST_MARKS:]):
                rest = line[mark.end :]
                if (
                    mark.special
                    and _may_hold_code(rest if rest.strip() else following)
                    and not _is_quoted(line, mark)
                ):
                    self._thoughts = None
                    self._lines = [(number, rest), *thoughts[index + 1 :]][::-1]
                    return
            following = line if line.strip() else following

    def _think(self, number: int, line: str, marks: list[_Mark]) -> None:
        assert self._thoughts is not None
        ends = [
            each.end
            for each in marks
            if each.closes and (each.of_thoughts or each.key == self._key)
        ]
        if ends:
            self._thoughts = None
            self._lines.append((number, line[ends[-1] :]))
        else:
            self._thoughts.append((number, line))

    def _beginning(self, number: int, line: str, marks: list[_Mark]) -> int | None:
        """The end of the last mark of the line after which the answer begins, if there is one."""
        for mark in reversed(marks[-_MOST_MARKS:]):
            rest = line[mark.end :]
            at_edge = not line[: mark.start].strip() or not rest.strip()
            if not mark.closes or not (at_edge or (mark.special and not _is_quoted(line, mark))):
                continue
            if mark.of_thoughts:
                if rest.strip() or self._lines:
                    return mark.end
            elif (
                (mark.one_sided or mark.key in self._opened)
                and not _OF_ANSWERS.search(mark.key)
                and (_may_hold_code(rest) or number < self._last_code)
            ):
                return mark.end  # what it closed may be an answer, too, unless code comes after it
        return None

    def _opening(self, line: str, marks: list[_Mark]) -> _Mark | None:
        for mark in marks[:_MOST_MARKS] if self._fence is None else ():
            at_start = not line[: mark.start].strip()
            if (
                not mark.closes
                and mark.of_thoughts
                and (at_start or (mark.special and not _is_quoted(line, mark)))
            ):
                return mark
        return None

    def _without_marks(self, line: str, marks: list[_Mark]) -> str:
        """The line without special marks at its edges: a fence may follow one, and a program end at one."""
        special = [each for each in marks if each.special]
        self._opened.update(each.key for each in special if not each.closes)
        start, end = 0, len(line)
        for mark in special:
            if line[start : mark.start].strip():
                break
            start = mark.end
        for mark in reversed(special):
            if mark.start < start or line[mark.end : end].strip():
                break
            end = mark.start
        return line[start:end]

    @cached_property
    def _last_code(self) -> int:
        lines = self._text.split("\n")
        return next((n for n in reversed(range(len(lines))) if _may_hold_code(lines[n])), -1)


def _may_hold_code(text: str) -> bool:
    return "```" in text or looks_like_code(text)


def _is_quoted(line: str, mark: _Mark) -> bool:
    return bool(
        _QUOTES & {line[mark.start - 1 : mark.start], line[mark.end : mark.end + 1]}
    ) and not (line.startswith("```", mark.end))


def _marks(line: str) -> Iterator[_Mark]:
    for found in _MARK.finditer(line):
        start, end = found.span()
        if found["final"]:
            yield _Mark(start, end, "final", closes=True, special=True, of_thoughts=True)
            continue
        left, name, right = found["left"], found["name"].lower(), found["right"]
        barred = left[-1] in "|｜", right[0] in "|｜"
        special = any(barred) or left == "◁" or bool(_UNUSED.fullmatch(name))
        of_thoughts = bool(_OF_THOUGHTS.search(name))
        if not special and not (
            name.startswith(("think", "reason")) if left == "[" else of_thoughts
        ):
            continue
        key, closes = _paired(name)
        one_sided = barred == (False, True)
        closes = closes or one_sided or bool(found["slash"] or found["inner_slash"])
        if special and not closes:
            of_thoughts = of_thoughts or bool(_THOUGHT_FOLLOWS.match(line, end))
        yield _Mark(start, end, key, closes, special, of_thoughts, one_sided)


def _paired(name: str) -> tuple[str, bool]:
    """The key of a mark, and whether its name says that it closes."""
    if found := _SIDE_FIRST.fullmatch(name):
        return found[2], found[1] in _CLOSING_WORDS
    if found := _SIDE_LAST.fullmatch(name):
        return found[1], found[2] in _CLOSING_WORDS
    return name, False


def _program_lines(text: str, marks: re.Pattern[str]) -> set[int]:
    """The numbers of lines within code that parses although it has marks, which must be in its strings then."""
    if not marks.search(text):
        return set()
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines) if looks_like_code(line)), 0)
    parser = Parser("")
    found: set[int] = set()
    for where in (range(len(lines)), range(first, len(lines)), *fenced_ranges(text)):
        own = "\n".join(lines[where.start : where.stop])
        if marks.search(own) and not isinstance(parser.parse(dedented(own)), int):
            found.update(where)
    return found
