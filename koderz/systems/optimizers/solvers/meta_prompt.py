"""The optimizer `meta_prompt`: a model rewrites the best prompt, given its failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koderz.prompts import Prompts
from koderz.solvers.definition import solver
from koderz.systems.optimizers.solvers.originals import DIFFERS
from koderz.systems.optimizers.solvers.writing import (
    InstructionWriter,
    needs_writer,
    prompts_of,
    shown_failures,
    shown_instructions,
)

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.evaluator import Evaluator


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
                "meta_prompt-synthesis", synthesis_prompts_per_round, instructions=shown_instructions(fame)
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
