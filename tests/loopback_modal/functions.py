"""Functions and classes as an app asks for them: kept as sent, so that a test can read what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.store import Store, Thing

_GPUS = "ANY T4 L4 A10 A10G L40S A100 A100-40GB A100-80GB RTX-PRO-6000 H100 H100! H200 H200! B200 B200+ B300"
GPUS = frozenset(_GPUS.split())


@dataclass(frozen=True, slots=True)
class Deployed:
    """A function as it was asked for; `asked` is everything, the rest what tests look at most. Times in seconds."""

    id: str
    app_id: str
    name: str
    asked: api_pb2.Function
    gpu: str  # such as H100:2; empty for none
    volumes: dict[str, str]  # by the path they are mounted at, their ids
    secrets: tuple[str, ...]  # ids
    mounts: tuple[str, ...]  # ids
    retries: int
    timeout: int
    max_containers: int  # 0 for no limit
    concurrency: int  # inputs at once in one container
    web_url: str


class Functions:
    """A function's body is the request that created it; it is empty between its precreation and that."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def function_precreate(self, request: api_pb2.FunctionPrecreateRequest) -> api_pb2.FunctionPrecreateResponse:
        thing = self._placed(request.app_id, request.function_name, request.existing_function_id)
        metadata = api_pb2.FunctionHandleMetadata(
            function_name=request.function_name,
            function_type=request.function_type,
            function_schema=request.function_schema,
            app_id=request.app_id,
            web_url=_web_url(request.function_name) if request.HasField("webhook_config") else "",
            method_handle_metadata=_methods(request),
        )
        return api_pb2.FunctionPrecreateResponse(function_id=thing.id, handle_metadata=metadata)

    async def function_create(self, request: api_pb2.FunctionCreateRequest) -> api_pb2.FunctionCreateResponse:
        asked = asked_of(request)
        if (gpu := asked.resources.gpu_config.gpu_type) and gpu.upper() not in GPUS:
            raise GRPCError(Status.INVALID_ARGUMENT, f"Unknown GPU type: {gpu!r}.")
        placed = self._placed(request.app_id, asked.function_name, request.existing_function_id)
        self._store.rewrite(placed.id, request.SerializeToString())
        thing = self._thing(placed.id)
        return api_pb2.FunctionCreateResponse(
            function_id=thing.id, function=asked, handle_metadata=handle_of(thing), function_data=_data(request)
        )

    async def function_get(self, request: api_pb2.FunctionGetRequest) -> api_pb2.FunctionGetResponse:
        app = self._store.named("app", request.app_name)
        if app is None:
            raise no_app(request.app_name, request.environment_name)
        functions: dict[str, str] = orjson.loads(app.body)["functions"]
        if request.object_tag not in functions:
            raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' has no function '{request.object_tag}'.")
        thing = self._thing(functions[request.object_tag])
        data = _data(api_pb2.FunctionCreateRequest.FromString(thing.body))
        return api_pb2.FunctionGetResponse(function_id=thing.id, handle_metadata=handle_of(thing), function=data)

    async def function_get_by_id(self, request: api_pb2.FunctionGetByIdRequest) -> api_pb2.FunctionGetByIdResponse:
        thing = self._thing(request.function_id)
        return api_pb2.FunctionGetByIdResponse(handle_metadata=handle_of(thing))

    async def class_create(self, request: api_pb2.ClassCreateRequest) -> api_pb2.ClassCreateResponse:
        class_id = request.existing_class_id or self._store.add("class", "cs", parent=request.app_id).id
        return api_pb2.ClassCreateResponse(class_id=class_id, handle_metadata=api_pb2.ClassHandleMetadata())

    async def class_get(self, request: api_pb2.ClassGetRequest) -> api_pb2.ClassGetResponse:
        app = self._store.named("app", request.app_name)
        if app is None:
            raise no_app(request.app_name, request.environment_name)
        classes: dict[str, str] = orjson.loads(app.body)["classes"]
        if request.object_tag not in classes:
            raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' has no class '{request.object_tag}'.")
        return api_pb2.ClassGetResponse(class_id=classes[request.object_tag])

    def deployed(self) -> Iterator[Deployed]:
        """Every function that was ever created, in the order in which they first were."""
        return (deployed(thing) for thing in self._store.all("function") if thing.body)

    def varied(self) -> list[Deployed]:
        """Every variant of a function, named `FUNCTION@DIGEST`, in the order in which they were first asked for."""
        return [deployed(thing) for thing in self._store.all("variant")]

    def _placed(self, app_id: str, name: str, existing: str) -> Thing:
        found = self._store.find(existing) if existing else self._store.named("function", name, app_id)
        return found or self._store.add("function", "fu", name=name, parent=app_id)

    def _thing(self, function_id: str) -> Thing:
        thing = self._store.find(function_id)
        if thing is None:
            raise GRPCError(Status.NOT_FOUND, f"Function '{function_id}' not found")
        return thing


