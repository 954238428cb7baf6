"""Containers: started as inputs wait, up to the function's limit, and their own side of the protocol.

What runs in them is Modal's own container entrypoint, which fetches inputs and sends outputs as it does at Modal.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from koderz.testing.modal.functions import Deployed, deployed
from koderz.testing.modal.inputs import Input, Inputs
from koderz.testing.modal.processes import kill
from koderz.testing.modal.results import CANCELLED, LOST, TIMED_OUT, failed, output
from koderz.testing.modal.service import CALLER
from koderz.testing.modal.starting import Starting
from koderz.testing.modal.store import Bells, Store, new_id

HEARTBEAT = 9.5  # seconds a heartbeat is held back, so that a cancellation can be sent at once
IDLE = 60  # seconds without work after which a container ends, unless its function says otherwise
_FAILURE = api_pb2.GenericResult.GENERIC_STATUS_FAILURE


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

    # what the rest of the server asks

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
        self._retire(container)
        if container.process is not None:
            kill(container.process)

    def retire(self, app_id: str) -> None:
        """Lets the containers of an app finish what they are at; new inputs get new ones."""
        for container in self._of(app_id):
            self._retire(container)

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

    # what containers ask

    async def container_hello(self, _request: Empty) -> Empty:
        return Empty()

    async def container_heartbeat(
        self, _request: api_pb2.ContainerHeartbeatRequest
    ) -> api_pb2.ContainerHeartbeatResponse:
        container = self._live.get(CALLER.get())
        if container is None:
            return api_pb2.ContainerHeartbeatResponse()
        if not container.cancelled:
            await self._bells.wait(f"{container.id}/cancel", HEARTBEAT)
        cancelled, container.cancelled = container.cancelled, []
        event = api_pb2.CancelInputEvent(input_ids=cancelled) if cancelled else None
        return api_pb2.ContainerHeartbeatResponse(cancel_input_event=event)

    async def function_get_inputs(
        self, _request: api_pb2.FunctionGetInputsRequest
    ) -> api_pb2.FunctionGetInputsResponse:
        container = self._live.get(CALLER.get())
        while container is not None and not container.ending:
            function = container.function
            if (one := self._inputs.take(function.id, container.id)) is not None:
                return api_pb2.FunctionGetInputsResponse(inputs=[self._begin(container, one)])
            idle = function.asked.task_idle_timeout_secs or IDLE
            if not await self._bells.wait(f"{function.id}/waiting", idle):
                self._retire(container)
        return api_pb2.FunctionGetInputsResponse(inputs=[api_pb2.FunctionGetInputsItem(kill_switch=True)])

    async def function_put_outputs(self, request: api_pb2.FunctionPutOutputsRequest) -> Empty:
        container = self._live.get(CALLER.get())
        for item in request.outputs:
            one = self._inputs.find(item.input_id)
            if container is None or one is None or one.container != container.id:
                continue  # it was cancelled, or expired, and runs elsewhere or nowhere
            self._disarm(container, one)
            if item.result.status == _FAILURE and one.attempt < container.function.retries:
                self._inputs.put_back(one, attempt=one.attempt + 1)
            else:
                self._inputs.finish(one, output(one, item.result, item.data_format))
        return Empty()

    async def task_result(self, request: api_pb2.TaskResultRequest) -> Empty:
        """A container that couldn't even import the function: what waits for it fails with the same error."""
        if (container := self._live.get(CALLER.get())) is not None and request.result.status == _FAILURE:
            container.worked = True
            for one in self._inputs.waiting(container.function.id):
                self._inputs.finish(one, output(one, request.result))
        return Empty()

    async def function_get_dynamic_concurrency(
        self, request: api_pb2.FunctionGetDynamicConcurrencyRequest
    ) -> api_pb2.FunctionGetDynamicConcurrencyResponse:
        return api_pb2.FunctionGetDynamicConcurrencyResponse(concurrency=request.max_concurrency)

    async def container_stop(self, request: api_pb2.ContainerStopRequest) -> api_pb2.ContainerStopResponse:
        if (container := self._live.get(request.task_id)) is not None:
            self._retire(container) if request.graceful else self.preempt(container.id)
        return api_pb2.ContainerStopResponse()

    async def task_list(self, request: api_pb2.TaskListRequest) -> api_pb2.TaskListResponse:
        tasks = [
            api_pb2.TaskStats(
                task_id=one.id, app_id=one.function.app_id, started_at=one.started, enqueued_at=one.started
            )
            for one in self._live.values()
            if request.app_id in {"", one.function.app_id}
        ]
        return api_pb2.TaskListResponse(tasks=tasks)

    # how it goes about it

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

    def _retire(self, container: Container) -> None:
        if not container.ending:
            container.ending = True
            self._of_function[container.function.id] -= 1
            self._bells.ring(f"{container.function.id}/waiting")

    def _ended(self, container: Container) -> None:
        del self._live[container.id]
        self._retire(container)
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

    def _begin(self, container: Container, one: Input) -> api_pb2.FunctionGetInputsItem:
        container.worked = True
        if (seconds := container.function.timeout) > 0:
            loop = asyncio.get_running_loop()
            container.timers[one.id] = loop.call_later(seconds, self._timed_out, container, one)
        return api_pb2.FunctionGetInputsItem(
            input_id=one.id,
            input=api_pb2.FunctionInput.FromString(one.body),
            function_call_id=one.call,
            retry_count=one.attempt,
            function_map_idx=one.idx,
        )

    def _disarm(self, container: Container, one: Input) -> None:
        if (timer := container.timers.pop(one.id, None)) is not None:
            timer.cancel()

    def _timed_out(self, container: Container, one: Input) -> None:
        if one.attempt < container.function.retries:
            self._inputs.put_back(one, attempt=one.attempt + 1)
        else:
            seconds = container.function.timeout
            self._inputs.finish(
                one, failed(one, TIMED_OUT, f"Task's current input {one.id} hit its timeout of {seconds}s")
            )
        if container.id in self._live:
            self.preempt(container.id)
