"""The optimizer `gepa` with its own package: reflective mutation of prompts on a Pareto front (Agrawal et al. 2025)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast

from koderz.errors import KoderzError
from koderz.prompts import Prompts, trimmed
from koderz.settings.installation import extra_command
from koderz.solvers.definition import solver
from koderz.systems.optimizers.solvers.originals import DIFFERS
from koderz.systems.optimizers.solvers.rewriting import (
    LONGEST_SHOWN,
    InstructionWriter,
    needs_writer,
    prompts_of,
    shown_instructions,
    shown_items,
)

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.evaluator import Evaluator, Scored
    from koderz.systems.optimizers.datasets.payload import Item

T = TypeVar("T")

_PART = "system"


def _at_hand(*about: Any) -> Mapping[str, Any]:
    if find_spec("gepa") is None:
        raise KoderzError(
            f"the optimizer gepa takes the package gepa; run: {extra_command('optimizers')}"
        )
    return needs_writer("gepa")(*about)


@solver(
    roles=("reasoning",),
    at_hand=_at_hand,
    prompts=prompts_of("gepa"),
    choices={
        "candidate_selection": ("pareto", "current_best", "epsilon_greedy"),
        "reflection_prompt": ("gepa", "koderz"),
        "validation": ("all", "half"),
    },
    version=2,
    earlier={1: {"reflection_prompt": "koderz", "validation": "half"}},
    differs=DIFFERS["gepa"],
)
async def gepa(
    evaluator: Evaluator,
    prompts: Prompts,
    *,
    reflection_minibatch_size: int = 3,
    candidate_selection: str = "pareto",
    skip_perfect_score: bool = False,
    reflection_prompt: str = "gepa",
    validation: str = "all",
) -> None:
    """Runs gepa's search in a thread of its own; the evaluator scores it and ends it.

    `reflection_prompt`: the package's own, or koderz'. `validation`: candidates are compared on `all` of it, or `half`.
    """
    if validation == "all":
        evaluator.compare_on_all()
    await evaluator.score(evaluator.initial)
    bridge = _Bridge()
    own = InstructionWriter(evaluator, prompts) if reflection_prompt == "koderz" else None
    adapter: Any = _Adapter(evaluator, own, bridge)
    asking = (
        {"custom_candidate_proposer": adapter.propose}
        if own
        else {"reflection_lm": adapter.reflect}
    )
    seed = evaluator.random.getrandbits(31)

    def search() -> None:
        from gepa.api import optimize

        optimize(
            seed_candidate={_PART: evaluator.initial.instruction},
            trainset=[*evaluator.train],
            valset=[*evaluator.minibatch],
            adapter=adapter,
            reflection_minibatch_size=min(reflection_minibatch_size, len(evaluator.train)),
            candidate_selection_strategy=cast("Any", candidate_selection),
            skip_perfect_score=skip_perfect_score,
            max_metric_calls=10**9,  # the evaluator has the budget
            logger=_Silence(),
            seed=seed,
            **cast("Any", asking),
        )

    await bridge.run(search)


class _Over(BaseException):
    """Ends the thread. It is no Exception, since gepa continues after any Exception."""


class _Bridge:
    """Runs coroutines on the loop for a thread that waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._error: BaseException | None = None
        self._call: Future[Any] | None = None  # the latest
        self._is_closed = False

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An error ends the thread, and is raised by `run`."""
        if self._is_closed:
            work.close()
            raise _Over
        call: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._call = call
        try:
            return call.result()
        except BaseException as error:
            self._error = error
            raise _Over from error

    async def run(self, work: Callable[[], object]) -> None:
        """Runs the work in a thread, to its end or to the first error of a coroutine."""

        def ending() -> None:
            with suppress(_Over):  # `run` raises why
                work()

        try:
            await asyncio.to_thread(ending)
        finally:
            self._is_closed = True
            if self._call:
                self._call.cancel()
        if self._error:
            raise self._error


class _Adapter:
    """The adapter through which gepa uses the evaluator from its thread."""

    propose_new_texts = None

    def __init__(
        self, evaluator: Evaluator, writer: InstructionWriter | None, bridge: _Bridge
    ) -> None:
        """`writer` asks with koderz' own prompt; with None the package asks with its own."""
        self._evaluator, self._writer, self._bridge = evaluator, writer, bridge

    def evaluate(
        self, batch: Sequence[Item], candidate: Mapping[str, str], capture_traces: bool = False
    ) -> Any:
        """The candidate's scores on a batch; 0 if a reply can't be judged."""
        from gepa.core.adapter import EvaluationBatch

        prompt = self._evaluator.initial.with_system(candidate[_PART])
        scored = self._bridge(self._evaluator.score(prompt, batch))
        replies = [scored.replies.get(item.id, "") for item in batch]
        scores = [scored.scores.get(item.id, 0.0) for item in batch]
        return EvaluationBatch(
            replies, scores, [(item, scored) for item in batch] if capture_traces else None
        )

    def make_reflective_dataset(
        self,
        candidate: Mapping[str, str],  # noqa: ARG002 gepa's protocol
        eval_batch: Any,
        components_to_update: Sequence[str],  # noqa: ARG002 there is but one
    ) -> dict[str, list[dict[str, str]]]:
        """The items of a batch in the form for a prompt writer."""
        trajectories: list[tuple[Item, Scored]] = eval_batch.trajectories
        seen = [(item, scored) for item, scored in trajectories if item.id in scored.reasons]
        if self._writer:
            return {_PART: [{"item": shown_items([item], scored)} for item, scored in seen]}
        return {_PART: [self._record(item, scored) for item, scored in seen]}

    def _record(self, item: Item, scored: Scored) -> dict[str, str]:
        """An item with the names of the package's own adapter."""
        feedback = f"This is wrong: {scored.reasons[item.id]}\nExpected:\n{trimmed(item.gold, LONGEST_SHOWN)}"
        return {
            "Inputs": trimmed(self._evaluator.asked(item), LONGEST_SHOWN),
            "Generated Outputs": trimmed(scored.replies[item.id], LONGEST_SHOWN),
            "Feedback": "This is right." if scored.scores[item.id] == 1 else feedback,
        }

    def reflect(self, prompt: str) -> str:
        """The prompt writer's reply to the package's own request."""
        return self._bridge(self._evaluator.write([{"role": "user", "content": prompt}]))

    def propose(
        self,
        candidate: Mapping[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: Sequence[str],  # noqa: ARG002 there is but one
    ) -> dict[str, str]:
        """A new instruction by koderz' own prompt; the old one if no reply can be read."""
        assert self._writer
        prompt = self._evaluator.initial.with_system(candidate[_PART])
        items = "\n\n".join(each["item"] for each in reflective_dataset[_PART])
        mean = self._bridge(self._evaluator.known(prompt)).mean
        shown = shown_instructions([(prompt, mean)])
        found = self._bridge(
            self._writer.written("gepa-reflection", 1, instructions=shown, items=items)
        )
        return {_PART: found[0].instruction if found else candidate[_PART]}


class _Silence:
    """A logger that discards everything."""

    def log(self, message: str) -> None: ...