def deployed(thing: Thing) -> Deployed:
    """What was asked for a function."""
    request = api_pb2.FunctionCreateRequest.FromString(thing.body)
    asked, gpu = asked_of(request), asked_of(request).resources.gpu_config
    scaling = asked.autoscaler_settings
    return Deployed(
        id=thing.id,
        app_id=thing.parent,
        name=thing.name,
        asked=asked,
        gpu=f"{gpu.gpu_type}:{gpu.count}" if gpu.gpu_type else "",
        volumes={mount.mount_path: mount.volume_id for mount in asked.volume_mounts},
        secrets=tuple(asked.secret_ids),
        mounts=tuple(asked.mount_ids),
        retries=asked.retry_policy.retries,
        timeout=asked.timeout_secs,
        max_containers=asked.concurrency_limit or scaling.max_containers,
        concurrency=asked.max_concurrent_inputs or 1,
        web_url=handle_of(thing).web_url,
    )


def asked_of(request: api_pb2.FunctionCreateRequest) -> api_pb2.Function:
    """The function of a request, which has one for each choice of GPU: the one that is liked best."""
    ranked = request.function_data.ranked_functions
    return ranked[0].function if ranked else request.function


def handle_of(thing: Thing) -> api_pb2.FunctionHandleMetadata:
    """What the SDK has to know of a function to call it."""
    asked = asked_of(api_pb2.FunctionCreateRequest.FromString(thing.body))
    return api_pb2.FunctionHandleMetadata(
        function_name=thing.name,
        function_type=asked.function_type,
        definition_id=f"de-{thing.id}",
        app_id=thing.parent,
        web_url=_web_url(thing.name) if asked.webhook_config.type else "",
        class_parameter_info=asked.class_parameter_info if asked.is_class else None,
        function_schema=asked.function_schema,
        method_handle_metadata=_methods(asked),
        supported_input_formats=asked.supported_input_formats,
        supported_output_formats=asked.supported_output_formats,
    )


def layout_of(store: Store, app: Thing) -> api_pb2.AppLayout:
    """The app's functions and classes with what a handle on them has to know."""
    body = orjson.loads(app.body)
    layout = api_pb2.AppLayout(function_ids=body["functions"], class_ids=body["classes"])
    for function_id in body["functions"].values():
        if (function := store.find(function_id)) is not None:
            layout.objects.append(api_pb2.Object(object_id=function_id, function_handle_metadata=handle_of(function)))
    for class_id in body["classes"].values():
        layout.objects.append(api_pb2.Object(object_id=class_id, class_handle_metadata=api_pb2.ClassHandleMetadata()))
    return layout


def no_app(name: str, environment: str) -> GRPCError:
    return GRPCError(Status.NOT_FOUND, f"App '{name}' not found in environment '{environment or 'main'}'.")


def _data(request: api_pb2.FunctionCreateRequest) -> api_pb2.FunctionData:
    if request.HasField("function_data"):
        return request.function_data
    asked = request.function
    ranked = api_pb2.FunctionData.RankedFunction(rank=0, function=asked)
    return api_pb2.FunctionData(
        module_name=asked.module_name,
        function_name=asked.function_name,
        function_type=asked.function_type,
        timeout_secs=asked.timeout_secs,
        autoscaler_settings=asked.autoscaler_settings,
        ranked_functions=[ranked],
    )


def _methods(
    request: api_pb2.FunctionPrecreateRequest | api_pb2.Function,
) -> dict[str, api_pb2.FunctionHandleMetadata]:
    return {
        name: api_pb2.FunctionHandleMetadata(
            function_name=method.function_name,
            function_type=method.function_type,
            is_method=True,
            use_method_name=name,
            function_schema=method.function_schema,
            supported_input_formats=method.supported_input_formats,
            supported_output_formats=method.supported_output_formats,
        )
        for name, method in request.method_definitions.items()
    }


def _web_url(name: str) -> str:
    return f"https://loopback--{name.replace('_', '-').replace('.', '-').lower()}.modal.run"
