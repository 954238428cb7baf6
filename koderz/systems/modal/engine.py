"""The engine `modal`: each experiment is a call of a deployed function, which goes on if this machine stops."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from koderz._version import __version__
from koderz.engines import Driver, Engine, carried
from koderz.engines.portable import (
    Files,
    changes_in,
    files_of,
    line_key,
    pack_plan,
    pack_work,
    read_lines,
    source_digest,
)
from koderz.engines.resources import notices_of, require_prices, shared_of
from koderz.errors import FatalFault, Fault, Unreachable
from koderz.experiments.budget import CapReached
from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
from koderz.experiments.runner import fault_of
from koderz.plans.plan import Plan
from koderz.settings.schema import Settings
from koderz.systems.modal.cloud import DEPLOY, Cloud, LostCallError
from koderz.systems.modal.names import (
    INPUTS,
    ModalOptions,
    cost_per_second,
    is_configured,
    names_of,
    require_apart,
)
from koderz.systems.modal.store import RemoteRun, RunStore
from koderz.systems.modal.worker import outcome_among, read_result
from koderz.types import EXCLUSIVE, JUDGE
from koderz_tracker import records
from koderz_tracker.records import Call, Compute, Record, Submitted

if TYPE_CHECKING:
    pass


SUBMITTING = 16  # at a time
POLLING = 32  # calls that are asked for at a time
PATIENCE = 5.0  # seconds that one is asked for while no other waits to be
# seconds, while others wait: a look in vain costs as much as one that finds something
IMPATIENCE = 2.0
CATCHING_UP = 5.0  # seconds between two looks at what one that is under way has stored
DEATHS = 3  # of workers over one experiment, after which it is a fault


class Submission:
    """The submissions of one session, from the first to the last that comes back."""

    def __init__(
        self,
        driver: Driver,
        cloud: Cloud,
        store: RunStore,
        rate: float,
        *,
        known: bool,
        notice: Callable[[str], None],
    ) -> None:
        """`rate`: US dollars a second of a container; `known`: the run was on Modal before, perhaps for another
        machine; `notice` tells users something once."""
        settings = driver.plan.settings
        self._driver, self._cloud, self._store, self._rate = driver, cloud, store, rate
        self._known, self._notice = known, notice
        window = (
            driver.plan.record.planned
            if driver.detach
            else (settings.of(ModalOptions).max_containers or 1) * INPUTS
        )
        self._allowances = Allowances(settings.max_cost, driver.spent, window)
        self._flights: asyncio.Queue[Flight] = asyncio.Queue()
        self._submitting: set[asyncio.Task[Any]] = set()
        self._submitted = 0
        self._under_way: dict[str, Flight] = {}  # by experiment

    async def run(self) -> None:
        """Runs until all have come back, or until all are submitted and the driver is to be detached."""
        works = self._driver.work()
        try:
            async with asyncio.TaskGroup() as group:
                polling = (
                    []
                    if self._driver.detach
                    else [group.create_task(self._poll()) for _ in range(POLLING)]
                )
                async with asyncio.TaskGroup() as submitting:
                    for _ in range(SUBMITTING):
                        submitting.create_task(self._submit(works))
                if self._submitted:
                    self._notice(
                        f"{self._submitted} experiments are submitted: your machine may disconnect. They go on at "
                        f"Modal, and koderz benchmark resume {self._store.run} picks them up, here or elsewhere"
                    )
                if not self._driver.detach:
                    await self._flights.join()
                for poller in polling:
                    poller.cancel()
        finally:
            if self._submitting:  # what was handed over has to be known
                await asyncio.wait(self._submitting)
        if self._driver.detach and self._under_way:
            self._driver.stop("detached", f"{len(self._under_way)} experiments are with Modal")

    # Submitting

    async def _submit(self, works: Iterator[PendingExperiment]) -> None:
        while True:
            await self._driver.room()
            if (work := next(works, None)) is None:
                return
            flight = Flight.of(work)
            if self._known and not flight.call_id and await self._found(flight):
                continue
            flight.allowance = await self._allowances.take()
            if not flight.call_id or flight.is_over:
                await self._safely(self._spawn(flight))
            self._under_way[flight.experiment_id] = flight
            self._flights.put_nowait(flight)

    async def _found(self, flight: Flight) -> bool:
        """Whether the store shows that the experiment has ended, for a journal that was elsewhere."""
        if (ended := await self._stored(flight)) is not None:
            await self._driver.settle(ExperimentOutcome(ended))
            return True
        flight.call_id = await self._store.claimed(flight.experiment_id)
        return False

    async def _stored(self, flight: Flight) -> records.Experiment | records.Fault | None:
        """Copies the stored lines of an experiment; returns its end if they have one."""
        stored = flight.new(read_lines(await self._store.lines(flight.experiment_id)))
        await self._copy(flight, stored)
        return outcome_among(stored)

    async def _safely(self, work: Coroutine[Any, Any, None]) -> None:
        """Completes work that must not be interrupted."""
        task = asyncio.create_task(work)
        self._submitting.add(task)
        task.add_done_callback(self._submitting.discard)
        await asyncio.shield(task)

    async def _spawn(self, flight: Flight) -> None:
        """Submits the experiment to Modal. The call's id is in the journal before it counts as submitted."""
        flight.spent = 0.0
        task = flight.work.identity.task.id
        call_id, url = await self._cloud.spawn(self._submission(flight))
        known = {
            "experiment_id": flight.experiment_id,
            "problem_id": task,
            "call_id": call_id,
            "url": url,
        }
        await self._driver.record(Submitted(engine="modal", **known))
        flight.call_id = call_id
        self._submitted += 1
        if self._submitted == 1:
            self._notice(f"on Modal: {url}")

    def _submission(self, flight: Flight) -> dict[str, Any]:
        return {
            "run": self._store.run,
            "work": pack_work(flight.to_replay(), self._driver.text),
            "how": msgspec.to_builtins(self._driver.how),
            "changes": changes_in(self._driver.plan),
            "allowance": flight.allowance,
            "rate": self._rate,
            "gpu": self._driver.plan.settings.of(ModalOptions).gpu or "",
            "after": flight.call_id,
        }

    # Picking up

    async def _poll(self) -> None:
        while True:
            flight = await self._flights.get()
            try:
                await self._look_at(flight)
            finally:
                self._flights.task_done()

    async def _look_at(self, flight: Flight) -> None:
        try:
            result = await self._cloud.result(
                flight.call_id, IMPATIENCE if self._flights.qsize() else PATIENCE
            )
        except LostCallError as error:
            await self._recover(flight, str(error))
            return
        if result is None:
            await self._catch_up(flight)
            self._flights.put_nowait(flight)
        elif holder := result.get("elsewhere"):
            flight.call_id = holder
            self._flights.put_nowait(flight)
        else:
            await self._land(flight, result)

    async def _catch_up(self, flight: Flight) -> None:
        """Copies the lines that the worker has stored since the last time; not at every call."""
        if time.monotonic() - flight.caught_up < CATCHING_UP:
            return
        flight.caught_up = time.monotonic()
        lines = await self._store.new_lines(flight.experiment_id, flight.stored)
        flight.stored += len(lines)
        await self._copy(flight, read_lines(lines))

    async def _copy(self, flight: Flight, lines: Sequence[Record]) -> None:
        """Records the lines that the journal lacks, each once; an experiment's end is left to `settle`."""
        if new := [line for line in flight.new(lines) if not is_outcome(line)]:
            await self._driver.record(*new)
            flight.note(new)

    async def _land(self, flight: Flight, result: Mapping[str, Any]) -> None:
        if result["digest"] != source_digest():
            self._notice(
                f"on Modal runs koderz {result['koderz']} of another source than here; run: {DEPLOY}"
            )
        await self._copy(flight, read_lines(result["lines"]))
        outcome = read_result(result["outcome"])
        enough = self._allowances.is_all(flight.allowance)
        await self._allowances.give_back(flight.allowance, flight.spent)
        if isinstance(outcome.fault, CapReached) and not enough and not self._driver.stopping:
            await self._again(flight, least=2 * (flight.allowance or 0.0))
            return
        await self._settle(flight, outcome)

    async def _settle(self, flight: Flight, outcome: ExperimentOutcome) -> None:
        self._under_way.pop(flight.experiment_id, None)
        await self._driver.settle(outcome)
        if isinstance(outcome.fault, FatalFault):
            await self._give_up()

    async def _give_up(self) -> None:
        """Cancels the experiments that can only end the same way."""
        flights = list(self._under_way.values())
        self._under_way.clear()
        for flight in flights:
            await self._cloud.cancel(flight.call_id)

    async def _recover(self, flight: Flight, reason: str) -> None:
        """Handles the loss of a worker: copies its stored lines, and queues the experiment again with them."""
        if flight.experiment_id not in self._under_way:  # it was given up
            return
        ended = await self._stored(flight)
        await self._allowances.give_back(flight.allowance, flight.spent)
        flight.deaths += 1
        if ended is not None:
            await self._settle(flight, ExperimentOutcome(ended))
        elif flight.deaths > DEATHS:
            fault = Fault(
                f"its worker on Modal was lost {flight.deaths} times, at last: {reason}",
                cause="worker_lost",
            )
            await self._settle(flight, ExperimentOutcome(flight.lost(fault), fault))
        else:
            await self._again(flight, least=flight.allowance or 0.0)

    async def _again(self, flight: Flight, least: float) -> None:
        flight.allowance = await self._allowances.take(least)
        flight.stored = 0
        await self._safely(self._spawn(flight))
        self._flights.put_nowait(flight)


