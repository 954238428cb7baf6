"""The engine `modal`: each experiment is a call of a deployed function, which goes on if this machine stops."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koderz._version import __version__
from koderz.engines import Driver, Engine, carried
from koderz.engines.portable import Files, files_of, pack_plan, source_digest
from koderz.engines.resources import notices_of, require_prices, shared_of
from koderz.errors import Unreachable
from koderz.plans.plan import Plan
from koderz.settings.schema import Settings
from koderz.systems.modal.cloud import DEPLOY, Cloud
from koderz.systems.modal.names import INPUTS, ModalOptions, cost_per_second, is_configured, names_of, require_apart
from koderz.systems.modal.store import RemoteRun, RunStore
from koderz.systems.modal.submission import Submission
from koderz.types import EXCLUSIVE, JUDGE

if TYPE_CHECKING:
    pass


def _limits(max_containers: int | None, concurrency: int) -> dict[str, Any]:
    """The numbers of containers and of experiments in each, for the concurrency that is allowed."""
    containers = max_containers or math.ceil(concurrency / INPUTS)
    return {"max_containers": containers, "max_inputs": min(INPUTS, math.ceil(concurrency / containers))}


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
        self._cloud = Cloud(names, **{"gpu": own.gpu, "max_containers": own.max_containers, **self._limits})
        self._store = RunStore(names, plan.name)
        sandboxes = self._limits.get("max_inputs", settings.judges)  # an experiment of these has one of its own
        self._rate = cost_per_second(own.gpu, sandboxes=sandboxes, sandbox_mb=plan.judging.memory_mb)

    async def check(self) -> dict[str, Any]:
        """The deployed version and its price. Raises Unreachable if it isn't this koderz."""
        require_prices(self._plan, self._environ)
        about = await self._cloud.about()
        await self._cloud.look_up()
        begun = "modal" in self._plan.record.environment
        self._compare(about, begun=begun)
        if not begun:  # all that is to be sent is at hand, and what the suite would refuse there is refused here
            if carried(self._plan):
                async with shared_of(self._plan, self._environ) as shared:
                    self.notices += notices_of(shared)
            self._files = await asyncio.to_thread(files_of, self._plan)
        facts = {"app": self._cloud.names.app, "volume": self._cloud.names.volume, "digest": about["digest"]}
        facts |= {"cost_per_second": self._rate, **self._limits}
        return {"modal": facts, "sandbox": self.isolation}

    async def run(self, driver: Driver) -> None:
        """Submits all remaining experiments, then waits for them, unless the driver is to be detached."""
        known = await self._store.plan() is not None
        if not known:
            if self._files is None:
                self._files = await asyncio.to_thread(files_of, self._plan)
            await self._store.put_plan(pack_plan(driver.plan, self._files))
        await Submission(driver, self._cloud, self._store, self._rate, known=known, notice=self._tell).run()

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
