"""The solver `iterative`: attempts with feedback; optionally a specification before and reviews in between."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from koderz.prompts import Prompts, trimmed
from koderz.settings.options import option
from koderz.settings.paths import cache_folder
from koderz.solvers.definition import (
    REPLY_TOKENS,
    AskHandle,
    JudgeHandle,
    RecallHandle,
    no_recall,
    solver,
)
from koderz.types import Expected, Message, Reply, Task, Verdict
from koderz_tracker.files import write_whole
from koderz_tracker.messages import text_of

_LEAST_ROOM = 1000  # characters of the last attempt that are shown whatever the context
_ATTEMPT_TOKENS = 600  # of a usual attempt with its feedback, for estimates
_USUAL_ATTEMPTS = 2.5  # of a task, on average
_REVIEW_TOKENS = 300  # of a usual problem as a reviewer is shown it
_CHARS_A_TOKEN = 3  # on the careful side, so that a conversation that is said to fit does


@dataclass(frozen=True, slots=True)
class IterativeOptions:
    """The options of the solver `iterative`."""

    max_iterations: int = option(
        10, "Maximum attempts of the iterative solver.", "N", bounds=(1, 1000)
    )
    history: int = option(3, "Earlier attempts shown to each new one.", "N", bounds=(0, 1000))
    frontier_spec_model: str | None = option(
        None, "The model that writes a specification of each task first.", "MODEL", role="spec"
    )
    reuse_spec: bool = option(False, "Reuse cached specifications.")
    frontier_checkpoint_model: str | None = option(
        None,
        "The model that reviews failed attempts, every --checkpoint-interval of them.",
        "MODEL",
        role="checkpoint",
    )
    checkpoint_interval: int = option(
        5, "Failed attempts between two reviews.", "N", bounds=(1, 1000)
    )
    spec: bool = option(True, "Skip the specification (ablation).", role="spec")
    checkpoints: bool = option(True, "Skip the reviews (ablation).", role="checkpoint")


class Try(NamedTuple):
    """One attempt, and a reviewer's comment on it."""

    reply: Reply
    verdict: Verdict
    guidance: str = ""


