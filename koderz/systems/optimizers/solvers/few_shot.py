"""The optimizer `few_shot`: examples chosen by Bayesian optimization, optuna's tree-structured Parzen estimator.

Bergstra et al. 2011, "Algorithms for hyper-parameter optimization".
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from koderz.errors import Fault
from koderz.solvers.definition import solver
from koderz.systems.optimizers.solvers.originals import DIFFERS

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.candidate import Candidate
    from koderz.systems.optimizers.datasets.evaluator import Evaluator

_POOL = 40  # train items, at most, that a slot chooses from
_REPORT = 10  # items after which a trial may be given up


@solver(roles=(), differs=DIFFERS["few_shot"])
async def few_shot(
    evaluator: Evaluator, *, min_examples: int = 2, max_examples: int = 7, max_trials: int = 0
) -> str:
    """Tries sets of `min_examples` to `max_examples` train items, or none; `max_trials` 0: without limit."""
    from optuna.trial import TrialState

    if not evaluator.examples:
        raise Fault(
            "few_shot has nothing to show: no train item of this dataset has a right reply",
            cause="data",
        )
    study = _study(evaluator.random.getrandbits(31))
    pool = evaluator.random.sample(evaluator.examples, min(_POOL, len(evaluator.examples)))
    most = min(max_examples, len(pool))
    study.enqueue_trial({"n": 0, **{f"example {slot}": 0 for slot in range(most)}})
    tried: dict[str, tuple[float, Any]] = {}
    while not max_trials or len(study.trials) < max_trials:
        trial = study.ask()
        count = trial.suggest_categorical("n", [0, *range(min(min_examples, most), most + 1)])
        slots = [
            trial.suggest_categorical(f"example {slot}", [*range(len(pool))])
            for slot in range(most)
        ]
        candidate = evaluator.initial.with_demos(
            [pool[slot] for slot in dict.fromkeys(slots[:count])]
        )
        if candidate.digest in tried:
            await evaluator.score(candidate, evaluator.minibatch[:_REPORT])  # it brings nothing new
        else:
            tried[candidate.digest] = await _trial(evaluator, trial, candidate)
        mean, is_pruned = tried[candidate.digest]
        study.tell(trial, None if is_pruned else mean, TrialState.PRUNED if is_pruned else None)
    return "limit"


async def _trial(evaluator: Evaluator, trial: Any, candidate: Candidate) -> tuple[float, bool]:
    """The candidate's mean on the minibatch, or on its first items if it is pruned."""
    mean = 0.0
    for step in range(_REPORT, len(evaluator.minibatch) + _REPORT, _REPORT):
        mean = (await evaluator.score(candidate, evaluator.minibatch[:step])).mean
        trial.report(mean, step)
        if step < len(evaluator.minibatch) and trial.should_prune():
            return mean, True
    return mean, False


def _study(seed: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that `multivariate` is experimental
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=8)
    return optuna.create_study(
        direction="maximize",
        sampler=sampler,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
    )
