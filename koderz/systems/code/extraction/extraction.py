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
from collections.abc import Sequence
from dataclasses import replace

from koderz.systems.code.extraction.blocks import Block, block_kinds, fence_state, looks_like_code, plain
from koderz.systems.code.extraction.program import LONGEST, dedented, margin_of, mentions_definition
from koderz.systems.code.extraction.search import PYTHON, Extraction, Search
from koderz.systems.code.extraction.statements import DEFINITIONS, IMPORTS
from koderz.systems.code.extraction.thoughts import USERS_TURN, first_turn, split_reasoning

_REFUSING = frozenset({"refusal", "content_filter"})  # finish reasons
_REFUSAL = re.compile(
    r"\b(?:I(?:['’]m| am) (?:sorry|unable|not able|afraid)|I (?:can(?:['’]t|not| not)|won['’]t|will not)"
    r"|I (?:must )?(?:decline|refuse)|sorry, but|as an AI)\b",
    re.IGNORECASE,
)
_OPENING_WORDS = 400  # characters; a refusal comes first


def extract_program(reply: str, prompt: str, entry_point: str, *, finish_reason: str = "stop") -> Extraction:
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
    if cut and not found.cause and _extract(search, _settled(answer), entry_point, finish_reason).cause:
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
            found = search.defining(blocks, "defined") or search.completing(blocks) or search.combining(blocks)
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
    outer = [n for n, line in enumerate(lines[start:], start) if line.strip() and len(margin_of(line)) <= margin]
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
        if broken := _broken(search, [block for block in alike if mentions_definition(block.text, entry_point)]):
            return broken
        if code := [text for block in alike if (text := _as_code(search, block))]:
            naming = [text for text in code if entry_point in text]
            return search.as_it_stands((naming or code)[-1], "no_entry_point")
    meant = [
        block
        for block in blocks
        if block.marked and block.text.strip() and (block.language.startswith("py") or looks_like_code(block.text))
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
