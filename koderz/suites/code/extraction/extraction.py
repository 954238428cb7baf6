"""The program that a model's reply means.

    reply ─▶ its answer, reasoning set aside ─▶ blocks that may be code ─▶ the one that answers ─▶ the program

Kinds of blocks are tried in the order of `block_kinds`; the first kind that answers the task wins.
Within a kind it is the last block that defines the entry point, since a reply that has several corrects itself; then
the last that is a body for the prompt's head; then all of them together. Only where no kind has that, a block will do
that merely names the entry point. Nothing is executed, and nothing repaired: a repair undoes how code was written down
(`koderz.suites.code.extraction.program`), not what it says.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koderz.suites.code.extraction.blocks import block_kinds, looks_like_code, plain, split_reasoning
from koderz.suites.code.extraction.program import LONGEST, dedented, mentions_definition
from koderz.suites.code.extraction.search import PYTHON, Search
from koderz.suites.code.extraction.statements import DEFINITIONS, IMPORTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koderz.suites.code.extraction.blocks import Block
    from koderz.suites.code.extraction.search import Reading

_REFUSING = frozenset({"refusal", "content_filter"})  # finish reasons
_REFUSAL = re.compile(
    r"\b(?:I(?:['’]m| am) (?:sorry|unable|not able|afraid)|I (?:can(?:['’]t|not| not)|won['’]t|will not)"
    r"|I (?:must )?(?:decline|refuse)|sorry, but|as an AI)\b",
    re.IGNORECASE,
)
_OPENING_WORDS = 400  # characters; a refusal comes first


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a reply comes to.

    `program` is whole: the prompt's imports and helpers, then the reply's code. It is None without a usable one; with
    cause "syntax" it holds the text that came closest, with "no_entry_point" code that may define the entry point once
    it has run, which reading can't tell. `cause` is "" when there is a program, else "no_code",
    "no_entry_point", "refused" or "syntax". `line_offset` is the number of lines before the reply's own first line, so
    that line n of a traceback is line n - line_offset of the reply's code. `reason` is the error of "syntax", or why a
    reply wasn't read to its end.
    """

    program: str | None
    cause: str
    line_offset: int
    reason: str = ""


def extract_program(reply: str, prompt: str, entry_point: str, *, finish_reason: str = "stop") -> Extraction:
    """Return the program in a model's reply to a task; never raises.

    `prompt` is the code that was to be completed, as HumanEval has it, or prose or "" where a whole function was asked
    for. `entry_point` is the name that the tests call; with "" any function will do. `finish_reason` is the model's:
    after "length" a last block that isn't closed is the last choice, and reasoning that never ended is no answer.
    """
    answer, unfinished = split_reasoning(plain(reply))
    search = Search(plain(prompt), entry_point)
    found = _extract(search, answer, entry_point, finish_reason)
    if found.cause and unfinished and finish_reason != "length":
        # The model ended of its own accord within its reasoning: what it says there is all the answer there is.
        meant = _extract(search, unfinished, entry_point, finish_reason)
        return found if meant.cause else meant
    return found


def _extract(search: Search, answer: str, entry_point: str, finish_reason: str) -> Extraction:
    seen: list[list[Block]] = []
    for kind in block_kinds(answer, entry_point):
        blocks = _cut_off_first(kind) if finish_reason == "length" else kind
        program = search.defining(blocks, "defined") or search.completing(blocks) or search.combining(blocks)
        if program:
            return Extraction(program.text, "", program.line_offset)
        seen.append(blocks)
    for blocks in seen:
        if program := search.defining(blocks, "weak"):
            return Extraction(program.text, "", program.line_offset)
    every = [block for blocks in seen for block in blocks]
    return _without_program(search, every, answer, entry_point, finish_reason)


def _cut_off_first(blocks: Sequence[Block]) -> list[Block]:
    """The last block in the first place, as the least preferred, where the end of the reply cut it off."""
    return [*blocks[-1:], *blocks[:-1]] if blocks and not blocks[-1].closed else list(blocks)


def _without_program(
    search: Search, blocks: Sequence[Block], answer: str, entry_point: str, finish_reason: str
) -> Extraction:
    if finish_reason in _REFUSING:
        return Extraction(None, "refused", 0)
    for marked in (True, False):
        alike = [block for block in blocks if block.marked is marked]
        defining = [block for block in alike if mentions_definition(block.text, entry_point)]
        if broken := _last_broken(search, defining):
            return _broken(search, broken)
        if code := [reading.code.text for block in alike if (reading := _as_code(search, block))]:
            naming = [text for text in code if entry_point in text]
            program = search.as_it_stands((naming or code)[-1])
            return Extraction(program.text, "no_entry_point", program.line_offset)
    meant = [
        block
        for block in blocks
        if block.marked and block.text.strip() and (block.language.startswith("py") or looks_like_code(block.text))
    ]
    if broken := _last_broken(search, meant):
        return _broken(search, broken)
    return Extraction(None, "refused" if _REFUSAL.search(answer[:_OPENING_WORDS]) else "no_code", 0)


def _last_broken(search: Search, blocks: Sequence[Block]) -> Block | None:
    """The last block that doesn't parse to its end."""
    return next((block for block in reversed(blocks) if not _is_whole(search.reading(block))), None)


def _broken(search: Search, block: Block) -> Extraction:
    program = search.as_it_stands(dedented(block.text))
    return Extraction(program.text, "syntax", program.line_offset, _syntax_error(program.text, program.line_offset))


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


def _is_whole(reading: Reading | None) -> bool:
    return reading is not None and reading.code.whole


def _as_code(search: Search, block: Block) -> Reading | None:
    """A block read as code without the entry point: one that nothing marks must at least define something."""
    reading = search.reading(block)
    if reading is None:
        return None
    if not block.marked:
        is_code = any(isinstance(each.node, (*DEFINITIONS, *IMPORTS)) for each in reading.body)
    else:
        is_code = block.language in PYTHON and any(
            not isinstance(each.node, ast.Expr) or each.runs.calls for each in reading.body
        )
    return reading if is_code else None
