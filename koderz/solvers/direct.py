"""The solvers of one call: `zero-shot`, and `direct`, which sends the whole text if the model's window holds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koderz.models.names import parse_model_name
from koderz.solvers.definition import (
    AskHandle,
    JudgeHandle,
    LongContextHandle,
    OnceHandle,
    asks_once,
    solver,
)
from koderz.types import Expected, Task, Verdict


@solver(roles=(), estimate=asks_once)
async def zero_shot(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
    """Asks the model once and has the reply judged."""
    return await judge(task, await ask(task.messages))


REPLY_TOKENS = 100  # of a usual answer to a question about a text


def asks_if_it_fits(
    prompt_tokens: float, _task_id: str, parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """One call if the text fits."""
    if prompt_tokens > parameters["window"]:
        return []
    return [Expected("main", (1, 1), (prompt_tokens, prompt_tokens), (REPLY_TOKENS, REPLY_TOKENS))]


def window_at_hand(
    options: Mapping[str, Any], _tasks: Sequence[Task], _prompts: Any
) -> Mapping[str, Any]:
    """The window in tokens: `--context` where it is given, else what is published for the model, else its default."""
    own = (
        None
        if "context" in options["given"]
        else published_window(options["models"] or [options["local_model"]])
    )
    return {"window": own or options["context"]}


@solver(roles=(), estimate=asks_if_it_fits, at_hand=window_at_hand)
async def direct(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    once: OnceHandle,
    long_context: LongContextHandle,
    *,
    window: int = 16384,
) -> Verdict:
    """Answers from the whole text in one call. A text of more than `window` tokens isn't sent."""
    facts = await once("long_context", long_context.facts)
    if facts["tokens"] > window:
        return too_long(facts, window)
    return await judge(task, await ask(task.messages))


def too_long(facts: Mapping[str, Any], window: int) -> Verdict:
    """The verdict on a text that doesn't fit the window."""
    detail = f"{facts['tokens']:,} tokens ({facts['tokenizer']}) don't fit a window of {window:,}; nothing was sent"
    return Verdict(
        "failed",
        "context",
        detail=detail,
        score=0.0,
        note="the text does not fit the model's window",
    )


def published_window(models: Iterable[str]) -> int | None:
    """The smallest context window, in tokens, that is published for any of the models; None if none is."""
    return min((window for name in models if (window := _published(name))), default=None)


def _published(name: str) -> int | None:
    model = parse_model_name(name)
    if model.provider in ("simulated", "ollama"):  # which is asked for as much as the settings say
        return None
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model.name, None, model.provider, None)
    except LookupError:
        return None
    window: int | None = found.context_window
    return window