def expected_calls(
    prompt_tokens: float, task_id: str, parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """The calls from a first attempt that passes to all that are allowed, with a specification and reviews."""
    most, every = parameters["max_iterations"], parameters["checkpoint_interval"]
    # attempts that a late prompt repeats, with their feedback
    seen = min(parameters["history"], most - 1)
    usual = min(_USUAL_ATTEMPTS, most)
    attempts = Expected(
        "main",
        (1, most),
        (prompt_tokens, most * (prompt_tokens + seen * _ATTEMPT_TOKENS)),
        (REPLY_TOKENS, most * REPLY_TOKENS),
        usual=(
            usual,
            usual * (prompt_tokens + min(seen, (usual - 1) / 2) * _ATTEMPT_TOKENS),
            usual * REPLY_TOKENS,
        ),
    )
    written = 0 if task_id in (parameters["specs"] or {}) else 1
    reviews = (most - 1) // every
    review_tokens = _REVIEW_TOKENS + every * _ATTEMPT_TOKENS
    return [
        attempts,
        Expected(
            "spec",
            (written, written),
            (written * _REVIEW_TOKENS,) * 2,
            (written * REPLY_TOKENS,) * 2,
        ),
        Expected(
            "checkpoint",
            (0, reviews),
            (0, reviews * review_tokens),
            (0, reviews * REPLY_TOKENS),
            usual=(0, 0, 0),
        ),
    ]


def cached_specs(
    options: Mapping[str, Any], tasks: Sequence[Task], prompts: Prompts
) -> Mapping[str, Any]:
    """The cached specifications of the tasks, if they are to be reused."""
    model = options["frontier_spec_model"]
    if not (options["reuse_spec"] and options["spec"] and model):
        return {}
    cached = {task.id: cached_spec(model, _asking_for_spec(task, prompts)) for task in tasks}
    return {"specs": {task: text for task, text in cached.items() if text}}


@solver(
    options=IterativeOptions,
    roles=("spec", "checkpoint"),
    estimate=expected_calls,
    at_hand=cached_specs,
    prompts={
        "main": ("feedback",),
        "spec": ("spec", "specification", "system", "task"),
        "checkpoint": ("checkpoint", "guidance"),
        "recall": ("lessons",),
    },
)
async def iterative(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    prompts: Prompts,
    models: Mapping[str, str],
    recall: RecallHandle = no_recall,
    *,
    max_iterations: int,
    history: int,
    checkpoint_interval: int,
    context: int = 16384,
    max_tokens: int = 4096,
    temperature: float | None = None,
    cot: bool = True,
    specs: dict[str, str] | None = None,
) -> Verdict:
    """Makes up to `max_iterations` attempts, each seeing the last `history` ones and their feedback.

    `context` is what a conversation and its reply may come to, in tokens, `max_tokens` the reply alone.
    `specs` are specifications at hand, by task; the model in the role `spec` writes one where there is none.
    The one in the role `checkpoint` reviews every `checkpoint_interval` failed attempts. What `recall` says of the last
    failure stands at the end of the next prompt.
    """
    first = task.messages
    if "spec" in models:
        specification = (specs or {}).get(task.id) or await _write_spec(
            task, ask, prompts, models["spec"]
        )
        first = prompts.first_messages(task.values, cot=cot, specification=specification)
    room = (context - min(max_tokens, context // 2)) * _CHARS_A_TOKEN - _size(first)
    tries: list[Try] = []
    lessons = ""
    for iteration in range(1, max_iterations + 1):
        turns = _turns(tries, history, prompts, room - len(lessons))
        reply = await ask(_ended([*first, *turns], lessons))
        verdict = await judge(task, reply)
        if verdict.passed or iteration == max_iterations:
            return verdict
        if temperature == 0 and any(reply.text == before.reply.text for before in tries):
            return replace(
                verdict, note=f"stopped after {iteration}: the reply repeats at temperature 0"
            )
        tries.append(Try(reply, verdict))
        lessons = _lessons_text(await recall(verdict), prompts)
        if "checkpoint" in models and iteration % checkpoint_interval == 0:
            guidance = await _review(task, tries[-checkpoint_interval:], ask, prompts, room)
            tries[-1] = tries[-1]._replace(guidance=guidance)
    raise AssertionError("max_iterations is at least 1")


async def _write_spec(task: Task, ask: AskHandle, prompts: Prompts, model: str) -> str:
    """A specification written by the model `model`, cached for runs that reuse specifications."""
    messages = _asking_for_spec(task, prompts)
    specification = (await ask(messages, model="spec", purpose="spec")).text
    keep_spec(model, messages, specification)
    return specification


def _asking_for_spec(task: Task, prompts: Prompts) -> tuple[Message, ...]:
    return ({"role": "user", "content": prompts.render("spec", **task.values)},)


async def _review(
    task: Task, tries: Sequence[Try], ask: AskHandle, prompts: Prompts, room: int
) -> str:
    """A reviewer's comment on the attempts, which share the `room` in characters equally."""
    share = max(room // len(tries), _LEAST_ROOM)
    shown = "\n\n".join(
        trimmed(
            f"Attempt {number}:\n\n{attempt.reply.text.strip()}\n\nResult: {attempt.verdict.feedback}",
            share,
        )
        for number, attempt in enumerate(tries, 1)
    )
    text = prompts.render("checkpoint", **task.values, attempts=shown)
    return (
        await ask([{"role": "user", "content": text}], model="checkpoint", purpose="checkpoint")
    ).text


def _turns(tries: Sequence[Try], history: int, prompts: Prompts, room: int) -> list[Message]:
    """The latest attempts that fit into `room` characters; the very last one is shortened to fit."""
    if not tries:
        return []
    if not history:
        return (
            [{"role": "user", "content": advice}] if (advice := _advice(tries[-1], prompts)) else []
        )
    turns = _turn(tries[-1], prompts, max(room, _LEAST_ROOM))
    left = room - _size(turns)
    for attempt in reversed(tries[-history:-1]):
        turn = _turn(attempt, prompts)
        left -= _size(turn)
        if left < 0:
            break
        turns = turn + turns
    return turns


def _turn(attempt: Try, prompts: Prompts, room: int = sys.maxsize) -> list[Message]:
    """An attempt and the feedback on it, shortened in the middle if larger than `room` characters."""
    feedback = prompts.render(
        "feedback", feedback=attempt.verdict.feedback, guidance=_advice(attempt, prompts)
    )
    feedback = trimmed(feedback, room // 2)
    return [
        {
            "role": "assistant",
            "content": trimmed(attempt.reply.text, room - len(feedback)) or "(an empty reply)",
        },
        {"role": "user", "content": feedback},
    ]


def _advice(attempt: Try, prompts: Prompts) -> str:
    """A reviewer's comment as a model sees it; empty if there is none."""
    return prompts.render("guidance", guidance=attempt.guidance) if attempt.guidance else ""


def _lessons_text(lessons: Sequence[str], prompts: Prompts) -> str:
    """Lessons as a model sees them; empty if there are none."""
    return (
        prompts.render("lessons", lessons="\n".join(f"- {lesson}" for lesson in lessons))
        if lessons
        else ""
    )


def _ended(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with a text added to the last one."""
    if not text:
        return list(messages)
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{text}"}]


def _size(messages: Sequence[Message]) -> int:
    return sum(len(text_of(message)) for message in messages)


def cached_spec(model: str, messages: tuple[Message, ...]) -> str | None:
    """The cached answer of `model` to these messages, or None."""
    try:
        return _place(model, messages).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def keep_spec(model: str, messages: tuple[Message, ...], text: str) -> None:
    """Caches a specification. Failing to write is ignored, since the journal has it."""
    path = _place(model, messages)
    with contextlib.suppress(OSError, UnicodeEncodeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [text.encode()], durable=False)


def _place(model: str, messages: tuple[Message, ...]) -> Path:
    asked = "\0".join([model, *(f"{m['role']}\0{text_of(m)}" for m in messages)])
    return (
        cache_folder()
        / "specs"
        / f"{hashlib.sha256(asked.encode('utf-8', 'replace')).hexdigest()}.md"
    )
