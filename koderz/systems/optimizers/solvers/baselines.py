"""The baselines of optimizers: the initial prompt alone, and a random search without feedback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koderz.prompts import Prompts
from koderz.solvers.definition import solver
from koderz.systems.optimizers.solvers.originals import DIFFERS
from koderz.systems.optimizers.solvers.rewriting import InstructionWriter, prompts_of

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.evaluator import Evaluator


@solver(roles=())
async def none(evaluator: Evaluator) -> None:
    """Searches for nothing."""


@solver(roles=("reasoning",), prompts=prompts_of("random_search"), differs=DIFFERS["random_search"])
async def random_search(
    evaluator: Evaluator,
    prompts: Prompts,
    *,
    min_examples: int = 2,
    max_examples: int = 7,
    max_trials: int = 0,
) -> str:
    """Scores random sets of train examples and paraphrases of the initial prompt in turn; `max_trials` 0: no limit."""
    writer = InstructionWriter(evaluator, prompts)
    ids = evaluator.examples
    await evaluator.score(evaluator.initial)
    trial = 0
    while not max_trials or trial < max_trials:
        trial += 1
        if trial % 2 or not evaluator.has_writer:
            most = min(max_examples, len(ids))
            count = evaluator.random.randint(min(min_examples, most), most)
            await evaluator.score(evaluator.initial.with_demos(evaluator.random.sample(ids, count)))
            continue
        instruction = evaluator.initial.instruction
        for candidate in await writer.written(
            "random_search-paraphrase", 1, instruction=instruction
        ):
            await evaluator.score(candidate)
    return "limit"
