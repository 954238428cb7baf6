"""What a container keeps of one run between its experiments, and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from koderz.engines.resources import open_resources
from koderz.experiments.calls import Caller
from koderz.experiments.replay import Answer, Ask
from koderz.experiments.runner import Resources
from koderz.modal.names import SANDBOXES, require_apart
from koderz.plans.identity import Identity
from koderz.plans.plan import Plan


class Meter:
    """Shares a container's seconds out among the experiments that are in it at the same time."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._inside = 0
        self._since = time.monotonic()

    def seconds(self, joining: int = 0) -> float:
        """Those of one experiment that had been here all along; what it has used since then is the difference.

        `joining`: how many come in now; -1 where one leaves.
        """
        now = time.monotonic()
        self._seconds += (now - self._since) / max(1, self._inside)
        self._since = now
        self._inside += joining
        return self._seconds


class ContainerState:
    """One run in one container: its resources, opened when first needed and kept."""

    resources: Resources

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        """KoderzError for a sandbox that isn't outside of the container."""
        require_apart(plan.settings.sandbox)
        settings = replace(plan.settings, judges=plan.settings.judges or SANDBOXES)
        self.meter = Meter()
        self._plan, self._environ = replace(plan, settings=settings), environ
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def opened(self) -> None:
        """Returns once everything is there. Raises Unreachable where a key or the sandbox isn't."""
        async with self._opening:
            if not hasattr(self, "resources"):
                self.resources, _ = await self._open.enter_async_context(open_resources(self._plan, self._environ))

    async def aclose(self) -> None:
        await self._open.aclose()


class MeteredCaller(Caller):
    """Counts what the container has cost, too, before each call is held against the allowance."""

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
        """What the experiment has used of the container in all. To be asked once, at its end."""
        return self._meter.seconds(joining=-1) - self._begun
