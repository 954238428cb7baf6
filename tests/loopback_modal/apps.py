"""Apps, environments, and who is there: what a client asks before anything else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import orjson
from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.containers import Containers
from tests.loopback_modal.functions import layout_of, no_app
from tests.loopback_modal.images import IMAGE_BUILDER
from tests.loopback_modal.store import Store, Thing, token

_DEPLOYED, _STOPPED = api_pb2.APP_STATE_DEPLOYED, api_pb2.APP_STATE_STOPPED


class Apps:
    """An app's body is `{"state", "layout", "deployed_at", …}`; its name is set once it is published."""

    def __init__(self, store: Store, containers: Containers) -> None:
        self._store, self._containers = store, containers

    async def client_hello(self, _request: Empty) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse(image_builder_version=IMAGE_BUILDER)

    async def auth_token_get(self, _request: api_pb2.AuthTokenGetRequest) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=token())

    async def workspace_name_lookup(self, _request: Empty) -> api_pb2.WorkspaceNameLookupResponse:
        return api_pb2.WorkspaceNameLookupResponse(workspace_name="loopback", username="loopback")

    async def environment_get_or_create(
        self, request: api_pb2.EnvironmentGetOrCreateRequest
    ) -> api_pb2.EnvironmentGetOrCreateResponse:
        settings = api_pb2.EnvironmentSettings(image_builder_version=IMAGE_BUILDER)
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-main", metadata=metadata)

    async def app_create(self, request: api_pb2.AppCreateRequest) -> api_pb2.AppCreateResponse:
        app = self._create(request.description, request.app_state)
        page = f"https://modal.com/id/{app.id}"
        return api_pb2.AppCreateResponse(app_id=app.id, app_page_url=page, app_logs_url=page)

    async def app_get_or_create(self, request: api_pb2.AppGetOrCreateRequest) -> api_pb2.AppGetOrCreateResponse:
        app = self._store.named("app", request.app_name)
        if app is None and request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
            app = self._create(request.app_name, _DEPLOYED)
            self._store.rename(app.id, request.app_name)
        if app is None:
            raise no_app(request.app_name, request.environment_name)
        return api_pb2.AppGetOrCreateResponse(app_id=app.id)

    async def app_get_by_deployment_name(
        self, request: api_pb2.AppGetByDeploymentNameRequest
    ) -> api_pb2.AppGetByDeploymentNameResponse:
        app = self._store.named("app", request.name)
        if app is None:
            return api_pb2.AppGetByDeploymentNameResponse()
        body = orjson.loads(app.body)
        lifecycle = api_pb2.AppLifecycle(
            app_state=body["state"],
            created_at=app.created,
            deployed_at=body.get("deployed_at", 0),
            version=body.get("version", 0),
        )
        return api_pb2.AppGetByDeploymentNameResponse(app_id=app.id, environment_name="main", lifecycle=lifecycle)

    async def app_get_layout(self, request: api_pb2.AppGetLayoutRequest) -> api_pb2.AppGetLayoutResponse:
        return api_pb2.AppGetLayoutResponse(app_layout=layout_of(self._store, self._app(request.app_id)))

    async def app_publish(self, request: api_pb2.AppPublishRequest) -> api_pb2.AppPublishResponse:
        app, now = self._app(request.app_id), time.time()
        body = orjson.loads(app.body)
        body |= {"functions": dict(request.function_ids), "classes": dict(request.class_ids), "deployed_at": now}
        body |= {"state": request.app_state or body["state"], "version": body.get("version", 0) + 1}
        self._store.rewrite(app.id, orjson.dumps(body))
        if request.name and app.name != request.name:
            self._store.rename(app.id, request.name)
        self._containers.retire(app.id)
        url = f"https://modal.com/apps/loopback/main/deployed/{request.name}"
        return api_pb2.AppPublishResponse(url=url, deployed_at=now)

    async def app_list(self, _request: api_pb2.AppListRequest) -> api_pb2.AppListResponse:
        return api_pb2.AppListResponse(apps=[_listed(app) for app in self._store.all("app")])

    async def app_stop(self, request: api_pb2.AppStopRequest) -> Empty:
        self._stop(self._app(request.app_id))
        return Empty()

    async def app_client_disconnect(self, request: api_pb2.AppClientDisconnectRequest) -> Empty:
        app = self._app(request.app_id)
        if orjson.loads(app.body)["state"] == api_pb2.APP_STATE_EPHEMERAL:
            self._stop(app)
        return Empty()

    async def app_heartbeat(self, _request: api_pb2.AppHeartbeatRequest) -> Empty:
        return Empty()

    async def app_get_logs(self, request: api_pb2.AppGetLogsRequest) -> AsyncIterator[api_pb2.TaskLogsBatch]:
        """Nothing, until the app is over."""
        while orjson.loads(self._app(request.app_id).body)["state"] == api_pb2.APP_STATE_EPHEMERAL:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield api_pb2.TaskLogsBatch(app_done=True)

    def _create(self, description: str, state: int) -> Thing:
        body = orjson.dumps({"description": description, "state": state, "functions": {}, "classes": {}})
        return self._store.add("app", "ap", body=body)

    def _app(self, app_id: str) -> Thing:
        app = self._store.find(app_id)
        if app is None:
            raise GRPCError(Status.NOT_FOUND, f"App '{app_id}' not found")
        return app

    def _stop(self, app: Thing) -> None:
        """Modal forgets a stopped app's name at once: a lookup no longer finds it, a deploy makes a new app."""
        body = orjson.loads(app.body) | {"state": _STOPPED, "stopped_at": time.time()}
        self._store.rewrite(app.id, orjson.dumps(body))
        self._store.rename(app.id, "")
        self._containers.stop(app.id)


def _listed(app: Thing) -> api_pb2.AppListResponse.AppListItem:
    body = orjson.loads(app.body)
    return api_pb2.AppListResponse.AppListItem(
        app_id=app.id,
        name=app.name,
        description=body["description"],
        state=body["state"],
        created_at=app.created,
        stopped_at=body.get("stopped_at", 0),
    )
