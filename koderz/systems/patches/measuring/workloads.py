"""A task's own workloads: calls with fresh inputs, whose outputs are compared one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.errors import Fault
from koderz.sandbox.workspace import Timed
from koderz.systems.patches.measuring.legs import Call, LegOutputs, Legs, Referee, referee
from koderz.systems.patches.measuring.verdicts import Leg, require_sound
from koderz.systems.patches.tasks import PerfTask

if TYPE_CHECKING:
    from koderz.solvers.handles import ExclusiveHandle

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
                calls = [await judge.inputs(name, f"{seed}/calls/{n}", n) for n in range(_TRIAL_CALLS)]
                async with exclusive() as core:
                    ran = await self._legs.run(tree, calls, core)
                require_sound(ran.leg, "base")
                counts[name] = min(_MOST_CALLS, math.ceil(ENOUGH / ran.leg.work[name].cpu))
        return counts

    async def block(
        self, trees: Mapping[str, Path], counts: Mapping[str, int], seed: str, exclusive: ExclusiveHandle
    ) -> dict[str, Leg]:
        """Runs all legs on the same inputs, which no other block uses."""
        async with referee(self._task.workloads, self._backend, self._seconds) as judge:
            calls = [call for name, count in counts.items() for call in await _fresh(judge, name, seed, count + 1)]
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


async def _compared(judge: Referee, calls: Sequence[Call], base: LegOutputs, ran: LegOutputs) -> Leg:
    """The leg, with what is wrong with it if an output differs from base's."""
    if base.leg.wrong or ran.leg.wrong or ran is base:
        return ran.leg
    for number, (call, expected, output) in enumerate(zip(calls, base.outputs, ran.outputs, strict=True), 1):
        if not await judge.same(call, expected, output):
            return replace(ran.leg, wrong=f"{call.workload}: the result of call {number} is wrong")
    return ran.leg
