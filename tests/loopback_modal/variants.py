"""Functions with other options, and classes with parameters: functions of their own below the one they vary."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.functions import asked_of, handle_of
from tests.loopback_modal.store import Store

_SINGLE = (
    "resources", "retry_policy", "concurrency_limit", "timeout_secs", "task_idle_timeout_secs",
    "target_concurrent_inputs", "max_concurrent_inputs", "batch_max_size", "batch_linger_ms",
)  # fmt: skip


class Variants:
    """A variant's body is the function's request with the options applied; its parameters are a thing below it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def function_bind_params(
        self, request: api_pb2.FunctionBindParamsRequest
    ) -> api_pb2.FunctionBindParamsResponse:
        base = self._store.find(request.function_id)
        if base is None:
            raise GRPCError(Status.NOT_FOUND, f"Function '{request.function_id}' not found")
        digest = sha256(base.body + request.SerializeToString(deterministic=True)).hexdigest()[:12]
        name = f"{base.name}@{digest}"
        variant = self._store.named("variant", name, base.parent)
        if variant is None:
            body = _varied(base.body, request.function_options)
            variant = self._store.add("variant", "fu", name=name, parent=base.parent, body=body)
            self._store.add("parameters", "pa", name="all", parent=variant.id, body=request.serialized_params)
        return api_pb2.FunctionBindParamsResponse(bound_function_id=variant.id, handle_metadata=handle_of(base))


def parameters_of(store: Store, function_id: str) -> bytes:
    """What a class was made with, as the SDK pickled it; empty for a plain function."""
    found = store.named("parameters", "all", function_id)
    return found.body if found else b""


def _varied(body: bytes, options: api_pb2.FunctionOptions) -> bytes:
    request = api_pb2.FunctionCreateRequest.FromString(body)
    asked = asked_of(request)
    given: dict[str, Any] = {field.name: value for field, value in options.ListFields() if field.name in _SINGLE}
    asked.MergeFrom(api_pb2.Function(**given))
    if options.replace_secret_ids:
        asked.ClearField("secret_ids")
    if options.replace_volume_mounts:
        asked.ClearField("volume_mounts")
    asked.secret_ids.extend(options.secret_ids)
    asked.volume_mounts.extend(options.volume_mounts)
    varied: bytes = request.SerializeToString()
    return varied
