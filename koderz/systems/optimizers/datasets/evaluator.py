"""The evaluator: scores candidates on items within a budget of metric calls, and chooses a search's winner."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from koderz.errors import PromptTooLong
from koderz.suites.metrics import UNREAD, Graded, Unread
from koderz.suites.tables import fill
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.candidate import Candidate, Template, read_object
from koderz.systems.optimizers.datasets.options import (
    STALE,
    SearchOptions,
    kept_back,
    minibatch_size,
)
from koderz.types import JUDGE, LENGTH_REASONING, Message, Reply, Verdict

if TYPE_CHECKING:
    from koderz.settings.schema import Settings
    from koderz.suites.suite import ExperimentHandles
    from koderz.systems.optimizers.datasets.payload import Dataset, Item


WORDS = ("selected", "kept", "baseline")
"""The ends of an experiment: another prompt, the initial one, or the baseline of `none`."""

# candidates, at most, that are scored on all of validation besides the initial prompt
_FINALISTS = 3
_REASONING_TOKENS = 9000
_SPARE = 1.5  # of what the last passes are expected to cost, US dollars


class Evaluator:
    """Scores candidates on train and validation items: the handle `evaluator`.

    Each pair of candidate and item is asked for once, and counts as a metric call. Nothing depends on the order in
    which replies arrive, nor on the run's id: the same seed and replies make the same search.
    """

    def __init__(
        self,
        dataset: Dataset,
        handles: ExperimentHandles,
        options: SearchOptions,
        *,
        seed: int,
        max_cost: float | None = None,
    ) -> None:
        """`max_cost`: the cap of the experiment in US dollars."""
        self._dataset, self._handles, self._options = dataset, handles, options
        self._template = Template(dataset)
        self.initial = self._template.initial
        self.train: Sequence[Item] = dataset.train
        self.validation: Sequence[Item] = dataset.validation
        # with a reply to show
        self.examples = [item.id for item in self.train if dataset.demonstrate(item)[1]]
        self._solver = handles.identity.arm.solver.name
        self._seed, self._max_cost = seed, max_cost
        self.random = random.Random(f"{seed} {dataset.name} {self._solver}")  # noqa: S311 repeatable on purpose
        drawn = random.Random(f"{seed} {dataset.name}")  # noqa: S311 repeatable on purpose
        self.minibatch: Sequence[Item] = drawn.sample(
            self.validation, minibatch_size(len(self.validation))
        )
        self.has_writer = options.reasoning  # whether there is a model that writes prompts
        self.format_line = dataset.format_line  # which stands behind every instruction
        self._split = {item.id: "train" for item in self.train} | {
            item.id: "validation" for item in self.validation
        }
        self._kept_back = kept_back(options.budget_calls, len(self.validation))
        self._at_once = asyncio.Semaphore(options.item_concurrency)
        self._counts = Counts()
        # by digest, in the order of their first scoring
        self._candidates: dict[str, Candidate] = {}
        # whether a candidate is on record, by its digest
        self._noted: dict[str, asyncio.Task[None]] = {}
        # by candidate's digest and item's id
        self._results: dict[tuple[str, str], asyncio.Task[Result]] = {}
        self._requests = 0
        self._stale = 0

    # What a solver may use

    @property
    def left(self) -> int:
        """The metric calls that the search may still make."""
        first = sum((self.initial.digest, item.id) not in self._results for item in self.minibatch)
        return max(
            0, self._options.budget_calls - self._counts.metric_calls - self._kept_back - first
        )

    @property
    def best(self) -> tuple[Candidate, float]:
        """The best candidate by its minibatch mean, and that mean; the initial prompt and 0 before any is scored."""
        ranked = self.ranked
        return ranked[0] if ranked else (self.initial, 0.0)

    @property
    def ranked(self) -> list[tuple[Candidate, float]]:
        """The candidates scored on the whole minibatch with their means, the best first."""
        found = []
        for number, (digest, candidate) in enumerate(self._candidates.items()):
            tasks = [self._results.get((digest, item.id)) for item in self.minibatch]
            if any(
                task is None or not task.done() or task.cancelled() or task.exception()
                for task in tasks
            ):
                continue
            scores = [graded.score for task in tasks if task and (graded := task.result().graded)]
            mean = fmean(scores) if scores else 0.0
            found.append((-mean, self._template.size(candidate), number, candidate))
        return [
            (candidate, -mean) for mean, _, _, candidate in sorted(found, key=lambda each: each[:3])
        ]

    async def score(self, candidate: Candidate, items: Sequence[Item] | None = None) -> Scored:
        """Scores the candidate on the minibatch, or on these train or validation items.

        What is known is found again free. Where the budget has too little left, the first items are asked for that it
        has room for. Raises BudgetSpent where it has none, where no money is left, or where 20 proposals in a row
        brought nothing new; a candidate that isn't accepted is not scored.
        """
        items = self.minibatch if items is None else items
        if foreign := [item.id for item in items if item.id not in self._split]:
            raise ValueError(f"{foreign[0]} is neither a train nor a validation item")
        refused = (
            self._template.refusal(candidate) if candidate.digest not in self._candidates else ""
        )
        new = list(
            {
                item.id: item for item in items if (candidate.digest, item.id) not in self._results
            }.values()
        )
        if refused or not new:
            self._counts.refused += bool(refused)
            self._count_stale()
        if refused:
            return Scored(0.0, {}, refused=refused)
        if new:
            self._stale = 0
            kept = {item.id for item in self.minibatch if candidate == self.initial}
            room = self.left + sum(item.id in kept for item in new)
            if not room:
                raise BudgetSpent("budget")
            self._require_money(min(room, len(new)))
            await self._graded(candidate, new[:room])
        return await self.known(candidate, items)

    async def propose(
        self, messages: Sequence[Message], *, purpose: str = "propose"
    ) -> dict[str, Any]:
        """The reasoning model's reply: a JSON object with `prompts` (texts) or `failure_modes`.

        These are objects with `name`, `description` and `root_cause`. A reply with neither is asked for once more; {}
        where the second has neither, too. Raises BudgetSpent where no money is left, and where 20 proposals in a row
        brought nothing new.
        """
        request = self._next_request()
        for attempt in range(2):
            reply = await self._requested(messages, purpose, request, attempt)
            if found := read_object(reply.text):
                if "prompts" not in found and purpose == "propose":
                    self._count_stale()
                return found
        self._counts.unreadable += 1
        self._count_stale()
        return {}

    async def write(self, messages: Sequence[Message]) -> str:
        """The reasoning model's reply as text, for searches that parse it. Raises BudgetSpent as `propose` does."""
        reply = await self._requested(messages, "propose", self._next_request(), 0)
        return reply.text.encode("utf-8", "replace").decode()

    def asked(self, item: Item) -> str:
        """The initial prompt's question about an item, with its columns filled in."""
        return fill(str(self.initial.messages[-1]["content"]), item.columns)

    def compare_on_all(self) -> None:
        """Compares candidates on all of validation, without reserving calls for a last pass over it.

        It has to be called before anything is scored.
        """
        self.minibatch, self._kept_back = self.validation, 0

    async def known(self, candidate: Candidate, items: Sequence[Item] | None = None) -> Scored:
        """The known scores of the candidate on the minibatch, or on these items; makes no call."""
        keys = {
            item.id: (candidate.digest, item.id)
            for item in (self.minibatch if items is None else items)
        }
        asked = {item: self._results[key] for item, key in keys.items() if key in self._results}
        results = dict(
            zip(asked, await asyncio.gather(*map(asyncio.shield, asked.values())), strict=True)
        )
        scores = {item: each.graded.score for item, each in results.items() if each.graded}
        replies = {item: each.reply for item, each in results.items()}
        reasons = {item: each.graded.reason for item, each in results.items() if each.graded}
        return Scored(fmean(scores.values()) if scores else 0.0, scores, replies, reasons)

    # How it ends

    async def conclude(self, solving: Awaitable[str | None]) -> Verdict:
        """The verdict of the solver: its search, the last pass over validation, the test of the winner.

        What a solver returns is why it ended by itself: `converged` unless it says `limit`.
        """
        is_baseline = self._solver == BASELINE
        try:
            try:
                reason = await solving or "converged"
            except BudgetSpent as spent:
                reason = spent.reason
            counts = self._counts
            await self._once("search", {
                "finish_reason": reason,
                "metric_calls": counts.metric_calls,
                "reasoning_calls": counts.reasoning_calls,
                "refused": counts.refused,
                "unreadable": counts.unreadable,
            })  # fmt: skip
            validation = {} if is_baseline else await self._last_pass()
            winner = self._winner(validation)
            test = None
            if is_baseline or winner != self.initial:
                await self._graded(winner, self._dataset.test)
                test = await self.known(winner, self._dataset.test)
            return await self._verdict(winner, validation, test, "" if is_baseline else reason)
        finally:
            await self._close()

    async def _last_pass(self) -> dict[str, float]:
        """The means over all of validation, by digest: of the initial prompt, and of the best within the budget."""
        finalists = [candidate for candidate, _ in self.ranked if candidate != self.initial]
        means: dict[str, float] = {}
        for candidate in (self.initial, *finalists[:_FINALISTS]):
            new = [
                item for item in self.validation if (candidate.digest, item.id) not in self._results
            ]
            room = self._options.budget_calls - self._counts.metric_calls
            if len(new) > room:
                continue
            await self._graded(candidate, new)
            means[candidate.digest] = (await self.known(candidate, self.validation)).mean
        return means

    def _winner(self, means: Mapping[str, float]) -> Candidate:
        """The best candidate by its mean; the initial prompt unless another is better."""
        start = means.get(self.initial.digest, -math.inf)
        better = [digest for digest, mean in means.items() if mean > start]
        order = [*self._candidates]
        ranked = sorted(
            better,
            key=lambda digest: (
                -means[digest],
                self._template.size(self._candidates[digest]),
                order.index(digest),
            ),
        )
        return self._candidates[ranked[0]] if ranked else self.initial

    async def _verdict(
        self, winner: Candidate, validation: Mapping[str, float], test: Scored | None, reason: str
    ) -> Verdict:
        counts, is_kept = self._counts, winner == self.initial
        word = "baseline"
        if reason:
            word = "kept" if is_kept else "selected"
        unread = await self._unread(winner) if test else None
        await self._once("result", {
            "winner": winner.digest,
            "initial": self.initial.digest,
            "validation": validation,
            "validation_n": len(self.validation),
            "minibatch_n": len(self.minibatch),
            "budget_calls": self._options.budget_calls,
            "metric_calls": counts.metric_calls,
            "reasoning_calls": counts.reasoning_calls,
            "finish_reason": reason,
            "kept_initial": is_kept,
            "faults": counts.faults,
            "refused": counts.refused,
            "unreadable": counts.unreadable,
            "cut": counts.cut,
            "unread": unread,
            "figures": await self._figures(winner, self._dataset.test) if test else {},
        })  # fmt: skip
        metrics = {
            "metric_calls": float(counts.metric_calls),
            "reasoning_calls": float(counts.reasoning_calls),
        }
        if winner.digest in validation:
            metrics["validation"] = validation[winner.digest]
        if unread is not None:
            metrics["unread"] = unread
        notes = [f"ended by: {reason}"] if reason else []
        if word == "kept":
            notes.append("nothing beat the initial prompt on validation, so it is kept")
        if counts.cut > counts.replies / 10:
            notes.append(
                f"{counts.cut} of {counts.replies} replies were cut at their longest; see --max-tokens"
            )
        return Verdict(
            word, score=test.mean if test else None, metrics=metrics, note="; ".join(notes)
        )

    async def _figures(self, candidate: Candidate, items: Sequence[Item]) -> dict[str, float]:
        """The metric's figures over all items."""
        results = [(item, await self._results[candidate.digest, item.id]) for item in items]
        return dict(
            self._dataset.metric.over(
                [(item, each.graded) for item, each in results if each.graded]
            )
        )

    async def _unread(self, candidate: Candidate) -> float | None:
        """The share of its replies to test items with an unreadable answer; None if none could be judged."""
        results = [await self._results[candidate.digest, item.id] for item in self._dataset.test]
        causes = [each.graded.cause in UNREAD for each in results if each.graded]
        return fmean(causes) if causes else None

    async def _close(self) -> None:
        tasks = [*self._noted.values(), *self._results.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # One candidate on one item

    async def _graded(self, candidate: Candidate, items: Sequence[Item]) -> None:
        """Scores these new pairs and waits for them. They are counted before anything is awaited."""
        if items and candidate.digest not in self._candidates:
            self._candidates[candidate.digest] = candidate
            self._noted[candidate.digest] = asyncio.create_task(self._note(candidate))
        tasks = []
        for item in items:
            split = self._split.get(item.id, "test")
            self._counts.metric_calls += split != "test"
            tasks.append(asyncio.create_task(self._result(candidate, item, split)))
            self._results[candidate.digest, item.id] = tasks[-1]
        await asyncio.gather(*tasks)

    def _note(self, candidate: Candidate) -> Coroutine[Any, Any, None]:
        """Records a candidate, with the number of metric calls before it."""
        return self._once(f"candidate/{candidate.digest}", {
            "digest": candidate.digest,
            "number": 0 if candidate == self.initial else len(self._candidates),
            "messages": candidate.messages,
            "demos": candidate.demos,
            "metric_calls": self._counts.metric_calls,
        })  # fmt: skip

    async def _result(self, candidate: Candidate, item: Item, split: str) -> Result:
        purpose = "test" if split == "test" else "item"
        await self._noted[candidate.digest]
        try:
            reply = await self._ask(self._template.messages(candidate, item), None, purpose)
        except PromptTooLong as error:
            # the candidate's failure on this item, not the end of the search
            reply = replace(error.reply, text="")
        self._counts.replies += 1
        self._counts.cut += reply.finish_reason == "length"
        grade = partial(
            self._handles.grade,
            item.id,
            split=split,
            candidate=candidate.digest,
            call=float(reply.call),
        )
        ask_judge = (
            partial(self._ask, model=JUDGE, purpose=JUDGE)
            if self._dataset.metric.asks_judge
            else None
        )
        if reply.truncated == "reasoning":  # which is no answer, so not a wrong one either
            self._counts.faults += 1
            await grade(0.0, fault=LENGTH_REASONING)
            return Result(None, reply.text)
        try:
            graded = await self._dataset.metric(item, reply.text, ask_judge)
        except Unread:
            self._counts.faults += 1
            await grade(0.0, fault="unread")
            return Result(None, reply.text)
        score = await grade(graded.score, **graded.metrics)
        # a resumed search goes on from the recorded scores
        return Result(graded._replace(score=score), reply.text)

    async def _ask(
        self,
        messages: Sequence[Message],
        model: str | None = None,
        purpose: str = "",
        **sampling: Any,
    ) -> Reply:
        async with self._at_once:
            reply = await self._handles.ask(messages, model, purpose, **sampling)
        self._counts.cost += reply.cost
        self._counts.item_cost += reply.cost if purpose in ("item", "test", JUDGE) else 0.0
        return reply

    # Bookkeeping

    def _next_request(self) -> int:
        """The number of the next request to the reasoning model. Raises BudgetSpent if no money is left."""
        self._requests += 1
        self._require_money(0)
        return self._requests

    async def _requested(
        self, messages: Sequence[Message], purpose: str, request: int, attempt: int
    ) -> Reply:
        role = "reasoning" if "reasoning" in self._handles.identity.arm.models else None
        seed = self._digest(request, attempt)
        reply = await self._ask(
            messages, role, purpose, temperature=1.0, seed=seed, max_tokens=_REASONING_TOKENS
        )
        self._counts.reasoning_calls += 1
        return reply

    def _count_stale(self) -> None:
        self._stale += 1
        if self._stale >= STALE:
            raise BudgetSpent("stale")

    def _require_money(self, items: int) -> None:
        """Raises BudgetSpent if so many items and the remaining passes might cost too much."""
        if self._max_cost is None or not self._counts.replies:
            return
        an_item = self._counts.item_cost / self._counts.replies
        later = self._kept_back + len(self.minibatch) + len(self._dataset.test)
        if self._counts.cost + _SPARE * an_item * (items + later) > self._max_cost:
            raise BudgetSpent("usd")

    def _digest(self, *what: object) -> int:
        """A digest of seed, dataset, optimizer and `what`, 31 bits."""
        text = repr((self._seed, self._dataset.name, self._solver, *what))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1

    async def _once(self, name: str, value: Mapping[str, Any]) -> None:
        await self._handles.once(name, lambda: value, rerun=True)


@asynccontextmanager
async def open_evaluator(
    dataset: Dataset, handles: ExperimentHandles, settings: Settings
) -> AsyncIterator[Evaluator]:
    """Opens the evaluator of one experiment."""
    options = next(
        (each for each in settings.own if isinstance(each, SearchOptions)), SearchOptions()
    )
    seed = settings.seed + handles.identity.sample
    yield Evaluator(dataset, handles, options, seed=seed, max_cost=settings.max_experiment_cost)


class BudgetSpent(Exception):
    """The budget is spent. It ends the search and the solver, and is no error."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the search is over: {reason}")
        self.reason = reason  # budget, usd or stale


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate's scores on some items, by their ids. Items that can't be judged are left out."""

    mean: float  # 0 where nothing was scored
    scores: Mapping[str, float]
    replies: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a score isn't 1
    refused: str = ""  # why the candidate isn't accepted


@dataclass(frozen=True, slots=True)
class Result:
    """One candidate on one item."""

    graded: Graded | None  # None: a judge's reply that can't be read
    reply: str


@dataclass
class Counts:
    """The counts of a search so far."""

    metric_calls: int = 0
    reasoning_calls: int = 0
    refused: int = 0  # proposals
    unreadable: int = 0  # replies of the reasoning model
    faults: int = 0  # pairs of candidate and item
    cut: int = 0  # replies that ended at their longest
    replies: int = 0
    cost: float = 0.0  # US dollars, of all
    item_cost: float = 0.0  # of items with their judge