class Allowances:
    """Divides the run's cost cap into allowances for experiments, which can't ask each other.

    Amounts are US dollars. `window`: how many experiments the money that is left is shared by at a time.
    """

    def __init__(self, cap: float | None, spent: float, window: int) -> None:
        self._cap, self._spent, self._window = cap, spent, max(1, window)
        self._reserved = 0.0
        self._out = 0  # allowances
        self._returned = asyncio.Condition()

    async def take(self, least: float = 0.0) -> float | None:
        """An allowance of at least `least`, if so much is left; None if the run has no cap."""
        if self._cap is None:
            return None
        async with self._returned:
            while True:
                left = max(0.0, self._cap - self._spent)
                share = min(max(left / self._window, least), left)
                if share <= left - self._reserved or not self._out:
                    break
                await self._returned.wait()
            self._reserved += share
            self._out += 1
            return share

    async def give_back(self, share: float | None, spent: float) -> None:
        """Ends an allowance, of which `spent` was used."""
        async with self._returned:
            self._spent += spent
            if share is not None:
                self._out -= 1
                self._reserved = self._reserved - share if self._out else 0.0
            self._returned.notify_all()

    def is_all(self, share: float | None) -> bool:
        """Whether this allowance was all that was left, so that another one would not help."""
        return share is None or self._cap is None or share >= (self._cap - self._spent) * 0.999


