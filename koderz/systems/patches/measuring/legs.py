"""Processes that run workloads, timed from outside, and those that make inputs and compare outputs."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from koderz.errors import Fault
from koderz.sandbox.frames import OversizeError, frame, take
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import CHECKOUT, Command, Limits, Mount, Running, Timed
from koderz.systems.patches.measuring.verdicts import Leg, Timing, require_sound
from koderz.systems.patches.tasks import PerfTask

if TYPE_CHECKING:
    from koderz.solvers.definition import ExclusiveHandle


MOST = 256 << 20  # bytes of one message
_MESSAGE = b"m"  # the kind of frame that one is


class ProtocolBroken(Exception):
    """The other side broke the protocol or fell silent."""


@dataclass(slots=True)
class Frames:
    """Messages to and from a process, each a frame."""

    running: Running
    _buffer: bytearray = field(default_factory=bytearray)

    async def send(self, *contents: bytes) -> None:
        """Sends messages. Raises Lost if the process doesn't read any more."""
        framed = b"".join(frame(_MESSAGE, content) for content in contents)
        with _lost():
            await asyncio.get_running_loop().sock_sendall(self.running.channel, framed)

    async def receive(self) -> bytes:
        """The next message. Raises Lost if there is none, or it is too large."""
        loop = asyncio.get_running_loop()
        try:
            while not (found := take(self._buffer, MOST)):
                with _lost():
                    part = await loop.sock_recv(self.running.channel, 1 << 20)
                if not part:
                    raise ProtocolBroken("")
                self._buffer += part
        except OversizeError:
            raise ProtocolBroken(f"an output is larger than {MOST >> 20} MB") from None
        return found[2]


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise ProtocolBroken("") from None


async def how_ended(running: Running) -> str:
    """The way in which a process ended too early, as text."""
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            ended = await asyncio.shield(running.ended)
            return f"{ended.cause or f'exit code {ended.status}'}: {ended.output[-500:].strip()}"
    return "it says nothing more"


GUEST = Path(__file__).parents[1] / "guest"
TOOLS = "/opt/koderz/perf"
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_REFEREE_SECONDS = 86_400.0
_LEAST = 0.001  # seconds that a comparison has
# that an output which is as good as another may be longer: times, and bytes
_MOST_LONGER, _MOST_MORE = 4, 1 << 16


class Call(NamedTuple):
    """One call of a workload: its name and input, as JSON."""

    workload: str
    input: bytes


class Reading(NamedTuple):
    """Clock readings in nanoseconds: a process's CPU, the wall clock, hidden CPU, and the core's busy time."""

    cpu: int
    wall: int
    hidden: int = 0  # see `Unseen`
    busy: int = 0


class CallTimes(NamedTuple):
    """The times of one call, in nanoseconds."""

    cpu: int
    wall: int
    between: int  # CPU since the last call ended
    hidden: int = 0
    busy: int = 0


class LegOutputs(NamedTuple):
    """A leg, and the outputs of its calls as far as it came."""

    leg: Leg
    outputs: Sequence[bytes]


