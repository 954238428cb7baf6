"""The differences between koderz' optimizers and the originals of their names."""

from __future__ import annotations

from collections.abc import Mapping

DIFFERS: Mapping[str, str] = {
    "few_shot": "Differs from opik-optimizer 3.2's FewShotBayesianOptimizer in three points. Examples are messages of "
    "user and assistant, where the original has a model write a template for them. Items are chosen as they are, from "
    "at most 40 of train, and not by the values of their columns. The prompt without examples is tried first.",
    "meta_prompt": "Differs from opik-optimizer 3.2's MetaPromptOptimizer in four points. Requests are worded "
    "differently. The model is shown items that fail, but neither the metric's description nor a history of rounds. No "
    "patterns are taken from the hall of fame. Only the system message is rewritten.",
    "evolutionary_optimizer": "Differs from opik-optimizer 3.2's EvolutionaryOptimizer in five points. Requests are "
    "worded differently. The score is the only aim, and the prompt's length isn't another. A mutation is one request "
    "that shows failing items, where the original has several kinds. No output style is inferred, the mutation rate "
    "doesn't adapt, and there are neither restarts nor an early stop. Only the system message is changed.",
    "hierarchical_reflective": "Differs from opik-optimizer 3.2's HierarchicalReflectiveOptimizer in four points. "
    "Requests are worded differently. Only failing items are analysed. Each kind of failure gets 2 attempts, not 3. An "
    "iteration without a gain is followed by others with new train items until the budget is spent, where the original "
    "ends below a gain of 1 % (convergence_threshold 0.01 does the same).",
    "gepa": "Runs the package gepa with its own reflection prompt, on all of validation. Differs from it in four "
    "points. The budget is never exceeded. A pair of candidate and item that is known isn't asked again, and "
    "counts once. A minibatch without failures is reflected on, too (skip_perfect_score true skips it, as the "
    "original does). The format line stays at the end of each instruction.",
    "random_search": "Is koderz' own control, and has no original.",
}
"""A text on each optimizer, used in help, documentation and the record of a run."""
