"""The cost caps of a run and of each experiment: a call whose estimate would exceed one doesn't start."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from koderz.errors import Fault, RunStopped
from koderz.experiments.costs import Estimate


class CapReached(RunStopped):
    """The next call could cost more than is left of the run's cap. The run stops, and resumes with a higher cap."""

    cause = "cost_cap"


class ExperimentCapReached(Fault):
    """The next call of an experiment could cost more than is left of the experiment's cap. The run goes on."""

    cause = "cost_cap"


class Budget:
    """The cap, the spending so far, and the calls under way of a run or an experiment, in US dollars."""

    def __init__(self, cap: float | None, spent: float = 0.0, *, of_experiment: bool = False) -> None:
        self.cap = cap
        self.spent = spent
        self.held = 0.0  # US dollars that calls in batches are likely to cost
        self._of_experiment = of_experiment
        self._under_way: set[Estimate] = set()
        self._freed = asyncio.Condition()
        self._door, self._room = asyncio.Lock(), asyncio.Event()  # of calls in batches
        self._in_batches = 0

    @asynccontextmanager
    async def call(self, estimate: Estimate) -> AsyncIterator[None]:
        """Reserves `estimate` during one call. Raises CapReached or ExperimentCapReached if it would exceed the cap.

        Calls under way are reckoned at their estimates, which are generous, and more so while little has come back
        to learn from: a call that doesn't fit beside them waits for what they really cost, and is refused only if it
        doesn't fit then, alone and by what is likely.
        """
        if self.cap is not None:
            await self._reserve(estimate, self.cap)
        try:
            yield
        finally:
            if self.cap is not None:
                await asyncio.shield(self._release(estimate))

    @asynccontextmanager
    async def call_in_batch(self, dollars: float, *, is_held: bool) -> AsyncIterator[None]:
        """Holds the likely cost of a call in a batch. Raises as `call` does where it doesn't fit by itself.

        `is_held`: whether it was sent in an earlier session, and counts already. Thousands of them wait at once, so
        they are reckoned by one sum and come in one after the other. One that doesn't fit beside those under way waits
        for their real costs, and so goes into a later batch.
        """
        if not is_held:
            async with self._door:
                while self.cap is not None and self.spent + self.held + dollars > self.cap:
                    if not self._in_batches:
                        raise self._reached(self.cap, dollars)
                    self._room.clear()
                    await self._room.wait()
                self.held += dollars
        self._in_batches += 1
        try:
            yield
        finally:
            self._in_batches -= 1
            self.held = max(0.0, self.held - dollars)
            self._room.set()

    def paid(self, cost: float) -> None:
        self.spent += cost

    async def _reserve(self, estimate: Estimate, cap: float) -> None:
        async with self._freed:
            while not self._fits(estimate, cap):
                if not self._under_way:
                    raise self._reached(cap, estimate.likely)
                await self._freed.wait()
            self._under_way.add(estimate)

    def _fits(self, estimate: Estimate, cap: float) -> bool:
        if not self._under_way:
            return self.spent + self.held + estimate.likely <= cap
        return self.spent + self.held + math.fsum(each.doubtful for each in (*self._under_way, estimate)) <= cap

    def _reached(self, cap: float, estimate: float) -> Fault:
        state = f"is reached: ${self.spent:.4f} is spent, and the next call could cost ${estimate:.4f}"
        if self._of_experiment:
            return ExperimentCapReached(
                f"the cost cap of ${cap:g} an experiment {state}; retry with a higher --max-experiment-cost"
            )
        return CapReached(f"the cost cap of ${cap:g} {state}; resume with a higher --max-cost")

    async def _release(self, estimate: Estimate) -> None:
        async with self._freed:
            self._under_way.discard(estimate)
            self._freed.notify_all()
