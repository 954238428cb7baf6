"""The optimizer `hierarchical_reflective`: analyses failures in batches, and writes a prompt against each kind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from koderz.prompts import Prompts
from koderz.solvers.definition import solver
from koderz.systems.optimizers.solvers.originals import DIFFERS
from koderz.systems.optimizers.solvers.writing import (
    InstructionWriter,
    failing,
    needs_writer,
    prompts_of,
    shown_instructions,
    shown_items,
)

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.candidate import Candidate
    from koderz.systems.optimizers.datasets.evaluator import Evaluator

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
        batches = [failures[start : start + batch_size] for start in range(0, len(failures), batch_size)]
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


async def _modes(writer: InstructionWriter, best: Candidate, mean: float, batches: list[str]) -> Modes:
    """The failure modes, found in each batch and then merged."""
    shown = shown_instructions([(best, mean)])
    found = await asyncio.gather(
        *(
            writer.failure_modes("hierarchical_reflective-analysis", instructions=shown, items=items)
            for items in batches
        )
    )
    modes = [mode for batch in found for mode in batch]
    if len(found) < 2 or not modes:
        return modes
    return await writer.failure_modes("hierarchical_reflective-synthesis", modes="\n\n".join(map(_shown, modes)))


async def _against(
    evaluator: Evaluator, writer: InstructionWriter, mode: dict[str, str], best: Candidate, mean: float
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
