"""Values around one experiment: the experiment to be run, its totals, and its outcome."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from koderz.types import MAIN
from koderz_tracker import records
from koderz_tracker.basis import Use

if TYPE_CHECKING:
    from koderz.errors import Fault
    from koderz.plans.plan import Identity
    from koderz_tracker.records import Record, Text

# as whose engine sandboxes that are rented are on record
SANDBOX, UNPRICED = "sandbox", "sandbox, price unknown"


_NOTHING = Use(0, 0, 0)


class PendingExperiment(NamedTuple):
    """An experiment to be run, with its records so far, in order."""

    identity: Identity
    recorded: Sequence[Record] = ()
    # False: some of it can't be read, so the solver may have to go another way
    is_whole: bool = True


class ExperimentOutcome(NamedTuple):
    """The end of one experiment. Without a record it hasn't ended, and `fault` ends the run."""

    record: records.Experiment | records.Fault | None
    fault: Fault | None = None


class Ledger(Protocol):
    """The place where events of experiments are recorded."""

    async def record(self, *lines: Record) -> None:
        """Writes lines and returns once they are durable. Raises StorageError if they can't be written."""
        ...

    def text(self, text: Text) -> str:
        """A recorded text, read from its blob if it has one."""
        ...


@dataclass(slots=True)
class Totals:
    """The totals of an experiment, replayed and new."""

    calls: int = 0
    attempts: int = 0
    turns: int = 0  # of the model at the root of a recursion
    depth: int = 0  # the greatest of a call in it
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_reasoning: int | None = None  # as far as servers tell; None: none does
    latency: float = 0.0
    cost_known: bool = True
    costs: list[tuple[str, float]] = field(default_factory=list)  # tier, US dollars
    local_tokens: tuple[int, int] = (0, 0)  # in, out
    roles: dict[str, Use] = field(default_factory=dict)
    # calls by model asked, and by one named
    answered_by: dict[str, dict[str, int]] = field(default_factory=dict)
    # requests that were refused for load, by provider
    throttled: Counter[str] = field(default_factory=Counter)
    # replies by a last word that koderz doesn't know
    unknown_ends: Counter[str] = field(default_factory=Counter)
    scores: list[float] = field(default_factory=list)  # of the items that were graded
    # US dollars, of replies on record of other runs
    saved: list[float] = field(default_factory=list)
    # the calls of those replies, by RUN/EXPERIMENT
    reused: dict[str, list[int]] = field(default_factory=dict)

    def add(self, call: records.Call) -> None:
        self.calls = max(self.calls, call.call)
        self.turns += call.purpose == "root"
        self.depth = max(self.depth, call.depth)
        self.tokens_in += call.tokens_in
        self.tokens_out += call.tokens_out
        if call.tokens_reasoning is not None:
            self.tokens_reasoning = (self.tokens_reasoning or 0) + call.tokens_reasoning
        use = self.roles.get(call.role, _NOTHING)
        self.roles[call.role] = Use(
            use.calls + 1, use.tokens_in + call.tokens_in, use.tokens_out + call.tokens_out
        )
        self.latency += call.latency
        self.cost_known = self.cost_known and call.cost_known
        if call.answered_by and call.answered_by not in (call.model, call.model.partition("/")[2]):
            answering = self.answered_by.setdefault(call.model, {})
            answering[call.answered_by] = answering.get(call.answered_by, 0) + 1
        if call.throttled:
            from koderz.models.names import parse_model_name  # which no help needs

            self.throttled[parse_model_name(call.model).provider] += call.throttled
        if call.finish_reason != "stop":
            from koderz.models.faults import outcome_of

            self.unknown_ends.update(
                [call.finish_reason] if outcome_of(call.finish_reason) is None else []
            )
        if call.reused:
            self.saved.append(call.cost_saved)
            self.reused.setdefault(f"{call.reused.run_id}/{call.reused.experiment_id}", []).append(
                call.reused.call
            )
        tier = "local" if call.role == MAIN else call.role
        self.costs.append((tier, call.cost))
        if tier == "local":
            tokens_in, tokens_out = self.local_tokens
            self.local_tokens = tokens_in + call.tokens_in, tokens_out + call.tokens_out

    def rent(self, line: records.Compute) -> None:
        """Adds the cost of machines other than an engine's, which counts its own."""
        if line.engine in (SANDBOX, UNPRICED):
            self.costs.append(("compute", line.cost))
            self.cost_known = self.cost_known and line.engine == SANDBOX

    @property
    def cost(self) -> float:
        """The total cost in US dollars."""
        return math.fsum(cost for _, cost in self.costs)

    @property
    def saved_cost(self) -> float:
        """US dollars that its reused replies cost before."""
        return math.fsum(self.saved)

    @property
    def mean_grade(self) -> float | None:
        """The mean score of graded items; None if none was graded."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else None

    def by_tier(self) -> dict[str, float] | None:
        """US dollars by tier; None if all models are local."""
        tiers = {tier for tier, _ in self.costs}
        if tiers <= {"local"}:
            return None
        return {tier: math.fsum(c for t, c in self.costs if t == tier) for tier in sorted(tiers)}