class Legs:
    """Runs the legs of one task."""

    def __init__(self, task: PerfTask, backend: Timed, seconds: float) -> None:
        self._task, self._backend, self._seconds = task, backend, seconds

    async def run(self, tree: Path, calls: Sequence[Call], core: int | None) -> LegOutputs:
        """Runs one process that makes these calls on a tree; a workload's first call isn't counted."""
        outputs: list[bytes] = []
        times: dict[str, list[CallTimes]] = {}
        before = Reading(0, 0)

        async def talk(frames: Frames) -> None:
            await self._open(frames)
            nonlocal before
            before = await clock_of(frames.running)
            for call in calls:
                output, began, ended = await _called(frames, call)
                outputs.append(output)
                if sum(map(len, outputs)) > MOST:
                    raise ProtocolBroken(f"its outputs are larger than {MOST >> 20} MB")
                times.setdefault(call.workload, []).append(passed(before, began, ended))
                before = ended
            await frames.send(b"")

        with scratch() as place:
            (place / "checkout").symlink_to(tree)
            leg = await self.process(["python3", "-s", "-B", f"{TOOLS}/leg.py"], place, core, talk)
        after = after_calls(leg, before, len(calls))
        work = {
            name: timing_of(taken[1:], after) for name, taken in times.items() if len(taken) > 1
        }
        return LegOutputs(replace(leg, work=work), outputs)

    async def process(
        self,
        argv: Sequence[str],
        place: Path,
        core: int | None,
        talk: Callable[[Frames], Awaitable[None]],
        mounts: Sequence[Mount] = (),
    ) -> Leg:
        """Runs a contained process that `talk` communicates with; returns its times and what went wrong."""
        wanted = Command(
            argv,
            ENVIRONMENT,
            [Mount(GUEST, TOOLS), *mounts],
            read_only=True,
            core=-1 if core is None else core,
            forks=self._task.needs.processes,
            limits=Limits(
                seconds=self._seconds + 30, memory_mb=self._task.needs.memory_mb, grace=0.5
            ),
        )
        began, wrong = time.monotonic(), ""
        async with self._backend.started(wanted, place) as running:
            try:
                async with asyncio.timeout(self._seconds):
                    await talk(Frames(running))
                    ended = await asyncio.shield(running.ended)  # which a timeout would cancel
            except ProtocolBroken as error:
                wrong = str(error) or await how_ended(running)
            except TimeoutError:
                wrong = f"timeout: a leg takes longer than {self._seconds:g} s"
            else:
                wrong = (
                    "" if not ended.status else f"exit code {ended.status}: {ended.output[-500:]}"
                )
            cpu = running.ended.result().cpu if running.ended.done() else 0.0
        return Leg(cpu, time.monotonic() - began, wrong=wrong)

    async def _open(self, frames: Frames) -> None:
        order = {"path": f"{CHECKOUT}/{self._task.path}", "workloads": dict(self._task.workloads)}
        await frames.send(json.dumps(order).encode())
        await frames.receive()


async def _called(frames: Frames, call: Call) -> tuple[bytes, Reading, Reading]:
    """The output of a call, and the clocks at "go" and at its last byte."""
    await frames.send(call.workload.encode(), call.input)
    await frames.receive()
    began = await clock_of(frames.running)
    await frames.send(b"go")
    output = await frames.receive()
    return output, began, await clock_of(frames.running)


def passed(before: Reading, began: Reading, ended: Reading) -> CallTimes:
    """The times of a call and of the gap `before` it, at least a nanosecond, since they are divisors."""
    hidden, busy = ended.hidden - began.hidden, ended.busy - began.busy
    cpu, wall = ended.cpu - began.cpu, ended.wall - began.wall
    return CallTimes(max(1, cpu), max(1, wall), began.cpu - before.cpu, max(0, hidden), busy)


async def clock_of(running: Running) -> Reading:
    """The present clock readings. Raises Lost if the process is gone."""
    try:
        return Reading(await running.cpu(), time.monotonic_ns(), *running.unseen())
    except OSError:
        raise ProtocolBroken("") from None


def after_calls(leg: Leg, ended: Reading, count: int) -> float:
    """The nanoseconds per call that a process took from when the last call `ended` to its own end."""
    return max(0.0, leg.cpu * 1e9 - ended.cpu) / max(1, count)


def timing_of(taken: Sequence[CallTimes], after: float = 0.0) -> Timing:
    """The timing of all calls together. `after`: further nanoseconds for each of them."""
    cpu, wall, between, *_ = (median(each) / 1e9 for each in zip(*taken, strict=True))
    total, waits, hidden, busy = (
        sum(each) / 1e9
        for each in zip(*((t.cpu, t.between, t.hidden, t.busy) for t in taken), strict=True)
    )
    beside = (total + waits) / len(taken) + after / 1e9 - cpu
    return Timing(cpu, wall, total, between, hidden, busy, beside)


class Referee:
    """Makes inputs and compares outputs, with a time limit for all of it."""

    def __init__(self, frames: Frames, seconds: float) -> None:
        self._frames, self._seconds, self._left = frames, seconds, seconds

    async def inputs(self, workload: str, seed: str, number: int) -> Call:
        """An input of a workload. Raises Fault if the workload makes none."""
        order = {"workload": workload, "seed": seed, "number": number}
        return Call(workload, await self._asked(json.dumps(order).encode()))

    async def same(self, call: Call, expected: bytes, output: bytes) -> bool:
        """Whether an output equals the expected one; false if comparing takes too long.

        Raises Fault where it can't be told of the expected one either.
        """
        if output == expected:
            return True
        if len(output) > _MOST_LONGER * len(expected) + _MOST_MORE:
            return False  # nobody reads what is made to be too much
        try:
            json.loads(output)
        except (ValueError, RecursionError):
            return False
        order = json.dumps(
            {"workload": call.workload, "seconds": max(_LEAST, self._left / 4)}
        ).encode()
        return await self._asked(order, expected, output, call.input) == b"same"

    async def _asked(self, *contents: bytes) -> bytes:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                await self._frames.send(*contents)
                return await self._frames.receive()
        except TimeoutError:
            raise Fault(
                f"base_failed: the workload's own code takes longer than {self._seconds:g} s",
                cause="base_failed",
            ) from None
        except ProtocolBroken as error:
            why = str(error) or await how_ended(self._frames.running)
            raise Fault(
                f"base_failed: the workload's own code: {why}", cause="base_failed"
            ) from None
        finally:
            self._left -= time.monotonic() - began


