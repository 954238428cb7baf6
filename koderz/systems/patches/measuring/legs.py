"""Processes that run workloads, timed from outside, and those that make inputs and compare outputs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import CHECKOUT, Command, Limits, Mount, Running, Timed
from koderz.systems.patches.measuring.verdicts import Leg, Timing
from koderz.systems.patches.measuring.wire import MOST, Frames, ProtocolBroken, how_ended
from koderz.systems.patches.tasks import PerfTask

GUEST = Path(__file__).parents[1] / "guest"
TOOLS = "/opt/koderz/perf"
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_REFEREE_SECONDS = 86_400.0
_LEAST = 0.001  # seconds that a comparison has
_MOST_LONGER, _MOST_MORE = 4, 1 << 16  # that an output which is as good as another may be longer: times, and bytes


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
        work = {name: timing_of(taken[1:], after) for name, taken in times.items() if len(taken) > 1}
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
            limits=Limits(seconds=self._seconds + 30, memory_mb=self._task.needs.memory_mb, grace=0.5),
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
                wrong = "" if not ended.status else f"exit code {ended.status}: {ended.output[-500:]}"
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
        sum(each) / 1e9 for each in zip(*((t.cpu, t.between, t.hidden, t.busy) for t in taken), strict=True)
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
        if len(output) > _MOST_LONGER * len(expected) + _MOST_MORE:  # nobody reads what is made to be too much
            return False
        try:
            json.loads(output)
        except (ValueError, RecursionError):
            return False
        order = json.dumps({"workload": call.workload, "seconds": max(_LEAST, self._left / 4)}).encode()
        return await self._asked(order, expected, output, call.input) == b"same"

    async def _asked(self, *contents: bytes) -> bytes:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                await self._frames.send(*contents)
                return await self._frames.receive()
        except TimeoutError:
            raise Fault(
                f"base_failed: the workload's own code takes longer than {self._seconds:g} s", cause="base_failed"
            ) from None
        except ProtocolBroken as error:
            why = str(error) or await how_ended(self._frames.running)
            raise Fault(f"base_failed: the workload's own code: {why}", cause="base_failed") from None
        finally:
            self._left -= time.monotonic() - began


@asynccontextmanager
async def referee(workloads: Mapping[str, str], backend: Timed, seconds: float) -> AsyncIterator[Referee]:
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
