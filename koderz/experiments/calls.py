"""A run's calls: the choice of model and sampling, the cost caps, and a first call alone to prove the key."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from koderz.errors import FatalFault, Fault, ReplyTimedOut
from koderz.experiments.budget import Budget, Estimate, Gauge, request_of
from koderz.experiments.recording import Answer, Ask, completion_of, digest_of, sampling_sent
from koderz.models.clients import MalformedError, NotSpokenError, translated, wire_of
from koderz.models.gathering import IN_BATCH, Gatherer
from koderz.models.providers import BatchModel, ClientModel
from koderz.plans.arms import Arm, model_key
from koderz.plans.plan import Identity
from koderz.settings.requests import read_body
from koderz.settings.schema import Settings
from koderz.types import MAIN, REJECTED, SUB, TIME, Completion, Message, Sampling

if TYPE_CHECKING:
    from koderz.models import Model, Price
    from koderz_tracker.recorded import RecordedReplies


_INSTEAD = (("reasoning_effort", "reasoning_tokens"), ("reasoning_tokens", "reasoning_effort"))


class Caller:
    """Asks the models of one run."""

    def __init__(
        self,
        settings: Settings,
        models: Mapping[str, Model],
        *,
        spent: float,
        baseline: Price | None = None,
        places: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        recorded: RecordedReplies | None = None,
        batches: Gatherer | None = None,
        in_batches: Collection[tuple[str, str]] = (),
    ) -> None:
        """`spent`: US dollars that the run has cost already; `baseline`: the price of the baseline model.

        `places`: where and how models are asked, see `places_of`. `recorded`: replies that come before a model's.
        `in_batches`: the arms and roles whose calls are answered in `batches`.
        """
        self.closed: Fault | None = None  # why no more calls are made
        self._models, self._places, self._recorded = models, places, recorded
        self._baseline = baseline
        self._budget = Budget(settings.max_cost, spent)
        self._batches, self._in_batches = batches, in_batches
        if batches:
            self._budget.held = batches.owed
        self._experiment_cap = settings.max_experiment_cost
        self._budgets: dict[str, Budget] = {}  # of experiments under way, by id, if they have a cap
        self._uncapped = Budget(None)
        # by experiment: of what its client asked
        self._dropped: dict[str, set[str]] = defaultdict(set)
        self._sampling = Sampling(
            settings.sampling_temperature,
            settings.max_tokens,
            settings.top_p,
            settings.seed,
            reasoning_effort=settings.reasoning_effort,
            reasoning_tokens=settings.reasoning_tokens,
            extra_body=read_body(settings.extra_body) if settings.extra_body else None,
        )
        self._stop = settings.stop
        self._timeout, self._is_late_failure = (
            settings.request_timeout,
            settings.timeout_is == "failure",
        )
        self._bodies = {
            name: own.extra_body
            for name, own in settings.options_of_models.items()
            if own.extra_body
        }
        self._of_roles = {
            role: options.sampling() for role, options in settings.options_of_roles.items()
        }
        self._elsewhere = frozenset(settings.roles_elsewhere)
        self._gauges: dict[str, Gauge | None] = {}  # by model; None where nobody knows its price
        # models that haven't answered yet
        self._unproven = {name: asyncio.Lock() for name in models}

    async def complete(self, ask: Ask, identity: Identity) -> Answer:
        """One answer, on record of another run or paid for.

        Raises Fault; CapReached where the call might pass the cost cap, or no more calls are made;
        ExperimentCapReached where it might pass the experiment's own.
        """
        role, name = _role(ask, identity.arm)
        asked = model_key(role, name, self._elsewhere)
        sampling = self._sampling_of(ask, role, name, identity.sample)
        digest = self._digest(asked, ask, role, sampling, identity.sample)
        is_batched = (identity.arm.name, role) in self._in_batches
        is_owed = bool(
            is_batched and self._batches and self._batches.is_owed(identity.experiment_id, ask.key)
        )
        if self._recorded and digest and not is_owed and (call := self._recorded.take(digest)):
            return Answer(
                completion_of(call), role, name, sampling, digest, call.reused, call.cost_saved
            )
        model = self._models[asked]
        own = self._budgets.get(identity.experiment_id) or self._uncapped
        asking = self._in_batch if is_batched else self._live
        async with asking(asked, ask, sampling, own, identity.experiment_id) as learn:
            if self.closed:
                raise self.closed
            try:
                completion, dropped = await _completed(model, ask.messages, sampling)
            except ReplyTimedOut as fault:
                # A judge that is late is none of the model's doing, and an agent is told by its own wire.
                if not self._is_late_failure or role not in (MAIN, SUB) or wire_of(ask.messages):
                    raise
                throttled = sum(fault.throttled.values())
                late = Completion(
                    "", finish_reason=TIME, latency=self._timeout, throttled=throttled
                )
                return Answer(late, role, name, sampling, digest)
            except FatalFault as fault:  # whoever waits for a turn is not to find out for himself
                self.closed = fault
                raise
            self._budget.paid(completion.cost)
            own.paid(completion.cost)
            learn(completion)
        if dropped:
            known = self._dropped[identity.experiment_id]
            news = [f"{what} dropped" for what in dropped if what not in known]
            known.update(dropped)
            completion = replace(completion, adapted=(*completion.adapted, *news))
        return Answer(completion, role, name, sampling, digest)

    def digest(self, ask: Ask, identity: Identity) -> str:
        """The digest of all that decides the reply; empty if not all of it is known. Raises Fault as `complete`."""
        role, name = _role(ask, identity.arm)
        sampling = self._sampling_of(ask, role, name, identity.sample)
        return self._digest(
            model_key(role, name, self._elsewhere), ask, role, sampling, identity.sample
        )

    def _digest(self, asked: str, ask: Ask, role: str, sampling: Sampling, sample: int) -> str:
        """A reply is decided by the model, its place, the whole request, and which of equal ones this is.

        Task, suite, solver and purpose have no part in it: another solver that asks the same gets the same.
        """
        if asked not in self._places:
            return ""
        return digest_of(
            [self._places[asked], role, ask.messages, sampling_sent(sampling), sample, ask.nth]
        )

    def experiment(self, experiment_id: str, spent: float) -> AbstractContextManager[None]:
        """Applies an experiment's own cap while the block runs; `spent` are the US dollars on record for it."""
        return nullcontext() if self._experiment_cap is None else self._capped(experiment_id, spent)

    @contextmanager
    def _capped(self, experiment_id: str, spent: float) -> Iterator[None]:
        self._budgets[experiment_id] = Budget(self._experiment_cap, spent, of_experiment=True)
        try:
            yield
        finally:
            del self._budgets[experiment_id]

    def working(self) -> AbstractContextManager[None]:
        """A block in which an experiment goes on besides its calls, so that no batch is sent without what follows."""
        return self._batches.working() if self._batches else nullcontext()

    def also_spent(self, dollars: float) -> None:
        """Counts a cost other than that of a call against the cap."""
        self._budget.paid(dollars)

    def baseline_cost(self, tokens_in: int, tokens_out: int) -> float | None:
        """The cost of these tokens on the baseline model in US dollars; None if unknown."""
        return self._baseline.cost(tokens_in, tokens_out) if self._baseline else None

    def _sampling_of(self, ask: Ask, role: str, name: str, sample: int) -> Sampling:
        """The run's sampling, overridden by the solver's, and that by the role's own.

        The seed differs from sample to sample. Texts that end a reply are for the model that answers.
        """
        unknown = set(ask.sampling) - set(Sampling.__slots__)
        if unknown:
            known = ", ".join(Sampling.__slots__)
            raise Fault(
                f"ask has no sampling parameter {', '.join(sorted(unknown))}; it has {known}",
                cause="user_code",
            )
        own: dict[str, Any] = {"seed": (self._sampling.seed or 0) + sample, **ask.sampling}
        if role in (MAIN, SUB):
            own.setdefault("stop", self._stop)
        for one, other in _INSTEAD:
            if ask.sampling.get(one) is not None:
                own.setdefault(other, None)
        own |= self._of_roles.get(role, {})
        if name in self._bodies:
            own.setdefault("extra_body", self._bodies[name])
        return replace(self._sampling, **own)

    @asynccontextmanager
    async def _live(
        self, name: str, ask: Ask, sampling: Sampling, own: Budget, _experiment_id: str
    ) -> AsyncIterator[Callable[[Completion], None]]:
        """A call of its own; where others are answered in batches, its experiment goes on meanwhile."""
        with self.working():
            async with self._proving(name), self._within_caps(name, ask, sampling, own) as learn:
                yield learn

    @asynccontextmanager
    async def _in_batch(
        self, name: str, ask: Ask, sampling: Sampling, own: Budget, experiment_id: str
    ) -> AsyncIterator[Callable[[Completion], None]]:
        """A call that is answered in a batch, whose likely cost at the price of batches is held in both budgets."""
        assert self._batches, "there are arms and roles in batches"
        call = self._batches.call(experiment_id, ask.key)
        gauge, request = (
            self._gauge(name, in_batch=True),
            request_of(ask.messages, self._longest(sampling)),
        )
        if gauge:
            estimate = gauge.estimate(request)
            gauge.close(estimate)
            call.dollars = estimate.likely
        owed = self._batches.owes(call)
        call.dollars = call.dollars if owed is None else owed
        with self._batches.waiting(experiment_id):
            async with (
                nullcontext()
                if own is self._uncapped
                else own.call_in_batch(call.dollars, is_held=owed is not None),
                self._budget.call_in_batch(call.dollars, is_held=owed is not None),
            ):
                token = IN_BATCH.set(call)
                try:
                    yield partial(gauge.learn, request) if gauge else lambda _: None
                finally:
                    IN_BATCH.reset(token)

    @asynccontextmanager
    async def _within_caps(
        self, name: str, ask: Ask, sampling: Sampling, own: Budget
    ) -> AsyncIterator[Callable[[Completion], None]]:
        """Reserves the call's estimate in both budgets; the yielded function learns from the call's real cost."""
        gauge = self._gauge(name)
        if gauge is None:
            async with own.call(Estimate.of(0.0)), self._budget.call(Estimate.of(0.0)):
                yield lambda _: None
            return
        request = request_of(ask.messages, self._longest(sampling))
        estimate = gauge.estimate(request)
        try:
            async with own.call(estimate), self._budget.call(estimate):
                yield partial(gauge.learn, request)
        finally:
            gauge.close(estimate)

    def _longest(self, sampling: Sampling) -> int:
        """The most tokens that a reply may have."""
        return (sampling.max_tokens or self._sampling.max_tokens or 0) + (
            sampling.reasoning_tokens or 0
        )

    def _gauge(self, name: str, *, in_batch: bool = False) -> Gauge | None:
        """The gauge of a model's costs; None without a cap, or if no price is known. In batches there is always one."""
        if self._budget.cap is None and self._experiment_cap is None and not in_batch:
            return None
        key = f"{name} in batches" if in_batch else name
        if key not in self._gauges:
            model = self._models[name]
            price = (
                model.batch_price() if in_batch and isinstance(model, BatchModel) else model.price()
            )
            self._gauges[key] = Gauge(price) if price else None
        return self._gauges[key]

    @asynccontextmanager
    async def _proving(self, name: str) -> AsyncIterator[None]:
        """Holds back other calls until a first one has come back, so that a bad key is reported once."""
        lock = self._unproven.get(name)
        if lock is not None:
            async with lock:
                if name in self._unproven:
                    yield
                    del self._unproven[name]
                    return
        yield


