"""Attempt, feedback, next attempt; with a specification before and reviews in between, if asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from koderz.prompts import Prompts
from koderz.replay import AskHandle, JudgeHandle
from koderz.types import Message, Reply, Task, Verdict

_CHARS_A_TOKEN = 3  # on the careful side, so that a conversation that is said to fit does


class Try(NamedTuple):
    """One attempt, and what a reviewer said after it."""

    reply: Reply
    verdict: Verdict
    guidance: str = ""


async def iterative(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    prompts: Prompts,
    *,
    max_iterations: int = 10,
    history: int = 3,
    context: int = 16384,
    temperature: float | None = None,
    cot: bool = True,
    specs: dict[str, str] | None = None,
    spec_model: str | None = None,
    checkpoint_model: str | None = None,
    checkpoint_interval: int = 5,
) -> Verdict:
    """Up to `max_iterations` attempts, each with the last `history` ones and their feedback in view.

    `context` is what a conversation may come to, in tokens. `specs` are specifications at hand, by task;
    `spec_model` writes one where there is none. `checkpoint_model` reviews every `checkpoint_interval`
    failed attempts.
    """
    first = task.messages
    if spec_model:
        specification = (specs or {}).get(task.id) or await _write_spec(task, ask, prompts, spec_model)
        first = prompts.first_messages(task.prompt, task.entry_point, cot=cot, specification=specification)
    tries: list[Try] = []
    for iteration in range(1, max_iterations + 1):
        reply = await ask(_conversation(first, tries[-history:] if history else [], prompts, context))
        verdict = await judge(task, reply)
        if verdict.passed or iteration == max_iterations:
            return verdict
        if temperature == 0 and any(reply.text == before.reply.text for before in tries):
            return replace(verdict, note=f"stopped after {iteration}: the reply repeats at temperature 0")
        tries.append(Try(reply, verdict))
        if checkpoint_model and iteration % checkpoint_interval == 0:
            guidance = await _review(task, tries[-checkpoint_interval:], ask, prompts, checkpoint_model)
            tries[-1] = tries[-1]._replace(guidance=guidance)
    raise AssertionError("max_iterations is at least 1")


async def _write_spec(task: Task, ask: AskHandle, prompts: Prompts, model: str) -> str:
    text = prompts.render("spec", prompt=task.prompt.rstrip(), entry_point=task.entry_point)
    return (await ask([{"role": "user", "content": text}], model=model, purpose="spec")).text


async def _review(task: Task, tries: Sequence[Try], ask: AskHandle, prompts: Prompts, model: str) -> str:
    shown = "\n\n".join(
        f"Attempt {number}:\n\n{attempt.reply.text.strip()}\n\nResult: {attempt.verdict.feedback}"
        for number, attempt in enumerate(tries, 1)
    )
    text = prompts.render("checkpoint", prompt=task.prompt.rstrip(), entry_point=task.entry_point, attempts=shown)
    return (await ask([{"role": "user", "content": text}], model=model, purpose="checkpoint")).text


def _conversation(first: Sequence[Message], tries: Sequence[Try], prompts: Prompts, context: int) -> list[Message]:
    """The task and as many of the last attempts as fit; the very last one always."""
    room = context * _CHARS_A_TOKEN - sum(len(message["content"]) for message in first)
    turns: list[Message] = []
    for attempt in reversed(tries):
        turn = _turn(attempt, prompts)
        size = sum(len(message["content"]) for message in turn)
        if turns and size > room:
            break
        room -= size
        turns = turn + turns
    return [*first, *turns]


def _turn(attempt: Try, prompts: Prompts) -> list[Message]:
    guidance = prompts.render("guidance", guidance=attempt.guidance) if attempt.guidance else ""
    told = prompts.render("feedback", feedback=attempt.verdict.feedback, guidance=guidance)
    return [
        {"role": "assistant", "content": attempt.reply.text or "(an empty reply)"},
        {"role": "user", "content": told},
    ]
