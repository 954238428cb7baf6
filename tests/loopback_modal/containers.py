"""Containers: started as inputs wait, up to the function's limit, and ended, one way or another."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.loopback_modal.functions import Deployed, deployed
from tests.loopback_modal.inputs import Input, Inputs
from tests.loopback_modal.processes import kill
from tests.loopback_modal.results import CANCELLED, LOST, failed
from tests.loopback_modal.starting import Starting
from tests.loopback_modal.store import Bells, Store, new_id


@dataclass(slots=True)
class Container:
    id: str
    function: Deployed
    started: float
    process: asyncio.subprocess.Process | None = None
    task: asyncio.Task[None] | None = None
    cancelled: list[str] = field(default_factory=list)  # inputs it has yet to be told of
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)  # of its inputs
    ending: bool = False  # gets no more inputs
    forgiven: bool = False  # it was killed for no fault of its inputs, which are run again
    worked: bool = False  # it has had an input, or has said what was wrong


class Containers:
    def __init__(self, store: Store, inputs: Inputs, bells: Bells, starting: Starting, most: int) -> None:
        self._store, self._inputs, self._bells, self._starting, self._most = store, inputs, bells, starting, most
        self._live: dict[str, Container] = {}
        self._of_function: Counter[str] = Counter()  # those that still get inputs
        self._closed = False

    def wanted(self, function_id: str) -> None:
        """Starts a container where inputs wait and there may be one more."""
        live = self._of_function[function_id]
        if self._closed or live >= self._most or (thing := self._store.find(function_id)) is None:
            return
        function = deployed(thing)
        limit = min(function.max_containers or self._most, self._most)
        if live < limit and live * function.concurrency < self._inputs.count_open(function_id):
            self._start(function)

    def resume(self) -> None:
        """Goes on with what waits since an earlier run of the server."""
        for function_id in self._inputs.functions_waiting():
            self.wanted(function_id)

    def get(self, container_id: str) -> Container | None:
        return self._live.get(container_id)

    def all(self) -> list[Container]:
        return list(self._live.values())

    def count(self, function_id: str) -> int:
        return sum(one.function.id == function_id for one in self._live.values())

    def ids(self, function_id: str = "") -> list[str]:
        return [one.id for one in self._live.values() if function_id in {"", one.function.id}]

    def cancel(self, container_id: str, input_id: str, *, terminate: bool) -> None:
        """Tells a container to give an input up, or ends it, and then has its other inputs run elsewhere."""
        container = self._live.get(container_id)
        if container is None:
            return
        if terminate:
            self.preempt(container_id)
        else:
            container.cancelled.append(input_id)
            self._bells.ring(f"{container_id}/cancel")

    def preempt(self, container_id: str) -> None:
        """Kills a container; what it was at is run again in another, and isn't counted as a retry."""
        container = self._live[container_id]
        container.forgiven = True
        self.let_finish(container)
        if container.process is not None:
            kill(container.process)

    def kill(self, container_id: str) -> None:
        """Kills a container, and holds that against what it was at."""
        container = self._live[container_id]
        self.let_finish(container)
        if container.process is not None:
            kill(container.process)

    def let_finish(self, container: Container) -> None:
        """Gives it no more inputs; it ends when it is done with those it has."""
        if not container.ending:
            container.ending = True
            self._of_function[container.function.id] -= 1
            self._bells.ring(f"{container.function.id}/waiting")

    def retire(self, app_id: str) -> None:
        """Lets the containers of an app finish what they are at; new inputs get new ones."""
        for container in self._of(app_id):
            self.let_finish(container)

    def stop(self, app_id: str) -> None:
        """Ends an app's containers, and cancels its inputs."""
        for container in self._of(app_id):
            for one in self._inputs.running(container.id):
                self._inputs.finish(one, failed(one, CANCELLED, "the app was stopped"))
            self.preempt(container.id)
        for kind in ("function", "variant"):
            for function in self._store.all(kind, app_id):
                for one in self._inputs.waiting(function.id):
                    self._inputs.finish(one, failed(one, CANCELLED, "the app was stopped"))

    async def close(self) -> None:
        self._closed = True
        tasks = [one.task for one in self._live.values() if one.task is not None]
        for container_id in list(self._live):
            self.preempt(container_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _of(self, app_id: str) -> list[Container]:
        return [one for one in self._live.values() if one.function.app_id == app_id]

    def _start(self, function: Deployed) -> None:
        container = Container(new_id("ta"), function, time.time())
        self._live[container.id] = container
        self._of_function[function.id] += 1
        container.task = asyncio.create_task(self._run(container))

    async def _run(self, container: Container) -> None:
        try:
            container.process = await self._starting.start(container.id, container.function)
            if container.ending:  # preempted before it was there
                kill(container.process)
            await container.process.wait()
        finally:
            self._ended(container)
            self._starting.clear(container.id)

    def _ended(self, container: Container) -> None:
        del self._live[container.id]
        self.let_finish(container)
        for timer in container.timers.values():
            timer.cancel()
        if container.process is not None:
            kill(container.process)  # what it may have left behind
        for one in self._inputs.running(container.id):
            self._lose(container, one)
        if not container.worked and not container.forgiven:
            for one in self._inputs.waiting(container.function.id)[:1]:
                self._inputs.finish(one, failed(one, LOST, f"container {container.id} ended before it took an input"))
        self.wanted(container.function.id)

    def _lose(self, container: Container, one: Input) -> None:
        if container.forgiven:
            self._inputs.put_back(one, attempt=one.attempt)
        elif one.attempt < container.function.retries:
            self._inputs.put_back(one, attempt=one.attempt + 1)
        else:
            self._inputs.finish(one, failed(one, LOST, f"container {container.id} died while it ran the input"))