@dataclass(slots=True)
class Flight:
    """An experiment that was submitted, or is about to be."""

    work: PendingExperiment
    call_id: str  # empty: not submitted yet
    recorded: list[Record]  # by now, in order
    allowance: float | None = None  # US dollars; None: no cap
    stored: int = 0  # how many of its lines have been seen in the store
    caught_up: float = field(default_factory=time.monotonic)  # when its lines were looked at last
    deaths: int = 0
    spent: float = 0.0  # US dollars since it was submitted

    @classmethod
    def of(cls, work: PendingExperiment) -> Flight:
        """The state of the experiment by its journal."""
        calls = [record.call_id for record in work.recorded if isinstance(record, Submitted)]
        return cls(work, calls[-1] if calls else "", [*work.recorded])

    @property
    def experiment_id(self) -> str:
        return self.work.identity.experiment_id

    @property
    def is_over(self) -> bool:
        """Whether the experiment ended after its last submission, and is to be worked on again."""
        last = [r for r in self.work.recorded if isinstance(r, Submitted) or is_outcome(r)][-1:]
        return bool(last) and is_outcome(last[0])

    def new(self, lines: Iterable[Record]) -> list[Record]:
        """The lines that the journal lacks."""
        known = {line_key(record) for record in self.recorded}
        return [line for line in lines if line_key(line) not in known]

    def note(self, lines: Sequence[Record]) -> None:
        """Marks lines as recorded."""
        self.recorded += lines
        self.spent += sum(line.cost for line in lines if isinstance(line, Call | Compute))

    def to_replay(self) -> PendingExperiment:
        """The experiment with all records that a worker needs."""
        recorded = [r for r in self.recorded if not isinstance(r, Submitted)]
        return self.work._replace(recorded=recorded)

    def lost(self, fault: Fault) -> records.Fault:
        """The record of the experiment's end if it can't be run."""
        paid = [r for r in self.recorded if isinstance(r, Call | Compute)]
        calls = sum(isinstance(line, Call) for line in paid)
        return fault_of(
            self.work.identity, fault, cost=sum(line.cost for line in paid), calls=calls
        )


