"""What a generator yields, piece by piece, from its container to the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from tests.loopback_modal.store import Bells, Store

HELD = 50.0  # seconds without a piece after which the client asks again


class Streams:
    def __init__(self, store: Store, bells: Bells) -> None:
        self._sql, self._bells = store.sql, bells

    async def function_call_put_data_out(self, request: api_pb2.FunctionCallPutDataRequest) -> Empty:
        rows = [(request.function_call_id, one.index, one.SerializeToString()) for one in request.data_chunks]
        self._sql.executemany("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?)", rows)
        self._bells.ring(_key(request.function_call_id))
        return Empty()

    async def function_call_get_data_out(
        self, request: api_pb2.FunctionCallGetDataRequest
    ) -> AsyncIterator[api_pb2.DataChunk]:
        call, last = request.function_call_id, request.last_index
        while True:
            for chunk in self._after(call, last):
                last = chunk.index
                yield chunk
            if not self._after(call, last) and not await self._bells.wait(_key(call), HELD):
                return

    def _after(self, call: str, index: int) -> list[api_pb2.DataChunk]:
        query = "SELECT body FROM chunk WHERE call = ? AND idx > ? ORDER BY idx LIMIT 100"
        return [api_pb2.DataChunk.FromString(body) for (body,) in self._sql.execute(query, (call, index))]


def _key(call: str) -> str:
    return f"{call}/stream"
