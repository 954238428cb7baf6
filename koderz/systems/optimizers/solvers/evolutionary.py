"""The optimizer `evolutionary_optimizer`: prompts are crossed and mutated, and the better ones survive."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koderz.prompts import Prompts
from koderz.solvers.definition import solver
from koderz.systems.optimizers.solvers.originals import DIFFERS
from koderz.systems.optimizers.solvers.writing import InstructionWriter, prompts_of, shown_failures, shown_instructions

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.candidate import Candidate
    from koderz.systems.optimizers.datasets.evaluator import Evaluator

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

    def __init__(self, evaluator: Evaluator, prompts: Prompts, tournament: int, crossover: float, mutation: float):
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
        known = next((parent for parent in parents if parent in self._fitness), self._evaluator.initial)
        items = await shown_failures(self._evaluator, known, _EXAMPLES)
        return await self._writer.written(name, count, instructions=shown_instructions(shown), items=items)

    def _by_sentences(self, one: Candidate, other: Candidate) -> Candidate:
        """A child with sentences of both parents; if it equals a parent, in another order."""
        sentences = [re.split(r"(?<=[.!?])\s+", each.instruction) for each in (one, other)]
        mixed = list(dict.fromkeys(each for parent in sentences for each in parent if self._random.random() < 0.7))
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
