"""The containers' side of the protocol: what runs in them is Modal's own entrypoint, and this is what it asks."""

from __future__ import annotations

import asyncio

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from tests.loopback_modal.containers import Container, Containers
from tests.loopback_modal.inputs import Input, Inputs
from tests.loopback_modal.results import TIMED_OUT, failed, output
from tests.loopback_modal.service import CALLER
from tests.loopback_modal.store import Bells

HEARTBEAT = 9.5  # seconds a heartbeat is held back, so that a cancellation can be sent at once
IDLE = 60  # seconds without work after which a container ends, unless its function says otherwise
_FAILURE = api_pb2.GenericResult.GENERIC_STATUS_FAILURE


class Work:
    """Hands inputs out and takes outputs in; an input that runs too long is ended with its container."""

    def __init__(self, containers: Containers, inputs: Inputs, bells: Bells) -> None:
        self._containers, self._inputs, self._bells = containers, inputs, bells

    async def container_hello(self, _request: Empty) -> Empty:
        return Empty()

    async def container_heartbeat(
        self, _request: api_pb2.ContainerHeartbeatRequest
    ) -> api_pb2.ContainerHeartbeatResponse:
        container = self._containers.get(CALLER.get())
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
        container = self._containers.get(CALLER.get())
        while container is not None and not container.ending:
            function = container.function
            if (one := self._inputs.take(function.id, container.id)) is not None:
                return api_pb2.FunctionGetInputsResponse(inputs=[self._begin(container, one)])
            idle = function.asked.task_idle_timeout_secs or IDLE
            if not await self._bells.wait(f"{function.id}/waiting", idle):
                self._containers.let_finish(container)
        return api_pb2.FunctionGetInputsResponse(inputs=[api_pb2.FunctionGetInputsItem(kill_switch=True)])

    async def function_put_outputs(self, request: api_pb2.FunctionPutOutputsRequest) -> Empty:
        container = self._containers.get(CALLER.get())
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
        if (container := self._containers.get(CALLER.get())) is not None and request.result.status == _FAILURE:
            container.worked = True
            for one in self._inputs.waiting(container.function.id):
                self._inputs.finish(one, output(one, request.result))
        return Empty()

    async def function_get_dynamic_concurrency(
        self, request: api_pb2.FunctionGetDynamicConcurrencyRequest
    ) -> api_pb2.FunctionGetDynamicConcurrencyResponse:
        return api_pb2.FunctionGetDynamicConcurrencyResponse(concurrency=request.max_concurrency)

    async def container_stop(self, request: api_pb2.ContainerStopRequest) -> api_pb2.ContainerStopResponse:
        if (container := self._containers.get(request.task_id)) is not None:
            self._containers.let_finish(container) if request.graceful else self._containers.preempt(container.id)
        return api_pb2.ContainerStopResponse()

    async def task_list(self, request: api_pb2.TaskListRequest) -> api_pb2.TaskListResponse:
        tasks = [
            api_pb2.TaskStats(
                task_id=one.id, app_id=one.function.app_id, started_at=one.started, enqueued_at=one.started
            )
            for one in self._containers.all()
            if request.app_id in {"", one.function.app_id}
        ]
        return api_pb2.TaskListResponse(tasks=tasks)

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
        if self._containers.get(container.id) is not None:
            self._containers.preempt(container.id)
