"""One experiment in a container: reads back its records first, and stores each new one before it counts.

Besides, what a container keeps of one run between its experiments, what it costs, and what goes back from there as the
result of a call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from msgspec import structs

from koderz._version import __version__
from koderz.engines.portable import line_key, read_lines, source_digest, unpack_work
from koderz.engines.resources import open_resources
from koderz.errors import FatalFault, Fault
from koderz.experiments.budget import CapReached
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
from koderz.experiments.recording import Answer, Ask
from koderz.experiments.replay import Replaying
from koderz.experiments.runner import ExperimentRunner, Resources
from koderz.plans.plan import Identity, Plan
from koderz.systems.modal.names import SANDBOXES, require_apart
from koderz.systems.modal.store import ContainerShelf
from koderz_tracker.records import Compute, Experiment, Record, Text, decode, encode
from koderz_tracker.records import Fault as FaultRecord

_KINDS: tuple[type[Fault], ...] = (CapReached, FatalFault, Fault)
_FAULTS: Mapping[str, type[Fault]] = {kind.__name__: kind for kind in _KINDS}


class Meter:
    """Divides a container's seconds among the experiments that run in it at the same time."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._inside = 0
        self._since = time.monotonic()

    def seconds(self, joining: int = 0) -> float:
        """The seconds of an experiment that had been here all along; take the difference of two calls.

        `joining`: how many come in now; -1 where one leaves.
        """
        now = time.monotonic()
        self._seconds += (now - self._since) / max(1, self._inside)
        self._since = now
        self._inside += joining
        return self._seconds


class ContainerState:
    """One run in one container, with resources that are opened on first use and kept."""

    resources: Resources

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        """Prepares the state. Raises KoderzError for a sandbox that isn't outside of the container."""
        require_apart(plan.settings.sandbox)
        settings = replace(plan.settings, judges=plan.settings.judges or SANDBOXES)
        self.meter = Meter()
        self._plan, self._environ = replace(plan, settings=settings), environ
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def opened(self) -> None:
        """Opens all resources. Raises Unreachable if a key or the sandbox is missing."""
        async with self._opening:
            if not hasattr(self, "resources"):
                self.resources, _ = await self._open.enter_async_context(
                    open_resources(self._plan, self._environ)
                )

    async def aclose(self) -> None:
        await self._open.aclose()


class MeteredCaller(Caller):
    """Asks models, and counts the container's cost too against the allowance."""

    def __init__(self, state: ContainerState, allowance: float | None, rate: float) -> None:
        """`allowance`: US dollars that this experiment may spend; `rate`: of the container, a second."""
        resources = state.resources
        settings = replace(resources.plan.settings, max_cost=allowance)
        super().__init__(settings, resources.models, spent=0.0, baseline=resources.baseline)
        self._rate, self._meter, self._begun = rate, state.meter, state.meter.seconds(joining=1)
        self._counted = 0.0

    async def complete(self, ask: Ask, identity: Identity) -> Answer:
        used = (self._meter.seconds() - self._begun) * self._rate
        self.also_spent(used - self._counted)
        self._counted = used
        return await super().complete(ask, identity)

    def seconds(self) -> float:
        """The seconds of the container used by the experiment. Call it once, at the end."""
        return self._meter.seconds(joining=-1) - self._begun


class Notebook:
    """The ledger of one experiment in a container."""

    def __init__(self, shelf: ContainerShelf) -> None:
        self.written: list[bytes] = []
        self._shelf = shelf

    async def record(self, *lines: Record) -> None:
        for line in map(encode, lines):
            await self._shelf.append(line)
            self.written.append(line)

    def text(self, text: Text) -> str:
        assert isinstance(text, str), "what is sent to a worker holds no blobs"
        return text


async def perform_work(
    data: Mapping[str, Any],
    call_id: str,
    shelf: ContainerShelf,
    state_of: Callable[[], Awaitable[ContainerState]],
) -> dict[str, Any]:
    """Runs the experiment described by `modal.submission`; `result_of` makes the returned value. Never raises.

    What an earlier run of the same input has stored is replayed, not paid for again.
    """
    notebook = Notebook(shelf)
    try:
        holder = await shelf.claim(call_id, data["after"])
        if holder != call_id:
            return performed_by(holder)
        state = await state_of()
        asked = unpack_work(data["work"], state.resources.plan)
        work = await _with_stored(asked, notebook, shelf)
        # In an earlier run of this very input it may have ended already, and the result was lost on its way.
        if (ended := outcome_among(work.recorded[len(asked.recorded) :])) is None:
            caller = MeteredCaller(state, data["allowance"], data["rate"])
            runner = ExperimentRunner(state.resources, caller, notebook, Replaying(**data["how"]))
            outcome = await _ended(await runner.perform(work), work, caller, notebook, data)
        else:
            notebook.written.pop()  # it goes back as the outcome
            outcome = ExperimentOutcome(ended)
    except Exception as error:  # noqa: BLE001 what is raised here would come back as something else
        fault = (
            error if isinstance(error, Fault) else FatalFault(str(error) or type(error).__name__)
        )
        outcome = ExperimentOutcome(None, fault)
    return result_of(outcome, notebook.written)


async def _with_stored(
    work: PendingExperiment, notebook: Notebook, shelf: ContainerShelf
) -> PendingExperiment:
    """The experiment with the stored lines that hadn't reached the journal yet; these are returned again."""
    known = {line_key(record) for record in work.recorded}
    recorded = list(work.recorded)
    for line in await shelf.lines():
        for record in read_lines([line]):
            if line_key(record) not in known:
                recorded.append(record)
                notebook.written.append(line)
    return work._replace(recorded=recorded)


async def _ended(
    outcome: ExperimentOutcome,
    work: PendingExperiment,
    caller: MeteredCaller,
    notebook: Notebook,
    data: Mapping[str, Any],
) -> ExperimentOutcome:
    """The outcome with the container's cost in it, stored."""
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
        return structs.replace(record, cost=record.cost + spent)
    tiers = record.cost_by_tier or {"local": record.cost}
    return structs.replace(
        record, cost=record.cost + spent, cost_by_tier={**tiers, "compute": spent}
    )


def result_of(outcome: ExperimentOutcome, lines: Sequence[bytes]) -> dict[str, Any]:
    """The end of an experiment, with the lines of its journal."""
    fault = outcome.fault
    kind = next((name for name, kind in _FAULTS.items() if isinstance(fault, kind)), "")
    message = {"fault": kind, "message": str(fault or ""), "cause": fault.cause if fault else None}
    return {
        "koderz": __version__,
        "digest": source_digest(),
        "lines": [*lines],
        "outcome": {"record": encode(outcome.record) if outcome.record else b"", **message},
    }


def performed_by(call_id: str) -> dict[str, Any]:
    """The result of a call whose experiment another call runs."""
    return {"elsewhere": call_id}


def read_result(outcome: Mapping[str, Any]) -> ExperimentOutcome:
    """The outcome in a value made by `result_of`."""
    record = decode(outcome["record"]) if outcome["record"] else None
    assert record is None or isinstance(record, Experiment | FaultRecord)
    kind = _FAULTS[outcome["fault"]] if outcome["fault"] else None
    fault = kind(outcome["message"], cause=outcome["cause"]) if kind else None
    return ExperimentOutcome(record, fault)


def outcome_among(lines: Sequence[Record]) -> Experiment | FaultRecord | None:
    """The end of an experiment among its stored lines, unless more lines follow."""
    last = lines[-1] if lines else None
    return last if isinstance(last, Experiment | FaultRecord) else None
