"""Modal: each experiment is a call of a deployed function, which goes on whatever becomes of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from koderz._version import __version__
from koderz.budget import CapReached
from koderz.engines import Driver, Outcome, Work
from koderz.engines.allowances import Allowances
from koderz.engines.modal_cloud import DEPLOY, Cloud, LostCallError
from koderz.engines.modal_names import INPUTS, cost_per_second, names_of
from koderz.engines.modal_result import outcome_among, read_result
from koderz.engines.modal_store import RunStore
from koderz.engines.portable import line_key, pack_plan, pack_work, read_lines, source_digest
from koderz.errors import FatalFault, Fault, Unreachable
from koderz.opening import require_prices
from koderz.plan import Plan
from tracker import records
from tracker.records import Call, Compute, Record, Submitted

if TYPE_CHECKING:
    from koderz.models.limiter import Throttle

SUBMITTING = 16  # at a time
POLLING = 32  # calls that are asked for at a time
PATIENCE = 5.0  # seconds that one is asked for while no other waits to be
IMPATIENCE = 0.5  # seconds, while others wait
DEATHS = 3  # of workers over one experiment, after which it is a fault


@asynccontextmanager
async def open_modal(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[ModalEngine]:
    """Raises KoderzError for a plan that can't run there."""
    yield ModalEngine(plan, environ)


@dataclass(slots=True)
class Flight:
    """An experiment that was submitted."""

    work: Work
    call_id: str
    allowance: float | None
    recorded: list[Record] = field(default_factory=list)  # what came since, in order
    stored: int = 0  # how many of its lines have been seen in the store
    deaths: int = 0
    spent: float = 0.0  # US dollars since it was submitted

    def known(self) -> set[tuple[str, str, str]]:
        return {line_key(record) for record in (*self.work.recorded, *self.recorded)}


class ModalEngine:
    """Submits what is left of a run, and picks up what comes of it."""

    name = "modal"
    rung = "modal"  # what programs are judged in, see `require_apart`
    outlives = True

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        settings = plan.settings
        self.notices: list[str] = []
        self.throttle: Sequence[Throttle] = ()
        self._plan, self._environ = plan, environ
        self._rate = cost_per_second(settings.gpu, sandboxes=settings.judges, sandbox_mb=settings.test_memory)
        names = names_of(environ)
        self._cloud = Cloud(names, gpu=settings.gpu, max_containers=settings.max_containers)
        self._store = RunStore(names, plan.name)

    async def check(self) -> dict[str, Any]:
        """What was deployed, and at what price it runs. Unreachable where that isn't this koderz."""
        if self._plan.settings.max_cost is not None:
            require_prices(self._plan, self._environ)
        about = await self._cloud.about()
        await self._cloud.look_up()
        self._compare(about, begun="modal" in self._plan.record.environment)
        facts = {"app": self._cloud.names.app, "volume": self._cloud.names.volume, "digest": about["digest"]}
        return {"modal": facts | {"cost_per_second": self._rate}, "sandbox": self.rung}

    async def run(self, driver: Driver) -> None:
        """Submits all that is left, then waits for it, unless the driver is to be detached."""
        known = await self._store.plan() is not None
        if not known:
            await self._store.put_plan(pack_plan(self._plan))
        voyage = _Voyage(self, driver, self._cloud, self._store, self._rate, known=known)
        await voyage.sail()

    def notice(self, text: str) -> None:
        """Tells users something once."""
        if text not in self.notices:
            self.notices.append(text)

    def _compare(self, about: Mapping[str, Any], *, begun: bool) -> None:
        """Raises Unreachable where other code is deployed; a run that has begun there is picked up all the same."""
        if about.get("digest") == source_digest():
            return
        deployed = f"{about.get('koderz')} ({about.get('digest')})"
        text = f"on Modal runs koderz {deployed}, here {__version__} ({source_digest()}); run: {DEPLOY}"
        if not begun:
            raise Unreachable(text)
        self.notice(text)


