"""Optimizers in which a model rewrites prompts, with the requests to it and the reading of its replies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koderz.errors import KoderzError
from koderz.prompts import PLACEHOLDERS, Prompts, trimmed
from koderz.solvers.definition import solver
from koderz.systems.optimizers.solvers.originals import DIFFERS
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


@solver(
    roles=("reasoning",),
    at_hand=needs_writer("meta_prompt"),
    prompts=prompts_of("meta_prompt"),
    differs=DIFFERS["meta_prompt"],
)
async def meta_prompt(
    evaluator: Evaluator,
    prompts: Prompts,
    *,
    prompts_per_round: int = 4,
    hall_of_fame: int = 10,
    task_examples: int = 5,
    synthesis_round_interval: int = 3,
    synthesis_prompts_per_round: int = 2,
    max_trials: int = 0,
) -> str:
    """Runs rounds of `prompts_per_round` rewritings; every third merges the best of the `hall_of_fame` into two.

    `task_examples` items that the best prompt fails at are shown. `max_trials` candidates end it; 0: none do.
    """
    writer = InstructionWriter(evaluator, prompts)
    await evaluator.score(evaluator.initial)
    trials, number = 0, 0
    while not max_trials or trials < max_trials:
        number += 1
        fame = evaluator.ranked[:hall_of_fame]
        if number % synthesis_round_interval == 0 and len(fame) > 1:
            found = await writer.written(
                "meta_prompt-synthesis",
                synthesis_prompts_per_round,
                instructions=shown_instructions(fame),
            )
        else:
            found = await writer.written(
                "meta_prompt-round",
                prompts_per_round,
                instructions=shown_instructions(fame[:1]),
                others=shown_instructions(fame[1:3]),
                items=await shown_failures(evaluator, fame[0][0], task_examples),
            )
        for candidate in found:
            trials += 1
            await evaluator.score(candidate)
    return "limit"


Modes = list[dict[str, str]]


@solver(
    roles=("reasoning",),
    at_hand=needs_writer("hierarchical_reflective"),
    prompts=prompts_of("hierarchical_reflective"),
    version=2,
    earlier={1: {"convergence_threshold": 0.01}},
    differs=DIFFERS["hierarchical_reflective"],
)
async def hierarchical_reflective(
    evaluator: Evaluator,
    prompts: Prompts,
    *,
    batch_size: int = 25,
    convergence_threshold: float = 0.0,
    max_retries: int = 2,
    max_iterations: int = 0,
    max_trials: int = 0,
) -> str:
    """Iterates reflection on drawn train items; an iteration without a gain is followed by a new draw.

    `convergence_threshold`: the search ends where an iteration betters the mean by less than this share of it; 0: it
    goes on. `max_retries` candidates at most are tried against each kind of failure. `max_iterations` and
    `max_trials`: of iterations and candidates; 0: without end.
    """
    writer = InstructionWriter(evaluator, prompts)
    size = min(len(evaluator.minibatch), len(evaluator.train))
    drawn = evaluator.random.sample([*evaluator.train], size)
    mean = (await evaluator.score(evaluator.initial)).mean
    best, iterations, trials = evaluator.initial, 0, 0
    while not max_iterations or iterations < max_iterations:
        iterations += 1
        before = mean
        scored = await evaluator.score(best, drawn)
        failures = failing(drawn, scored)
        batches = [
            failures[start : start + batch_size] for start in range(0, len(failures), batch_size)
        ]
        modes = await _modes(writer, best, mean, [shown_items(batch, scored) for batch in batches])
        for mode in modes:
            for _ in range(max_retries):
                if max_trials and trials >= max_trials:
                    return "limit"
                trials += 1
                candidate, reached = await _against(evaluator, writer, mode, best, mean)
                if reached > mean:
                    best, mean = candidate, reached
                    break
        is_small = not failures or (modes and mean - before < convergence_threshold * before)
        if convergence_threshold and is_small:
            return "converged"
        if mean == before:
            drawn = evaluator.random.sample([*evaluator.train], size)
    return "limit"


async def _modes(
    writer: InstructionWriter, best: Candidate, mean: float, batches: list[str]
) -> Modes:
    """The failure modes, found in each batch and then merged."""
    shown = shown_instructions([(best, mean)])
    found = await asyncio.gather(
        *(
            writer.failure_modes(
                "hierarchical_reflective-analysis", instructions=shown, items=items
            )
            for items in batches
        )
    )
    modes = [mode for batch in found for mode in batch]
    if len(found) < 2 or not modes:
        return modes
    return await writer.failure_modes(
        "hierarchical_reflective-synthesis", modes="\n\n".join(map(_shown, modes))
    )


async def _against(
    evaluator: Evaluator,
    writer: InstructionWriter,
    mode: dict[str, str],
    best: Candidate,
    mean: float,
) -> tuple[Candidate, float]:
    """A candidate against one kind of failure, with its mean on the minibatch."""
    shown = shown_instructions([(best, mean)])
    name = "hierarchical_reflective-improvement"
    for candidate in await writer.written(name, 1, instructions=shown, mode=_shown(mode)):
        return candidate, (await evaluator.score(candidate)).mean
    return best, mean


def _shown(mode: dict[str, str]) -> str:
    name = mode["name"].replace('"', "'")
    return f'<mode name="{name}">\n{mode["description"]}\nRoot cause: {mode["root_cause"]}\n</mode>'


_EXAMPLES = 3  # items that a parent fails at


@solver(
    roles=("reasoning",),
    prompts=prompts_of("evolutionary_optimizer"),
    differs=DIFFERS["evolutionary_optimizer"],
)
async def evolutionary_optimizer(
    evaluator: Evaluator,
    prompts: Prompts,
    *,
    population_size: int = 10,
    tournament_size: int = 4,
    elitism_size: int = 2,
    mutation_rate: float = 0.2,
    crossover_rate: float = 0.8,
    num_generations: int = 0,
    max_trials: int = 0,
) -> str:
    """Keeps `elitism_size` prompts in each generation, and adds children of the winners of tournaments.

    `num_generations`, `max_trials`: of how many generations or candidates it consists; 0: without end.
    """
    search = _Evolution(evaluator, prompts, tournament_size, crossover_rate, mutation_rate)
    population = await search.begin(population_size)
    elitism_size = min(elitism_size, population_size - 1)  # or no generation would have a child
    generation = 0
    while not (num_generations and generation >= num_generations):
        generation += 1
        population = search.fittest(population)[:elitism_size]
        while len(population) < population_size:
            if max_trials and search.trials >= max_trials:
                return "limit"
            population += await search.child()
    return "limit"


class _Evolution:
    """A population of candidates with their fitness, the mean on the minibatch."""

    def __init__(
        self,
        evaluator: Evaluator,
        prompts: Prompts,
        tournament: int,
        crossover: float,
        mutation: float,
    ):
        self.trials = 0
        self._evaluator, self._random = evaluator, evaluator.random
        self._writer = InstructionWriter(evaluator, prompts)
        self._tournament, self._crossover, self._mutation = tournament, crossover, mutation
        self._fitness: dict[Candidate, float] = {}
        self._parents: list[Candidate] = []

    async def begin(self, size: int) -> list[Candidate]:
        """Makes the first population: the initial prompt and variants of it."""
        initial = self._evaluator.initial
        population = await self._lives([initial])
        if self._evaluator.has_writer:
            variants = await self._written("evolutionary_optimizer-variants", [initial], size - 1)
        else:
            variants = [self._by_sentences(initial, initial) for _ in range(size - 1)]
        self._parents = population + await self._lives(variants)
        return self._parents

    def fittest(self, population: list[Candidate]) -> list[Candidate]:
        """The population, the fittest first. It supplies the next parents."""
        self._parents = sorted(dict.fromkeys(population), key=lambda each: -self._fitness[each])
        return self._parents

    async def child(self) -> list[Candidate]:
        """A scored child of two parents; empty if it isn't accepted."""
        one, other = self._selected(), self._selected()
        children = [one]
        if self._random.random() < self._crossover:
            children = await self._crossed(one, other)
        if self._random.random() < self._mutation or children == [one]:
            children = [found for each in children for found in await self._mutated(each)]
        return await self._lives(children)

    def _selected(self) -> Candidate:
        """The winner of a tournament."""
        some = self._random.sample(self._parents, min(self._tournament, len(self._parents)))
        return max(some, key=lambda each: self._fitness[each])

    async def _crossed(self, one: Candidate, other: Candidate) -> list[Candidate]:
        if self._evaluator.has_writer:
            return await self._written("evolutionary_optimizer-crossover", [one, other], 1)
        return [self._by_sentences(one, other)]

    async def _mutated(self, candidate: Candidate) -> list[Candidate]:
        if self._evaluator.has_writer:
            return await self._written("evolutionary_optimizer-mutation", [candidate], 1)
        return [self._by_sentences(candidate, candidate)]

    async def _written(self, name: str, parents: list[Candidate], count: int) -> list[Candidate]:
        shown = [(parent, self._fitness.get(parent, 0.0)) for parent in parents]
        known = next(
            (parent for parent in parents if parent in self._fitness), self._evaluator.initial
        )
        items = await shown_failures(self._evaluator, known, _EXAMPLES)
        return await self._writer.written(
            name, count, instructions=shown_instructions(shown), items=items
        )

    def _by_sentences(self, one: Candidate, other: Candidate) -> Candidate:
        """A child with sentences of both parents; if it equals a parent, in another order."""
        sentences = [re.split(r"(?<=[.!?])\s+", each.instruction) for each in (one, other)]
        mixed = list(
            dict.fromkeys(
                each for parent in sentences for each in parent if self._random.random() < 0.7
            )
        )
        self._random.shuffle(mixed)
        return one.with_system(" ".join(mixed) or one.instruction)

    async def _lives(self, candidates: list[Candidate]) -> list[Candidate]:
        """The accepted ones among the candidates, scored."""
        living = []
        for candidate in candidates:
            self.trials += 1
            scored = await self._evaluator.score(candidate)
            if not scored.refused:
                self._fitness[candidate] = scored.mean
                living.append(candidate)
        return living