@asynccontextmanager
async def referee(
    workloads: Mapping[str, str], backend: Timed, seconds: float
) -> AsyncIterator[Referee]:
    """A process of its own, without the code under test. `seconds`: the time limit for all its work."""
    wanted = Command(
        ["python3", "-s", "-B", f"{TOOLS}/referee.py"],
        ENVIRONMENT,
        [Mount(GUEST, TOOLS)],
        read_only=True,
        forks=False,
        limits=Limits(seconds=_REFEREE_SECONDS, grace=0.5),
    )
    with scratch() as place:
        async with backend.started(wanted, place) as running:
            frames = Frames(running)
            found = Referee(frames, seconds)
            await found._asked(json.dumps({"workloads": dict(workloads)}).encode())
            yield found


ENOUGH = 0.15  # seconds of CPU that a workload takes in a leg on base, at least
_TRIAL_CALLS, _MOST_CALLS = 4, 100
_MOST_DRAWS = 10  # in times of the inputs that are needed


class Workloads:
    """The `Work` of tasks whose workloads define `inputs` and `call`."""

    def __init__(self, task: PerfTask, backend: Timed, seconds: float) -> None:
        self._task, self._backend, self._seconds = task, backend, seconds
        self._legs = Legs(task, backend, seconds)

    async def sized(self, tree: Path, seed: str, exclusive: ExclusiveHandle) -> dict[str, int]:
        """The number of calls of each workload in a leg after the first."""
        counts = {}
        async with referee(self._task.workloads, self._backend, self._seconds) as judge:
            for name in self._task.workloads:
                calls = [
                    await judge.inputs(name, f"{seed}/calls/{n}", n) for n in range(_TRIAL_CALLS)
                ]
                async with exclusive() as core:
                    ran = await self._legs.run(tree, calls, core)
                require_sound(ran.leg, "base")
                counts[name] = min(_MOST_CALLS, math.ceil(ENOUGH / ran.leg.work[name].cpu))
        return counts

    async def block(
        self,
        trees: Mapping[str, Path],
        counts: Mapping[str, int],
        seed: str,
        exclusive: ExclusiveHandle,
    ) -> dict[str, Leg]:
        """Runs all legs on the same inputs, which no other block uses."""
        async with referee(self._task.workloads, self._backend, self._seconds) as judge:
            calls = [
                call
                for name, count in counts.items()
                for call in await _fresh(judge, name, seed, count + 1)
            ]
            async with exclusive() as core:
                ran = {leg: await self._legs.run(tree, calls, core) for leg, tree in trees.items()}
            return {leg: await _compared(judge, calls, ran["base"], ran[leg]) for leg in trees}


async def _fresh(judge: Referee, workload: str, seed: str, count: int) -> Sequence[Call]:
    """A number of different inputs. Raises Fault if a workload can't make as many."""
    calls: dict[bytes, Call] = {}
    for number in range(_MOST_DRAWS * count):
        call = await judge.inputs(workload, f"{seed}/{number}", number)
        calls.setdefault(call.input, call)
        if len(calls) == count:
            return [*calls.values()]
    raise Fault(
        f"base_failed: {workload} makes only {len(calls)} different inputs; draw more of each by its `rng`",
        cause="base_failed",
    )


async def _compared(
    judge: Referee, calls: Sequence[Call], base: LegOutputs, ran: LegOutputs
) -> Leg:
    """The leg, with what is wrong with it if an output differs from base's."""
    if base.leg.wrong or ran.leg.wrong or ran is base:
        return ran.leg
    for number, (call, expected, output) in enumerate(
        zip(calls, base.outputs, ran.outputs, strict=True), 1
    ):
        if not await judge.same(call, expected, output):
            return replace(ran.leg, wrong=f"{call.workload}: the result of call {number} is wrong")
    return ran.leg
