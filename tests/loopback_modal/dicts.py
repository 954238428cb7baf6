"""Dicts: each entry a row, keys and values as the SDK pickled them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.store import Store, Thing

_MAKING = frozenset(
    {
        api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING,
        api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS,
        api_pb2.OBJECT_CREATION_TYPE_EPHEMERAL,
    }
)
LARGEST = 100 << 20  # bytes of a value, as at Modal


class Dicts:
    def __init__(self, store: Store) -> None:
        self._store, self._sql = store, store.sql

    async def dict_get_or_create(self, request: api_pb2.DictGetOrCreateRequest) -> api_pb2.DictGetOrCreateResponse:
        name, how = request.deployment_name, request.object_creation_type
        found = self._store.named("dict", name) if name else None
        if found is not None and how == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise GRPCError(Status.ALREADY_EXISTS, f"Dict '{name}' already exists")
        if found is None and how not in _MAKING:
            raise GRPCError(Status.NOT_FOUND, f"Dict '{name}' not found in environment 'main'.")
        thing = found or self._store.add("dict", "di", name=name)
        return api_pb2.DictGetOrCreateResponse(dict_id=thing.id, metadata=api_pb2.DictMetadata(name=name))

    async def dict_get_by_id(self, request: api_pb2.DictGetByIdRequest) -> api_pb2.DictGetByIdResponse:
        thing = self._thing(request.dict_id)
        return api_pb2.DictGetByIdResponse(dict_id=thing.id, metadata=api_pb2.DictMetadata(name=thing.name))

    async def dict_heartbeat(self, _request: api_pb2.DictHeartbeatRequest) -> Empty:
        return Empty()

    async def dict_get(self, request: api_pb2.DictGetRequest) -> api_pb2.DictGetResponse:
        value = self._value(request.dict_id, request.key)
        return api_pb2.DictGetResponse(found=value is not None, value=value)

    async def dict_contains(self, request: api_pb2.DictContainsRequest) -> api_pb2.DictContainsResponse:
        return api_pb2.DictContainsResponse(found=self._value(request.dict_id, request.key) is not None)

    async def dict_update(self, request: api_pb2.DictUpdateRequest) -> api_pb2.DictUpdateResponse:
        thing = self._thing(request.dict_id)
        if any(len(one.value) > LARGEST for one in request.updates):
            raise GRPCError(Status.INVALID_ARGUMENT, f"a value of a Dict can't be larger than {LARGEST} bytes")
        how = "IGNORE" if request.if_not_exists else "REPLACE"
        rows = [(thing.id, one.key, one.value) for one in request.updates]
        done = self._sql.executemany(f"INSERT OR {how} INTO entry VALUES (?, ?, ?)", rows)
        return api_pb2.DictUpdateResponse(created=done.rowcount > 0)

    async def dict_pop(self, request: api_pb2.DictPopRequest) -> api_pb2.DictPopResponse:
        query = "DELETE FROM entry WHERE dict = ? AND key = ? RETURNING value"
        row = self._sql.execute(query, (self._thing(request.dict_id).id, request.key)).fetchone()
        return api_pb2.DictPopResponse(found=row is not None, value=row[0] if row else None)

    async def dict_len(self, request: api_pb2.DictLenRequest) -> api_pb2.DictLenResponse:
        query = "SELECT count(*) FROM entry WHERE dict = ?"
        return api_pb2.DictLenResponse(len=self._sql.execute(query, (self._thing(request.dict_id).id,)).fetchone()[0])

    async def dict_contents(self, request: api_pb2.DictContentsRequest) -> AsyncIterator[api_pb2.DictEntry]:
        query = "SELECT key, value FROM entry WHERE dict = ? ORDER BY rowid"
        for key, value in self._sql.execute(query, (self._thing(request.dict_id).id,)):
            yield api_pb2.DictEntry(key=key if request.keys else b"", value=value if request.values else b"")

    async def dict_clear(self, request: api_pb2.DictClearRequest) -> Empty:
        self._clear(self._thing(request.dict_id).id)
        return Empty()

    async def dict_delete(self, request: api_pb2.DictDeleteRequest) -> Empty:
        self._clear(self._thing(request.dict_id).id)
        self._store.remove(request.dict_id)
        return Empty()

    async def dict_list(self, _request: api_pb2.DictListRequest) -> api_pb2.DictListResponse:
        dicts = [
            api_pb2.DictListResponse.DictInfo(
                name=one.name, dict_id=one.id, created_at=one.created, metadata=api_pb2.DictMetadata(name=one.name)
            )
            for one in self._store.all("dict")
            if one.name
        ]
        return api_pb2.DictListResponse(dicts=dicts, environment_name="main")

    def _value(self, dict_id: str, key: bytes) -> bytes | None:
        query = "SELECT value FROM entry WHERE dict = ? AND key = ?"
        row = self._sql.execute(query, (self._thing(dict_id).id, key)).fetchone()
        return row[0] if row else None

    def _clear(self, dict_id: str) -> None:
        self._sql.execute("DELETE FROM entry WHERE dict = ?", (dict_id,))

    def _thing(self, dict_id: str) -> Thing:
        thing = self._store.find(dict_id)
        if thing is None:
            raise GRPCError(Status.NOT_FOUND, f"Dict '{dict_id}' not found")
        return thing
