"""A solver that asks for hints before it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from koderz.settings.options import option
from koderz.solvers import Solver, solver
from koderz.solvers.definition import AskHandle, JudgeHandle
from koderz.types import Task, Verdict


@dataclass(frozen=True, slots=True)
class ToyOptions:
    """The options of the solver `toy`."""

    toy_hints: int = option(1, "Hints of each style.", "N", bounds=(0, 9))
    toy_styles: tuple[str, ...] = option(("plain",), "Styles of the hints.", "STYLE", listed=True)
    toy_helper: str | None = option(None, "The model that gives hints.", "MODEL", role="helper")


@solver(options=ToyOptions, roles=("helper",))
async def toy(
    task: Task, ask: AskHandle, judge: JudgeHandle, *, toy_hints: int, toy_styles: tuple[str, ...]
) -> Verdict:
    """Asks for so many hints of each style, and answers."""
    for style in toy_styles:
        for number in range(toy_hints):
            wanted = f"Give {style} hint {number + 1}: {task.prompt}"
            await ask([{"role": "user", "content": wanted}], model="helper", purpose="hint")
    return await judge(task, await ask(task.messages))


@dataclass(frozen=True, slots=True)
class AloudOptions:
    """The options of the solver `toy-aloud`."""

    toy_loudness: int = option(1, "Exclamation marks after each word.", "N", bounds=(0, 9))


@solver(options=AloudOptions, parts=("letters",))
async def aloud(task: Task, ask: AskHandle, judge: JudgeHandle, *, toy_loudness: int) -> Verdict:
    """Asks once."""
    verdict = await judge(task, await ask(task.messages))
    return replace(verdict, metrics={**verdict.metrics, "loudness": float(toy_loudness)})


def times(count: str) -> Solver[..., Verdict]:
    """The solver `toy-times-COUNT`, which asks so often."""

    @solver()
    async def solve(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
        replies = [await ask(task.messages) for _ in range(int(count))]
        return await judge(task, replies[-1])

    return solve
