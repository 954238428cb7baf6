"""Processes in which workloads run, timed from outside, and those that make their inputs and compare their outputs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from koderz.errors import Fault
from koderz.sandbox.workspace import CHECKOUT, Command, Limits, Mount, Running, Timed
from koderz.sandbox.workspace.folders import scratch
from koderz.suites.performance.measuring.verdicts import Leg, Timing
from koderz.suites.performance.tasks import PerfTask

_GUEST = Path(__file__).parents[1] / "guest"
_TOOLS = "/opt/koderz/perf"
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_MOST_OUTPUT = 256 << 20  # bytes of one output
_REFEREE_SECONDS = 86_400.0


class Call(NamedTuple):
    """One call of a workload: its name and input, as JSON."""

    workload: str
    given: bytes


class Ran(NamedTuple):
    """A leg, and the output of each of its calls as far as it came."""

    leg: Leg
    outputs: Sequence[bytes]


class _Ended(Exception):
    """The other side said what it shouldn't, or nothing more."""


@dataclass(slots=True)
class _Frames:
    """Messages to and from a process: four bytes of length, and as many more."""

    running: Running

    async def send(self, *contents: bytes) -> None:
        framed = b"".join(len(content).to_bytes(4, "big") + content for content in contents)
        with _lost():
            await asyncio.get_running_loop().sock_sendall(self.running.channel, framed)

    async def receive(self) -> bytes:
        size = int.from_bytes(await self._exactly(4), "big")
        if size > _MOST_OUTPUT:
            raise _Ended(f"an output is larger than {_MOST_OUTPUT >> 20} MB")
        return await self._exactly(size)

    async def cpu(self) -> int:
        """Nanoseconds that the process has used."""
        with _lost():
            return await self.running.cpu()

    async def _exactly(self, size: int) -> bytes:
        loop, content = asyncio.get_running_loop(), bytearray()
        while len(content) < size:
            with _lost():
                part = await loop.sock_recv(self.running.channel, min(size - len(content), 1 << 20))
            if not part:
                raise _Ended("")
            content += part
        return bytes(content)


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise _Ended("") from None


class Legs:
    """Runs the legs of one task."""

    def __init__(self, task: PerfTask, backend: Timed, seconds: float) -> None:
        self._task, self._backend, self._seconds = task, backend, seconds

    async def run(self, tree: Path, calls: Sequence[Call], core: int | None) -> Ran:
        """One process that makes these calls on a tree; a workload's first call isn't counted."""
        outputs: list[bytes] = []
        times: dict[str, list[tuple[int, int]]] = {}
        limits = Limits(seconds=self._seconds + 30, grace=0.5)
        wanted = Command(
            ["python3", "-I", "-B", f"{_TOOLS}/leg.py"],
            _ENVIRONMENT,
            [Mount(_GUEST, _TOOLS)],
            read_only=True,
            core=-1 if core is None else core,
            forks=self._task.needs.processes,
            limits=limits,
        )
        began, wrong = time.monotonic(), ""
        with scratch() as place:
            (place / "checkout").symlink_to(tree)
            async with self._backend.started(wanted, place) as running:
                frames = _Frames(running)
                try:
                    async with asyncio.timeout(self._seconds):
                        await self._open(frames)
                        for call in calls:
                            output, taken = await _called(frames, call)
                            outputs.append(output)
                            times.setdefault(call.workload, []).append(taken)
                        await frames.send(b"")
                        ended = await running.ended
                except _Ended as error:
                    wrong = str(error) or await _how(running)
                except TimeoutError:
                    wrong = f"timeout: a leg takes longer than {self._seconds:g} s"
                else:
                    wrong = "" if not ended.status else f"exit code {ended.status}: {ended.output[-500:]}"
                cpu = running.ended.result().cpu if running.ended.done() else 0.0
        work = {name: _timing(taken) for name, taken in times.items() if len(taken) > 1}
        return Ran(Leg(cpu, time.monotonic() - began, work, wrong), outputs)

    async def _open(self, frames: _Frames) -> None:
        order = {"path": f"{CHECKOUT}/{self._task.path}", "workloads": dict(self._task.workloads)}
        await frames.send(json.dumps(order).encode())
        await frames.receive()


async def _called(frames: _Frames, call: Call) -> tuple[bytes, tuple[int, int]]:
    """The output of a call, and nanoseconds of CPU and of wall clock from "go" to its last byte."""
    await frames.send(call.workload.encode(), call.given)
    await frames.receive()
    cpu, wall = await frames.cpu(), time.monotonic_ns()
    await frames.send(b"go")
    output = await frames.receive()
    wall = time.monotonic_ns() - wall
    return output, (max(1, await frames.cpu() - cpu), max(1, wall))


async def _how(running: Running) -> str:
    """How a process ended that should have gone on."""
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            ended = await asyncio.shield(running.ended)
            return f"{ended.cause or f'exit code {ended.status}'}: {ended.output[-500:].strip()}"
    return "it says nothing more"


def _timing(taken: Sequence[tuple[int, int]]) -> Timing:
    counted = taken[1:]
    cpu, wall = (median(each[clock] for each in counted) / 1e9 for clock in (0, 1))
    return Timing(cpu, wall, sum(each[0] for each in counted) / 1e9)


class Referee:
    """Makes inputs and compares outputs."""

    def __init__(self, frames: _Frames) -> None:
        self._frames = frames

    async def inputs(self, workload: str, seed: str, number: int) -> Call:
        """An input of a workload. Raises Fault where it makes none."""
        order = {"workload": workload, "seed": seed, "number": number}
        return Call(workload, await self._asked(json.dumps(order).encode()))

    async def same(self, call: Call, expected: bytes, output: bytes) -> bool:
        """Whether an output is as good as the expected one. Raises Fault where that can't be told."""
        if output == expected:
            return True
        try:
            json.loads(output)
        except (ValueError, RecursionError):
            return False
        order = json.dumps({"workload": call.workload}).encode()
        return await self._asked(order, expected, output, call.given) == b"same"

    async def _asked(self, *contents: bytes) -> bytes:
        try:
            await self._frames.send(*contents)
            return await self._frames.receive()
        except _Ended as error:
            why = str(error) or await _how(self._frames.running)
            raise Fault(f"base_failed: the workload's own code: {why}") from None


@asynccontextmanager
async def referee(workloads: Mapping[str, str], backend: Timed) -> AsyncIterator[Referee]:
    """A process of its own, without the code under test."""
    wanted = Command(
        ["python3", "-I", "-B", f"{_TOOLS}/referee.py"],
        _ENVIRONMENT,
        [Mount(_GUEST, _TOOLS)],
        read_only=True,
        forks=False,
        limits=Limits(seconds=_REFEREE_SECONDS, grace=0.5),
    )
    with scratch() as place:
        async with backend.started(wanted, place) as running:
            frames = _Frames(running)
            found = Referee(frames)
            await found._asked(json.dumps({"workloads": dict(workloads)}).encode())
            yield found
