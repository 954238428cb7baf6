"""One experiment in a container: what it is told is read back first, what it does is stored before it counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from koderz.engines.portable import line_key, read_lines, unpack_work
from koderz.errors import FatalFault, Fault
from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
from koderz.experiments.replay import Replaying
from koderz.experiments.runner import ExperimentRunner
from koderz.modal.container import ContainerState, MeteredCaller
from koderz.modal.result import outcome_among, performed_by, result_of
from koderz.modal.store import ContainerShelf
from tracker.records import Compute, Experiment, Record, Text, encode
from tracker.records import Fault as FaultRecord


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
    data: Mapping[str, Any], call_id: str, shelf: ContainerShelf, state_of: Callable[[], Awaitable[ContainerState]]
) -> dict[str, Any]:
    """Performs what `modal.submission` describes; `modal_result` has what it returns. Never raises.

    What an earlier run of the same input has stored is replayed, not paid for again.
    """
    run, experiment_id = data["run"], data["work"]["experiment_id"]
    notebook = Notebook(shelf, run, experiment_id)
    try:
        holder = await shelf.claim(run, experiment_id, call_id, data["after"])
        if holder != call_id:
            return performed_by(holder)
        state = await state_of()
        work = await _with_stored(unpack_work(data["work"], state.resources.plan), data, notebook, shelf)
        if (ended := _end_of(work, data)) is None:
            caller = MeteredCaller(state, data["allowance"], data["rate"])
            runner = ExperimentRunner(state.resources, caller, notebook, Replaying(**data["how"]))
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
        return replace(record, cost=record.cost + spent)
    tiers = record.cost_by_tier or {"local": record.cost}
    return replace(record, cost=record.cost + spent, cost_by_tier={**tiers, "compute": spent})
