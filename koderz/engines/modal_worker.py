"""One experiment in a container: what it is told is read back first, what it does is stored before it counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from koderz._version import __version__
from koderz.budget import CapReached
from koderz.calls import Caller
from koderz.engines import Outcome, Work
from koderz.engines.modal_names import SANDBOXES, require_apart
from koderz.engines.performing import Performer
from koderz.engines.portable import line_key, read_lines, source_digest, unpack_work
from koderz.errors import FatalFault, Fault
from koderz.opening import baseline_price, checked_suite, open_models, sandbox_of
from koderz.plan import Plan
from koderz.references import ReferenceFault
from koderz.replay import Ask, NeedsCallError, Replaying
from koderz.sandbox import Sandbox
from koderz.types import Completion, Sampling, Task
from tracker.records import Compute, Experiment, Record, Text, decode, encode
from tracker.records import Fault as FaultRecord

if TYPE_CHECKING:
    from koderz.models import Model


class Shelf(Protocol):
    """What outlives a container."""

    async def plan(self, run: str) -> bytes:
        """Raises KoderzError where the run's plan isn't there."""
        ...

    async def lines(self, run: str, experiment_id: str) -> list[bytes]:
        """All that was stored for an experiment, in order."""
        ...

    async def append(self, run: str, experiment_id: str, line: bytes) -> None:
        """Returns once the line is durable."""
        ...

    async def claim(self, run: str, experiment_id: str, call_id: str, after: str) -> str:
        """The call that performs this experiment: `call_id`, unless another than `after` has it already."""
        ...


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


class Notebook:
    """The ledger of one experiment in a container."""

    def __init__(self, shelf: Shelf, run: str, experiment_id: str) -> None:
        self.written: list[bytes] = []
        self._shelf, self._run, self._experiment_id = shelf, run, experiment_id

    async def record(self, *lines: Record) -> None:
        for line in map(encode, lines):
            await self._shelf.append(self._run, self._experiment_id, line)
            self.written.append(line)

    def text(self, text: Text) -> str:
        assert isinstance(text, str), "what is sent to a worker holds no blobs"
        return text


class Station:
    """One run in one container: its plan, models and sandbox, opened when first needed and kept."""

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        """KoderzError for a sandbox that isn't outside of the container."""
        require_apart(plan.settings.sandbox)
        settings = replace(plan.settings, judges=plan.settings.judges or SANDBOXES)
        self.plan = replace(plan, settings=settings)
        self.meter = Meter()
        self.models: Mapping[str, Model] = {}
        self.sandbox: Sandbox
        self.broken: Callable[[Task], str] | None = None  # why a task can't be judged, as far as is known
        self._environ = environ
        self._means = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def opened(self) -> None:
        """Returns once everything is there. Raises Unreachable where a key or the sandbox isn't."""
        async with self._opening:
            if not self.models:
                self.sandbox = await self._means.enter_async_context(sandbox_of(self.plan))
                if suite := checked_suite(self.plan, self.sandbox):
                    self.plan = replace(self.plan, suite=suite)
                    self.broken = suite.broken
                _, self.models = await self._means.enter_async_context(open_models(self.plan, self._environ))

    async def aclose(self) -> None:
        await self._means.aclose()


class MeteredCaller(Caller):
    """Counts what the container has cost, too, before each call is held against the allowance."""

    def __init__(self, station: Station, allowance: float | None, rate: float) -> None:
        """`allowance`: US dollars that this experiment may spend; `rate`: of the container, a second."""
        settings = replace(station.plan.settings, max_cost=allowance)
        super().__init__(settings, station.models, spent=0.0, baseline=baseline_price(station.plan))
        self._rate, self._meter, self._mark = rate, station.meter, station.meter.enter()
        self._counted = 0.0

    async def complete(self, ask: Ask, sample: int) -> tuple[Completion, str, Sampling]:
        used = self._meter.read(self._mark) * self._rate
        self.also_spent(used - self._counted)
        self._counted = used
        return await super().complete(ask, sample)

    def seconds(self) -> float:
        """What the experiment has used of the container in all. To be asked once, at its end."""
        return self._meter.leave(self._mark)


