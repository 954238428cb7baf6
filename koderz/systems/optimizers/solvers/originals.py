"""The differences between koderz' optimizers and the originals of their names."""

from __future__ import annotations

from collections.abc import Mapping

DIFFERS: Mapping[str, str] = {
    "few_shot": "Differs from opik-optimizer 3.2's FewShotBayesianOptimizer in: examples are messages of user and "
    "assistant, where the original has a model write a template for them; items are chosen as they are, not by the "
    "values of their columns, from at most 40 of train; the prompt without examples is tried first.",
    "meta_prompt": "Differs from opik-optimizer 3.2's MetaPromptOptimizer in: the requests' wording; the model is "
    "shown items that fail, and neither the metric's description nor a history of rounds; no patterns are taken from "
    "the hall of fame; only the system message is rewritten.",
    "evolutionary_optimizer": "Differs from opik-optimizer 3.2's EvolutionaryOptimizer in: the requests' wording; the "
    "score is the only aim, not the prompt's length as well; a mutation is one request that shows failing items, in "
    "place of several kinds; no output style is inferred, the mutation rate doesn't adapt, and there are neither "
    "restarts nor an early stop; only the system message is changed.",
    "hierarchical_reflective": "Differs from opik-optimizer 3.2's HierarchicalReflectiveOptimizer in: the requests' "
    "wording; failing items alone are analysed; 2 attempts at each kind of failure, not 3; where an iteration gains "
    "nothing it goes on with other train items until the budget is spent, where the original ends below a gain of 1 % "
    "(convergence_threshold 0.01 brings that back).",
    "gepa": "Runs the package gepa with its own reflection prompt, on all of validation. Differs from it in: the "
    "budget is never passed; what is known of a candidate and an item isn't asked again, and counts once; minibatches "
    "that are all right are reflected on, too (skip_perfect_score true brings the original's way back); "
    "the format line stays behind each instruction.",
    "random_search": "Is koderz' own control, and has no original.",
}
"""A line on each optimizer, used in help, documentation and the record of a run."""
