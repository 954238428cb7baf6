"""The solver `compaction`: reads a text piece by piece into notes, condenses these, and answers from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from koderz.prompts import PLACEHOLDERS, Prompts
from koderz.solvers.definition import AskHandle, JudgeHandle, LongContextHandle, OnceHandle, solver
from koderz.solvers.direct import REPLY_TOKENS, window_at_hand
from koderz.types import Expected, Task, Verdict

FULL = 0.85
"""The share of the window at which notes are condensed."""

_PIECE = 0.5  # share of the window that a piece of the text takes
_CHARS_A_TOKEN = 4  # of notes


def asks_for_pieces(
    prompt_tokens: float, _task_id: str, parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """A call for each piece and one for the answer; notes are condensed at most once a piece."""
    pieces = max(1, math.ceil(prompt_tokens / (parameters["window"] * _PIECE)))
    most = 2 * pieces + 1
    tokens = prompt_tokens + most * FULL * parameters["window"]
    calls = (pieces + 1, most)
    least = pieces + 1
    usual = least, prompt_tokens + least * FULL * parameters["window"] / 2, least * REPLY_TOKENS
    return [
        Expected(
            "main",
            calls,
            (prompt_tokens, tokens),
            (least * REPLY_TOKENS, most * REPLY_TOKENS),
            usual=usual,
        )
    ]


@solver(
    roles=(),
    estimate=asks_for_pieces,
    at_hand=window_at_hand,
    prompts={"main": [name for name in PLACEHOLDERS if name.startswith("compaction-")]},
)
async def compaction(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    once: OnceHandle,
    prompts: Prompts,
    long_context: LongContextHandle,
    *,
    window: int = 16384,
) -> Verdict:
    """Answers from the model's own notes on the text. A piece takes half of `window` tokens."""
    facts = await once("long_context", long_context.facts, rerun=True)
    size = max(1, int(window * _PIECE * facts["characters"] / facts["tokens"]))
    pieces = max(1, math.ceil(facts["characters"] / size))
    asked = [_text("\n\nQuestion:\n"), long_context.part("question")]
    notes = ""
    for piece in range(pieces):
        if len(notes) / _CHARS_A_TOKEN > (FULL - _PIECE) * window:
            request = prompts.render("compaction-condensing", notes=notes)
            notes = (await ask([_user(_text(request), *asked)], purpose="condense")).text
        request = prompts.render(
            "compaction-notes", notes=notes, piece=str(piece + 1), pieces=str(pieces)
        )
        text = long_context.part("context", piece * size, (piece + 1) * size)
        reply = await ask([_user(_text(f"{request}\n\n"), text, *asked)], purpose="notes")
        notes = f"{notes}\n{reply.text}".strip()
    request = prompts.render("compaction-conclusion", notes=notes)
    return await judge(task, await ask([_user(_text(request), *asked)]))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}
