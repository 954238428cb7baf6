"""Calls as a client makes them: spawn, map, poll, cancel."""

from __future__ import annotations

import time

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.containers import Containers
from tests.loopback_modal.inputs import Input, Inputs
from tests.loopback_modal.results import CANCELLED, failed
from tests.loopback_modal.store import Bells, Store, Thing

MOST_OUTPUTS = 50  # in one answer
OUTSTANDING = 1000  # how many inputs a map may have on its way at once


class Calls:
    """A call is a thing below its function; its inputs and outputs are in the queue."""

    def __init__(self, store: Store, inputs: Inputs, containers: Containers, bells: Bells) -> None:
        self._store, self._inputs, self._containers, self._bells = store, inputs, containers, bells

    async def function_map(self, request: api_pb2.FunctionMapRequest) -> api_pb2.FunctionMapResponse:
        function = self._store.find(request.function_id)
        if function is None or not function.body:
            raise GRPCError(Status.NOT_FOUND, f"Function '{request.function_id}' not found")
        call = self._store.add("call", "fc", parent=function.id, body=request.parent_input_id.encode())
        return api_pb2.FunctionMapResponse(
            function_call_id=call.id,
            function_call_jwt=call.id,
            pipelined_inputs=[self._put(call, one) for one in request.pipelined_inputs],
            max_inputs_outstanding=OUTSTANDING,
        )

    async def function_put_inputs(self, request: api_pb2.FunctionPutInputsRequest) -> api_pb2.FunctionPutInputsResponse:
        call = self._call(request.function_call_id)
        return api_pb2.FunctionPutInputsResponse(inputs=[self._put(call, one) for one in request.inputs])

    async def function_retry_inputs(
        self, request: api_pb2.FunctionRetryInputsRequest
    ) -> api_pb2.FunctionRetryInputsResponse:
        return api_pb2.FunctionRetryInputsResponse(input_jwts=[one.input_jwt for one in request.inputs])

    async def function_finish_inputs(self, _request: api_pb2.FunctionFinishInputsRequest) -> Empty:
        return Empty()

    async def function_call_from_id(
        self, request: api_pb2.FunctionCallFromIdRequest
    ) -> api_pb2.FunctionCallFromIdResponse:
        call = self._call(request.function_call_id)
        function = self._store.find(call.parent)
        metadata = api_pb2.FunctionCallHandleMetadata(
            app_id=function.parent if function else "", function_id=call.parent
        )
        return api_pb2.FunctionCallFromIdResponse(
            function_call_id=call.id, num_inputs=self._inputs.count(call.id), metadata=metadata
        )

    async def function_get_outputs(
        self, request: api_pb2.FunctionGetOutputsRequest
    ) -> api_pb2.FunctionGetOutputsResponse:
        """By place (`get`), when there is something to wait for, or as they come (`map`)."""
        call, until = self._call(request.function_call_id), time.monotonic() + request.timeout
        while True:
            reply = self._by_place(request) if request.HasField("start_idx") else self._as_they_come(request)
            wait = until - time.monotonic()
            nothing_left = request.HasField("start_idx") and not reply.num_unfinished_inputs
            if reply.outputs or nothing_left or wait <= 0:
                return reply
            await self._bells.wait(call.id, wait)

    async def function_call_cancel(self, request: api_pb2.FunctionCallCancelRequest) -> Empty:
        for one in self._inputs.unfinished(self._call(request.function_call_id).id):
            self._inputs.finish(one, failed(one, CANCELLED, "Input was cancelled by user"))
            if one.container:
                self._containers.cancel(one.container, one.id, terminate=request.terminate_containers)
        return Empty()

    async def function_get_call_graph(
        self, request: api_pb2.FunctionGetCallGraphRequest
    ) -> api_pb2.FunctionGetCallGraphResponse:
        call = self._call(request.function_call_id)
        function = self._store.find(call.parent)
        graph = api_pb2.FunctionCallCallGraphInfo(
            function_call_id=call.id,
            function_name=function.name if function else "",
            parent_input_id=call.body.decode(),
        )
        inputs = [_in_graph(one) for one in self._inputs.of_call(call.id)]
        return api_pb2.FunctionGetCallGraphResponse(function_calls=[graph], inputs=inputs)

    async def function_get_current_stats(
        self, request: api_pb2.FunctionGetCurrentStatsRequest
    ) -> api_pb2.FunctionStats:
        backlog = len(self._inputs.waiting(request.function_id))
        tasks = self._containers.count(request.function_id)
        return api_pb2.FunctionStats(backlog=backlog, num_total_tasks=tasks)

    def expire(self, call_id: str) -> None:
        """Forgets what came of a call, as Modal does after 7 days."""
        for one in self._inputs.unfinished(call_id):
            if one.container:
                self._containers.cancel(one.container, one.id, terminate=False)
        self._inputs.forget(call_id)

    def _put(self, call: Thing, item: api_pb2.FunctionPutInputsItem) -> api_pb2.FunctionPutInputsResponseItem:
        one = self._inputs.put(call.id, call.parent, item.idx, item.input.SerializeToString())
        self._containers.wanted(call.parent)
        return api_pb2.FunctionPutInputsResponseItem(idx=item.idx, input_id=one, input_jwt=one)

    def _call(self, call_id: str) -> Thing:
        call = self._store.find(call_id)
        if call is None:
            raise GRPCError(Status.NOT_FOUND, f"Function call '{call_id}' not found")
        return call

    def _by_place(self, request: api_pb2.FunctionGetOutputsRequest) -> api_pb2.FunctionGetOutputsResponse:
        call, first, last = request.function_call_id, request.start_idx, request.end_idx
        outputs = list(self._inputs.outputs(call, first=first, last=last, limit=MOST_OUTPUTS))
        left = self._inputs.count_unfinished(call, first=first, last=last)
        return api_pb2.FunctionGetOutputsResponse(
            outputs=[_output(one) for one in outputs], num_unfinished_inputs=left, last_entry_id="0-0"
        )

    def _as_they_come(self, request: api_pb2.FunctionGetOutputsRequest) -> api_pb2.FunctionGetOutputsResponse:
        call, after = request.function_call_id, int(request.last_entry_id.partition("-")[0] or 0)
        outputs = list(self._inputs.outputs_after(call, after, limit=MOST_OUTPUTS))
        last = outputs[-1].finished if outputs else after
        return api_pb2.FunctionGetOutputsResponse(
            outputs=[_output(one) for one in outputs],
            num_unfinished_inputs=self._inputs.count_unfinished(call),
            last_entry_id=f"{last}-0",
        )


def _output(one: Input) -> api_pb2.FunctionGetOutputsItem:
    item = api_pb2.FunctionGetOutputsItem()
    item.ParseFromString(one.output or b"")
    return item


def _in_graph(one: Input) -> api_pb2.InputCallGraphInfo:
    return api_pb2.InputCallGraphInfo(
        input_id=one.id,
        status=_output(one).result.status,
        function_call_id=one.call,
        task_id=one.container,
    )
