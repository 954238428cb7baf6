"""The solver `rlm`: a model that never sees its context, but writes code that reads it and asks models.

After "Recursive Language Models" (Zhang, Kraska, Khattab; arXiv 2512.24601).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koderz.prompts import PLACEHOLDERS, Prompts
from koderz.solvers.definition import AskHandle, JudgeHandle, LongContextHandle, OnceHandle, solver
from koderz.solvers.direct import window_at_hand
from koderz.systems.long_context.options import RlmOptions
from koderz.systems.long_context.recursive.recursion import Level, Limits, Recursion
from koderz.types import MAIN, Expected, Task, Verdict

if TYPE_CHECKING:
    from koderz.systems.long_context.wasm.opening import Sessions

_SYSTEM_TOKENS = 1_200
_TURN_TOKENS = 900  # of a usual turn: a reply with code and what it printed
_REPLY_TOKENS = 300
_USUAL_TURNS = 6  # each with one sub-call
_SUB_CALLS = 20  # a turn, as models are advised to keep to
_SUB_TOKENS = 8_000  # of a usual sub-call's prompt


def expected_calls(
    _prompt_tokens: float, _task_id: str, parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """The calls from one turn to the largest number, with a usual number of sub-calls a turn at each depth."""
    most = parameters["max_turns"]
    usual = min(_USUAL_TURNS, most)
    turns = Expected(
        "main",
        (1, most + 1),
        (_SYSTEM_TOKENS, (most + 1) * (_SYSTEM_TOKENS + most / 2 * _TURN_TOKENS)),
        (_REPLY_TOKENS, (most + 1) * _REPLY_TOKENS),
        usual=(
            usual,
            usual * (_SYSTEM_TOKENS + (usual - 1) / 2 * _TURN_TOKENS),
            usual * _REPLY_TOKENS,
        ),
    )
    subs = float(_SUB_CALLS * most)
    spans = (0.0, subs), (0.0, subs * _SUB_TOKENS), (0.0, subs * _REPLY_TOKENS)
    depths = range(1, parameters["max_depth"] + 1)
    likely = {1: (usual, usual * _SUB_TOKENS, usual * _REPLY_TOKENS)}
    return [
        turns,
        *(
            Expected("sub", *spans, depth=depth, instead=MAIN, usual=likely.get(depth, (0, 0, 0)))
            for depth in depths
        ),
    ]


@solver(
    options=RlmOptions,
    roles=("sub",),
    estimate=expected_calls,
    at_hand=window_at_hand,
    prompts={"main": [name for name in PLACEHOLDERS if name.startswith("rlm-")]},
)
async def rlm(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    once: OnceHandle,
    prompts: Prompts,
    models: Mapping[str, str],
    session: Sessions,
    long_context: LongContextHandle,
    *,
    max_depth: int = 3,
    max_turns: int = 30,
    max_concurrent_subcalls: int = 4,
    task_timeout: float | None = None,
    max_errors: int | None = None,
    wasm_timeout: float = 30.0,
    max_experiment_cost: float | None = None,
    window: int = 16384,
    max_tokens: int = 4096,
) -> Verdict:
    """Judges the answer of the model at the root of the recursion. Times are seconds.

    `window`: tokens that a conversation and its reply may come to, at every depth.
    """
    limits = Limits(
        max_depth,
        max_turns,
        max_errors,
        task_timeout,
        max_experiment_cost,
        wasm_timeout,
        window,
        max_tokens,
    )
    sub = "sub" if "sub" in models else None
    recursion = Recursion(
        ask, once, session, prompts, limits, sub=sub, at_once=max_concurrent_subcalls
    )
    await once("long_context", long_context.facts, rerun=True)  # a replay makes the text, too
    text = await long_context.read()
    answer = await recursion.answered(text.context, text.question, Level())
    verdict = await judge(task, answer)
    note = "; ".join([*filter(None, [verdict.note]), *recursion.notes])
    return replace(verdict, note=note) if note else verdict