class _Voyage:
    """One session's submissions, from the first to the last that has come back."""

    def __init__(
        self, engine: ModalEngine, driver: Driver, cloud: Cloud, store: RunStore, rate: float, *, known: bool
    ) -> None:
        """`known`: the run was on Modal before, perhaps for another machine."""
        settings = driver.plan.settings
        self._engine, self._driver, self._cloud, self._store, self._rate = engine, driver, cloud, store, rate
        self._known = known
        window = driver.plan.record.planned if driver.detach else (settings.max_containers or 1) * INPUTS
        self._allowances = Allowances(settings.max_cost, driver.spent, window)
        self._flights: asyncio.Queue[Flight] = asyncio.Queue()
        self._submitting: set[asyncio.Task[Any]] = set()
        self._submitted = 0
        self._under_way: dict[str, Flight] = {}  # by experiment

    async def sail(self) -> None:
        """Ends when all has come back, or all is submitted and the driver is to be detached."""
        works = self._driver.work()
        try:
            async with asyncio.TaskGroup() as group:
                polling = [] if self._driver.detach else [group.create_task(self._poll()) for _ in range(POLLING)]
                async with asyncio.TaskGroup() as submitting:
                    for _ in range(SUBMITTING):
                        submitting.create_task(self._submit(works))
                self._tell_submitted()
                if not self._driver.detach:
                    await self._flights.join()
                for poller in polling:
                    poller.cancel()
        finally:
            if self._submitting:  # what was handed over has to be known
                await asyncio.wait(self._submitting)
        if self._driver.detach and self._under_way:
            self._driver.stop("detached", f"{len(self._under_way)} experiments are with Modal")

    def _tell_submitted(self) -> None:
        if self._submitted:
            run = self._driver.plan.name
            self._engine.notice(
                f"{self._submitted} experiments are submitted: your machine may disconnect. They go on at Modal, and "
                f"koderz benchmark resume {run} picks them up, here or elsewhere"
            )

    # Submitting

    async def _submit(self, works: Iterator[Work]) -> None:
        for work in works:
            flight = Flight(work, _submitted_as(work), None)
            if self._known and not flight.call_id and await self._found(flight):
                continue
            flight.allowance = await self._allowances.take()
            if not flight.call_id or _is_over(work):
                await self._safely(self._spawn(flight))
            self._under_way[work.identity.experiment_id] = flight
            self._flights.put_nowait(flight)

    async def _found(self, flight: Flight) -> bool:
        """Whether the experiment has ended, by what lies in the store for a journal that was elsewhere."""
        experiment_id = flight.work.identity.experiment_id
        known = flight.known()
        stored = [line for line in read_lines(await self._store.lines(experiment_id)) if line_key(line) not in known]
        await self._copy(flight, [line for line in stored if not _is_outcome(line)])
        if (ended := outcome_among(stored)) is not None:
            await self._driver.settle(Outcome(ended))
            return True
        flight.call_id = await self._store.claimed(experiment_id)
        return False

    async def _safely(self, work: Coroutine[Any, Any, None]) -> None:
        """Sees something through that must not be cut off in the middle."""
        task = asyncio.create_task(work)
        self._submitting.add(task)
        task.add_done_callback(self._submitting.discard)
        await asyncio.shield(task)

    async def _spawn(self, flight: Flight) -> None:
        """Hands the experiment to Modal. The call's id is in the journal before it counts as submitted."""
        flight.spent = 0.0
        identity = flight.work.identity
        call_id, url = await self._cloud.spawn(self._submission(flight))
        await self._driver.record(
            Submitted(
                experiment_id=identity.experiment_id,
                problem_id=identity.task.id,
                engine="modal",
                call_id=call_id,
                url=url,
            )
        )
        flight.call_id = call_id
        self._submitted += 1
        if self._submitted == 1:
            self._engine.notice(f"on Modal: {url}")

    def _submission(self, flight: Flight) -> dict[str, Any]:
        recorded = [r for r in (*flight.work.recorded, *flight.recorded) if not isinstance(r, Submitted)]
        work = replace(flight.work, recorded=recorded)
        return {
            "run": self._store.run,
            "work": pack_work(work, self._driver.text),
            "how": msgspec.to_builtins(self._driver.how),
            "allowance": flight.allowance,
            "rate": self._rate,
            "gpu": self._driver.plan.settings.gpu or "",
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
            result = await self._cloud.result(flight.call_id, IMPATIENCE if self._flights.qsize() else PATIENCE)
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
        """Copies what the worker has stored since the last look."""
        lines = await self._store.new_lines(flight.work.identity.experiment_id, flight.stored)
        flight.stored += len(lines)
        await self._copy(flight, [record for record in read_lines(lines) if not _is_outcome(record)])

    async def _copy(self, flight: Flight, lines: Sequence[Record]) -> None:
        """Records those lines that the journal doesn't have yet, each once."""
        known = flight.known()
        new = [line for line in lines if line_key(line) not in known]
        if not new:
            return
        await self._driver.record(*new)
        flight.recorded += new
        flight.spent += sum(line.cost for line in new if isinstance(line, Call | Compute))

    async def _land(self, flight: Flight, result: Mapping[str, Any]) -> None:
        if result["digest"] != source_digest():
            self._engine.notice(f"on Modal runs koderz {result['koderz']} of another source than here; run: {DEPLOY}")
        await self._copy(flight, [line for line in read_lines(result["lines"]) if not _is_outcome(line)])
        outcome = read_result(result["outcome"])
        enough = self._allowances.is_all(flight.allowance)
        await self._allowances.give_back(flight.allowance, flight.spent)
        if isinstance(outcome.fault, CapReached) and not enough and not self._driver.stopping:
            await self._again(flight, least=2 * (flight.allowance or 0.0))
            return
        await self._settle(flight, outcome)

    async def _settle(self, flight: Flight, outcome: Outcome) -> None:
        self._under_way.pop(flight.work.identity.experiment_id, None)
        await self._driver.settle(outcome)
        if isinstance(outcome.fault, FatalFault):
            await self._give_up()

    async def _give_up(self) -> None:
        """Ends what can only end the same way."""
        flights = list(self._under_way.values())
        self._under_way.clear()
        for flight in flights:
            await self._cloud.cancel(flight.call_id)

    async def _recover(self, flight: Flight, reason: str) -> None:
        """The worker is gone: what it had stored is copied, and the experiment put back with that."""
        experiment_id = flight.work.identity.experiment_id
        if experiment_id not in self._under_way:  # it was given up
            return
        known = flight.known()
        stored = [line for line in read_lines(await self._store.lines(experiment_id)) if line_key(line) not in known]
        await self._copy(flight, [line for line in stored if not _is_outcome(line)])
        await self._allowances.give_back(flight.allowance, flight.spent)
        flight.deaths += 1
        if (ended := outcome_among(stored)) is not None:
            await self._settle(flight, Outcome(ended))
        elif flight.deaths > DEATHS:
            fault = Fault(f"its worker on Modal was lost {flight.deaths} times, at last: {reason}")
            await self._settle(flight, Outcome(_fault(flight, fault), fault))
        else:
            await self._again(flight, least=flight.allowance or 0.0)

    async def _again(self, flight: Flight, least: float) -> None:
        flight.allowance = await self._allowances.take(least)
        flight.stored = 0
        await self._safely(self._spawn(flight))
        self._flights.put_nowait(flight)


def _submitted_as(work: Work) -> str:
    """The call that has this experiment, by the journal; empty where none has."""
    calls = [record.call_id for record in work.recorded if isinstance(record, Submitted)]
    return calls[-1] if calls else ""


def _is_over(work: Work) -> bool:
    """Whether the experiment had ended after it was submitted last, and is to be worked on again."""
    last = [r for r in work.recorded if isinstance(r, Submitted) or _is_outcome(r)][-1:]
    return bool(last) and _is_outcome(last[0])


def _is_outcome(record: Record) -> bool:
    return isinstance(record, records.Experiment | records.Fault)


def _fault(flight: Flight, fault: Fault) -> records.Fault:
    identity = flight.work.identity
    calls = [r for r in (*flight.work.recorded, *flight.recorded) if isinstance(r, Call | Compute)]
    return records.Fault(
        experiment_id=identity.experiment_id,
        problem_id=identity.task.id,
        solver=identity.solver,
        sample=identity.sample,
        reason=str(fault),
        cost=sum(call.cost for call in calls),
        calls=sum(isinstance(call, Call) for call in calls),
    )