def is_outcome(record: Record) -> bool:
    return isinstance(record, records.Experiment | records.Fault)


def _limits(max_containers: int | None, concurrency: int) -> dict[str, Any]:
    """The numbers of containers and of experiments in each, for the concurrency that is allowed."""
    containers = max_containers or math.ceil(concurrency / INPUTS)
    return {
        "max_containers": containers,
        "max_inputs": min(INPUTS, math.ceil(concurrency / containers)),
    }


class ModalEngine(Engine):
    """Submits the remaining experiments of a run, and collects their results."""

    name = "modal"
    isolation = "modal"  # what programs are judged in, see `require_apart`
    outlives = True
    can = frozenset({JUDGE, "session", "long_context", "evaluator", "gpu"})
    carries = frozenset({"workspace", EXCLUSIVE})
    options = ModalOptions
    view = RemoteRun

    @classmethod
    def settle(cls, settings: Settings, given: Container[str]) -> Settings:
        """The settings with Modal's sandbox, unless another is given. KoderzError for one that is not separate."""
        if "sandbox" not in given:
            settings = replace(settings, sandbox="modal")
        require_apart(settings.sandbox)
        return settings

    @classmethod
    async def stored(cls, run_id: str, environ: Mapping[str, str]) -> tuple[bytes, RunStore] | None:
        """The plan and the store of a run on the volume there."""
        if not is_configured(environ):
            return None
        store = RunStore(names_of(environ), run_id)
        plan = await store.plan()
        return (plan, store) if plan is not None else None

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        super().__init__(plan, environ)
        settings = plan.settings
        self.notices: list[str] = []
        self._plan, self._environ = plan, environ
        self._files: Files | None = None
        own = settings.of(ModalOptions)
        names = names_of(environ)
        self._limits = _limits(own.max_containers, settings.concurrency) if carried(plan) else {}
        self._cloud = Cloud(
            names, **{"gpu": own.gpu, "max_containers": own.max_containers, **self._limits}
        )
        self._store = RunStore(names, plan.name)
        # an experiment of these has one of its own
        sandboxes = self._limits.get("max_inputs", settings.judges)
        self._rate = cost_per_second(
            own.gpu, sandboxes=sandboxes, sandbox_mb=plan.judging.memory_mb
        )

    async def check(self) -> dict[str, Any]:
        """The deployed version and its price. Raises Unreachable if it isn't this koderz."""
        require_prices(self._plan, self._environ)
        about = await self._cloud.about()
        await self._cloud.look_up()
        begun = "modal" in self._plan.record.environment
        self._compare(about, begun=begun)
        # all that is to be sent is at hand, and what the suite would refuse there is refused here
        if not begun:
            if carried(self._plan):
                async with shared_of(self._plan, self._environ) as shared:
                    self.notices += notices_of(shared)
            self._files = await asyncio.to_thread(files_of, self._plan)
        facts = {
            "app": self._cloud.names.app,
            "volume": self._cloud.names.volume,
            "digest": about["digest"],
        }
        facts |= {"cost_per_second": self._rate, **self._limits}
        return {"modal": facts, "sandbox": self.isolation}

    async def run(self, driver: Driver) -> None:
        """Submits all remaining experiments, then waits for them, unless the driver is to be detached."""
        known = await self._store.plan() is not None
        if not known:
            if self._files is None:
                self._files = await asyncio.to_thread(files_of, self._plan)
            await self._store.put_plan(pack_plan(driver.plan, self._files))
        await Submission(
            driver, self._cloud, self._store, self._rate, known=known, notice=self._tell
        ).run()

    def _tell(self, text: str) -> None:
        """Shows the user a text once."""
        if text not in self.notices:
            self.notices.append(text)

    def _compare(self, about: Mapping[str, Any], *, begun: bool) -> None:
        """Raises Unreachable if other code is deployed, unless the run has begun with it."""
        if about.get("digest") == source_digest():
            return
        deployed = f"{about.get('koderz')} ({about.get('digest')})"
        text = f"on Modal runs koderz {deployed}, here {__version__} ({source_digest()}); run: {DEPLOY}"
        if not begun:
            raise Unreachable(text)
        self._tell(text)
