"""Requests to the model that writes prompts, and the reading of its replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koderz.errors import KoderzError
from koderz.prompts import PLACEHOLDERS, Prompts, trimmed
from koderz.types import MAIN

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.candidate import Candidate
    from koderz.systems.optimizers.datasets.evaluator import Evaluator, Scored
    from koderz.systems.optimizers.datasets.payload import Item

LONGEST_SHOWN = 2000
"""The most characters of a question or an answer in a request."""


class InstructionWriter:
    """Asks the reasoning model for instructions for an evaluator's dataset."""

    def __init__(self, evaluator: Evaluator, prompts: Prompts) -> None:
        self._evaluator, self._prompts = evaluator, prompts

    async def written(self, name: str, count: int, **values: str) -> list[Candidate]:
        """At most `count` instructions as candidates, the best first, by the prompt with this name."""
        found = await self._reply(name, "propose", count=str(count), **values)
        return [
            self._evaluator.initial.with_system(text) for text in found.get("prompts", ())[:count]
        ]

    async def failure_modes(self, name: str, **values: str) -> list[dict[str, str]]:
        """The failure modes of the shown answers, as `name`, `description` and `root_cause`."""
        modes: list[dict[str, str]] = (await self._reply(name, "analyse", **values)).get(
            "failure_modes", []
        )
        return modes

    async def _reply(self, name: str, purpose: str, **values: str) -> Mapping[str, Any]:
        text = self._prompts.render(name, format=self._evaluator.format_line, **values)
        return await self._evaluator.propose([{"role": "user", "content": text}], purpose=purpose)


def shown_instructions(candidates: Iterable[tuple[Candidate, float]]) -> str:
    """Instructions with their scores, in blocks."""
    return "\n\n".join(
        f"Score {mean:.3f}:\n<instruction>\n{candidate.instruction}\n</instruction>"
        for candidate, mean in candidates
    )


def shown_items(items: Sequence[Item], scored: Scored) -> str:
    """Items in blocks, with question, answer, expected answer and the reason for the score."""
    return "\n\n".join(
        f'<item id="{item.id}">\nQuestion:\n{trimmed(item.text, LONGEST_SHOWN)}\n\n'
        f"Answer:\n{trimmed(scored.replies[item.id], LONGEST_SHOWN)}\n\n"
        f"Expected:\n{trimmed(item.gold, LONGEST_SHOWN)}\n\nWhy it is wrong:\n{scored.reasons[item.id]}\n</item>"
        for item in items
    )


def failing(items: Sequence[Item], scored: Scored) -> list[Item]:
    """The items whose score isn't 1, in their order."""
    return [item for item in items if scored.scores.get(item.id, 1.0) < 1.0]


async def shown_failures(evaluator: Evaluator, candidate: Candidate, most: int) -> str:
    """Randomly drawn items of the minibatch on which the scored candidate fails."""
    scored = await evaluator.known(candidate)
    items = failing(evaluator.minibatch, scored)
    return shown_items(evaluator.random.sample(items, min(most, len(items))), scored)


def prompts_of(optimizer: str) -> Mapping[str, Sequence[str]]:
    """The prompts with which this solver may ask the reasoning model, for its attribute `prompts`."""
    return {MAIN: [name for name in PLACEHOLDERS if name.startswith(f"{optimizer}-")]}


def needs_writer(optimizer: str) -> Callable[..., Mapping[str, Any]]:
    """A check for `at_hand`, which raises KoderzError if there is no model to write prompts."""

    def check(options: Mapping[str, Any], *_: object) -> Mapping[str, Any]:
        if options.get("reasoning") is False:
            raise KoderzError(
                f"{optimizer} has its prompts written by a model; name one with --reasoning-model"
            )
        return {}

    return check
