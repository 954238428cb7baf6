"""One experiment in a container: what it is told is read back first, what it does is stored before it counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from koderz.engines.portable import line_key, read_lines, unpack_work
from koderz.engines.resources import baseline_price, checked_suite, open_models, sandbox_of, shared_of
from koderz.errors import FatalFault, Fault
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
from koderz.experiments.replay import Answer, Ask, Replaying
from koderz.experiments.runner import ExperimentRunner
from koderz.modal.names import SANDBOXES, require_apart
from koderz.modal.result import outcome_among, performed_by, result_of
from koderz.modal.store import ContainerShelf
from koderz.plans.identity import Identity
from koderz.plans.plan import Plan
from koderz.sandbox import Sandbox
from koderz.types import Task
from tracker.records import Compute, Experiment, Record, Text, encode
from tracker.records import Fault as FaultRecord

if TYPE_CHECKING:
    from koderz.models import Model


class Notebook:
    """The ledger of one experiment in a container."""

    def __init__(self, shelf: ContainerShelf, run: str, experiment_id: str) -> None:
        self.written: list[bytes] = []
        self._shelf, self._run, self._experiment_id = shelf, run, experiment_id

    async def record(self, *lines: Record) -> None:
        for line in map(encode, lines):
            await self._shelf.append(self._run, self._experiment_id, line)
            self.written.append(line)

    def text(self, text: Text) -> str:
        assert isinstance(text, str), "what is sent to a worker holds no blobs"
        return text


async def perform_work(
    data: Mapping[str, Any], call_id: str, shelf: ContainerShelf, state_of: Callable[[str], Awaitable[ContainerState]]
) -> dict[str, Any]:
    """Performs what `modal.submission` describes; `modal.result` has what it returns. Never raises.

    What an earlier run of the same input has stored is replayed, not paid for again.
    """
    run, experiment_id = data["run"], data["work"]["experiment_id"]
    notebook = Notebook(shelf, run, experiment_id)
    try:
        holder = await shelf.claim(run, experiment_id, call_id, data["after"])
        if holder != call_id:
            return performed_by(holder)
        state = await state_of(run)
        work = await _with_stored(unpack_work(data["work"], state.plan), data, notebook, shelf)
        if (ended := _end_of(work, data)) is None:
            caller = MeteredCaller(state, data["allowance"], data["rate"])
            how = Replaying(**data["how"])
            runner = ExperimentRunner(
                state.plan, caller, state.sandbox, notebook, how, broken=state.broken, shared=state.shared
            )
            outcome = await _ended(await runner.perform(work), work, caller, notebook, data)
        else:
            notebook.written.pop()  # it goes back as the outcome
            outcome = ExperimentOutcome(ended)
    except Exception as error:  # noqa: BLE001 what is raised here would come back as something else
        fault = error if isinstance(error, Fault) else FatalFault(str(error) or type(error).__name__)
        outcome = ExperimentOutcome(None, fault)
    return result_of(outcome, notebook.written)


async def _with_stored(
    work: PendingExperiment, data: Mapping[str, Any], notebook: Notebook, shelf: ContainerShelf
) -> PendingExperiment:
    """The work with what was stored for it and hadn't reached the journal yet, which is handed back again."""
    known = {line_key(record) for record in work.recorded}
    recorded = list(work.recorded)
    for line in await shelf.lines(data["run"], work.identity.experiment_id):
        for record in read_lines([line]):
            if line_key(record) not in known:
                recorded.append(record)
                notebook.written.append(line)
    return PendingExperiment(work.identity, recorded, work.is_whole)


def _end_of(work: PendingExperiment, data: Mapping[str, Any]) -> Experiment | FaultRecord | None:
    """How it ended already, in a run of this very input whose result was lost on its way."""
    before = len(data["work"]["recorded"])
    return outcome_among(work.recorded[before:])