async def _completed(
    model: Model, messages: Sequence[Message], sampling: Sampling
) -> tuple[Completion, Sequence[str]]:
    """One paid answer, and what was lost if a client's request had to be translated to another wire format."""
    wire = wire_of(messages)
    if not wire:
        return _writable(await model.complete(messages, sampling)), ()
    if isinstance(model, ClientModel) and wire in model.clients:
        with suppress(NotSpokenError):
            return _writable(await model.complete(messages, sampling)), ()
    try:
        translation = translated(messages)
    except (MalformedError, AttributeError, KeyError, TypeError) as error:
        said = (
            str(error)
            if isinstance(error, MalformedError)
            else f"not a request of its wire: {error!r}"
        )
        return Completion(said, finish_reason=REJECTED, model=str(model.name)), ()
    return _writable(await model.complete(translation.messages, sampling)), translation.dropped


def _writable(completion: Completion) -> Completion:
    """The answer without halves of surrogate pairs, which a model of another package may reply anywhere in it."""
    said = {name: getattr(completion, name) for name in _SAID}
    try:
        whole = {name: _whole(value) for name, value in said.items()}
        return completion if whole == said else replace(completion, **whole)
    except RecursionError:
        # no journal holds what is that deep; the fault says so when it is written
        return completion


_SAID = ("text", "reasoning", "finish_reason", "model", "raw", "tool_calls", "body", "items")
"""The parts of an answer that a model words."""


def _whole(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case Mapping():
            return {_whole(name): _whole(each) for name, each in value.items()}
        case tuple():
            return tuple(map(_whole, value))
        case list():
            return [*map(_whole, value)]
    return value


def _role(ask: Ask, arm: Arm) -> tuple[str, str]:
    """The role that is asked, and its model. Raises Fault if the arm has no such role or model."""
    asked = ask.model or MAIN
    for role, name in arm.models.items():
        if asked in (role, name):
            return role, name
    known = ", ".join(f"{role} ({name})" for role, name in arm.models.items())
    raise Fault(
        f"the solver asks {asked}, which its arm hasn't got; it has {known}", cause="user_code"
    )
