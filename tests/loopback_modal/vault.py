"""Secrets: those the server was given, those a client makes, and a `NotFoundError` for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson
from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.store import Store, Thing

_NAMED = frozenset(
    {
        api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING,
        api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS,
        api_pb2.OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS,
    }
)


class Vault:
    """A secret's body is its variables, as JSON."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, name: str, variables: Mapping[str, str]) -> str:
        """Makes or replaces a secret; returns its id."""
        body, found = orjson.dumps(dict(variables)), self._store.named("secret", name) if name else None
        if found is None:
            return self._store.add("secret", "st", name=name, body=body).id
        self._store.rewrite(found.id, body)
        return found.id

    def environment(self, secret_ids: Iterable[str]) -> dict[str, str]:
        """The variables of several secrets, later ones first."""
        merged: dict[str, str] = {}
        for secret_id in secret_ids:
            merged |= orjson.loads(self._thing(secret_id).body)
        return merged

    async def secret_get_or_create(
        self, request: api_pb2.SecretGetOrCreateRequest
    ) -> api_pb2.SecretGetOrCreateResponse:
        name, how = request.deployment_name, request.object_creation_type
        found = self._store.named("secret", name) if name else None
        if found is not None and how == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise GRPCError(Status.ALREADY_EXISTS, f"Secret '{name}' already exists")
        if found is None and name and how not in _NAMED:
            raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' not found in environment 'main'.")
        if found is None or how == api_pb2.OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS:
            found = self._thing(self.put(name, request.env_dict))
        self._require(found, request.required_keys)
        return api_pb2.SecretGetOrCreateResponse(secret_id=found.id, metadata=_metadata(found))

    async def secret_get_info(self, request: api_pb2.SecretGetInfoRequest) -> api_pb2.SecretGetInfoResponse:
        return api_pb2.SecretGetInfoResponse(metadata=_metadata(self._thing(request.secret_id)))

    async def secret_list(self, _request: api_pb2.SecretListRequest) -> api_pb2.SecretListResponse:
        items = [
            api_pb2.SecretListItem(
                label=one.name,
                secret_id=one.id,
                created_at=one.created,
                environment_name="main",
                metadata=_metadata(one),
            )
            for one in self._store.all("secret")
            if one.name
        ]
        return api_pb2.SecretListResponse(items=items, environment_name="main")

    async def secret_delete(self, request: api_pb2.SecretDeleteRequest) -> Empty:
        self._store.remove(self._thing(request.secret_id).id)
        return Empty()

    def _thing(self, secret_id: str) -> Thing:
        thing = self._store.find(secret_id)
        if thing is None:
            raise GRPCError(Status.NOT_FOUND, f"Secret '{secret_id}' not found")
        return thing

    def _require(self, secret: Thing, keys: Iterable[str]) -> None:
        missing = set(keys) - set(orjson.loads(secret.body))
        if missing:
            raise GRPCError(Status.NOT_FOUND, f"Secret is missing key(s): {', '.join(sorted(missing))}")


def _metadata(secret: Thing) -> api_pb2.SecretMetadata:
    return api_pb2.SecretMetadata(name=secret.name, keys=list(orjson.loads(secret.body)), environment_name="main")