async def _ended(
    outcome: ExperimentOutcome,
    work: PendingExperiment,
    caller: MeteredCaller,
    notebook: Notebook,
    data: Mapping[str, Any],
) -> ExperimentOutcome:
    """The outcome with what the container cost in it, stored."""
    seconds, rate = caller.seconds(), data["rate"]
    compute = Compute(
        experiment_id=work.identity.experiment_id,
        engine="modal",
        gpu=data["gpu"],
        seconds=round(seconds, 6),
        cost_per_second=rate,
        cost=seconds * rate,
    )
    await notebook.record(compute)
    if outcome.record is None:
        return outcome
    spent = compute.cost + sum(line.cost for line in work.recorded if isinstance(line, Compute))
    record = _with_compute(outcome.record, spent)
    await notebook.record(record)
    notebook.written.pop()  # it goes back as the outcome
    return ExperimentOutcome(record, outcome.fault)


def _with_compute(record: Experiment | FaultRecord, spent: float) -> Experiment | FaultRecord:
    if isinstance(record, FaultRecord):
        return msgspec.structs.replace(record, cost=record.cost + spent)
    tiers = record.cost_by_tier or {"local": record.cost}
    tiers = {**tiers, "compute": spent}
    return msgspec.structs.replace(record, cost=record.cost + spent, cost_by_tier=tiers)


class Meter:
    """Shares a container's seconds out among the experiments that are in it at the same time."""

    def __init__(self) -> None:
        self._share = 0.0  # seconds of one experiment that had been here all along
        self._inside = 0
        self._since = time.monotonic()

    def enter(self) -> float:
        """A mark to be handed to `leave`."""
        self._tick(+1)
        return self._share

    def read(self, mark: float) -> float:
        """The seconds used since the mark was given."""
        self._tick(0)
        return self._share - mark

    def leave(self, mark: float) -> float:
        """The seconds used, by one that is here no more."""
        self._tick(-1)
        return self._share - mark

    def _tick(self, change: int) -> None:
        now = time.monotonic()
        self._share += (now - self._since) / max(1, self._inside)
        self._since = now
        self._inside += change


class ContainerState:
    """One run in one container: its plan, models and sandbox, opened when first needed and kept."""

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        """KoderzError for a sandbox that isn't outside of the container."""
        require_apart(plan.settings.sandbox)
        settings = replace(plan.settings, judges=plan.settings.judges or SANDBOXES)
        self.plan = replace(plan, settings=settings)
        self.meter = Meter()
        self.models: Mapping[str, Model] = {}
        self.sandbox: Sandbox
        self.shared: Any = None  # what the sessions and workspaces of the run share in this container
        self.broken: Callable[[Task], str] | None = None  # why a task can't be judged, as far as is known
        self._environ = environ
        self._means = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def opened(self) -> None:
        """Returns once everything is there. Raises Unreachable where a key or the sandbox isn't."""
        async with self._opening:
            if self.models:
                return
            async with AsyncExitStack() as means:
                self.sandbox = await means.enter_async_context(sandbox_of(self.plan))
                self.shared = await means.enter_async_context(shared_of(self.plan, self._environ))
                if suite := checked_suite(self.plan, self.sandbox):
                    self.plan = replace(self.plan, suite=suite)
                    self.broken = suite.broken
                _, self.models = await means.enter_async_context(open_models(self.plan, self._environ))
                self._means = means.pop_all()

    async def aclose(self) -> None:
        await self._means.aclose()


class MeteredCaller(Caller):
    """Counts what the container has cost, too, before each call is held against the allowance."""

    def __init__(self, state: ContainerState, allowance: float | None, rate: float) -> None:
        """`allowance`: US dollars that this experiment may spend; `rate`: of the container, a second."""
        settings = replace(state.plan.settings, max_cost=allowance)
        super().__init__(settings, state.models, spent=0.0, baseline=baseline_price(state.plan))
        self._rate, self._meter, self._mark = rate, state.meter, state.meter.enter()
        self._counted = 0.0

    async def complete(self, ask: Ask, identity: Identity) -> Answer:
        used = self._meter.read(self._mark) * self._rate
        self.also_spent(used - self._counted)
        self._counted = used
        return await super().complete(ask, identity)

    def seconds(self) -> float:
        """What the experiment has used of the container in all. To be asked once, at its end."""
        return self._meter.leave(self._mark)