async def perform_work(
    data: Mapping[str, Any], call_id: str, shelf: Shelf, station_of: Callable[[str], Awaitable[Station]]
) -> dict[str, Any]:
    """Performs what `modal.submission` describes; `read_result` reads what it returns. Never raises.

    What an earlier run of the same input has stored is replayed, not paid for again.
    """
    run, experiment_id = data["run"], data["work"]["experiment_id"]
    notebook = Notebook(shelf, run, experiment_id)
    try:
        holder = await shelf.claim(run, experiment_id, call_id, data["after"])
        if holder != call_id:
            return {**_version(), "lines": [], "elsewhere": holder}
        station = await station_of(run)
        work = await _with_stored(unpack_work(data["work"], station.plan), data, notebook, shelf)
        if (ended := _end_of(work, data)) is None:
            caller = MeteredCaller(station, data["allowance"], data["rate"])
            how = Replaying(**data["how"])
            performer = Performer(station.plan, caller, station.sandbox, notebook, how, broken=station.broken)
            outcome = await _ended(await performer.perform(work), work, caller, notebook, data)
        else:
            notebook.written.pop()  # it goes back as the outcome
            outcome = Outcome(ended)
    except Exception as error:  # noqa: BLE001 what is raised here would come back as something else
        outcome = Outcome(None, _as_fault(error))
    return {**_version(), "lines": notebook.written, "outcome": _packed(outcome)}


def read_result(outcome: Mapping[str, Any]) -> Outcome:
    """The outcome in what `perform_work` returned."""
    record = decode(outcome["record"]) if outcome["record"] else None
    assert record is None or isinstance(record, Experiment | FaultRecord)
    fault = _FAULTS[outcome["fault"]](outcome["message"]) if outcome["fault"] else None
    return Outcome(record, fault)


def outcome_among(lines: Sequence[Record]) -> Experiment | FaultRecord | None:
    """The end of an experiment, if its stored lines have one that is not followed by more."""
    last = lines[-1] if lines else None
    return last if isinstance(last, Experiment | FaultRecord) else None


_FAULTS: Mapping[str, type[Fault]] = {
    "CapReached": CapReached,
    "FatalFault": FatalFault,
    "NeedsCallError": NeedsCallError,
    "ReferenceFault": ReferenceFault,
    "Fault": Fault,
}


def _packed(outcome: Outcome) -> dict[str, Any]:
    fault = outcome.fault
    kind = next((name for name, kind in _FAULTS.items() if isinstance(fault, kind)), "")
    return {"record": encode(outcome.record) if outcome.record else b"", "fault": kind, "message": str(fault or "")}


def _version() -> dict[str, str]:
    return {"koderz": __version__, "digest": source_digest()}


def _as_fault(error: Exception) -> Fault:
    if isinstance(error, Fault):
        return error
    return FatalFault(str(error) or type(error).__name__)


async def _with_stored(work: Work, data: Mapping[str, Any], notebook: Notebook, shelf: Shelf) -> Work:
    """The work with what was stored for it and hadn't reached the journal yet, which is handed back again."""
    known = {line_key(record) for record in work.recorded}
    recorded = list(work.recorded)
    for line in await shelf.lines(data["run"], work.identity.experiment_id):
        for record in read_lines([line]):
            if line_key(record) not in known:
                recorded.append(record)
                notebook.written.append(line)
    return Work(work.identity, recorded)


def _end_of(work: Work, data: Mapping[str, Any]) -> Experiment | FaultRecord | None:
    """How it ended already, in a run of this very input whose result was lost on its way."""
    before = len(data["work"]["recorded"])
    return outcome_among(work.recorded[before:])


async def _ended(
    outcome: Outcome, work: Work, caller: MeteredCaller, notebook: Notebook, data: Mapping[str, Any]
) -> Outcome:
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
    return Outcome(record, outcome.fault)


def _with_compute(record: Experiment | FaultRecord, spent: float) -> Experiment | FaultRecord:
    if isinstance(record, FaultRecord):
        return replace(record, cost=record.cost + spent)
    tiers = record.cost_by_tier or {"local": record.cost}
    return replace(record, cost=record.cost + spent, cost_by_tier={**tiers, "compute": spent})
