"""Sandboxes: a folder of its own each, in which commands are run; what was asked is kept as sent.

They are processes of this machine. Their network is cut where that was asked and namespaces are to be had, but they
contain nothing: don't run what you don't trust here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.commands import Command
from tests.loopback_modal.processes import Box
from tests.loopback_modal.starting import Seen, Starting
from tests.loopback_modal.store import Bells, Store, Thing, new_id, token
from tests.loopback_modal.vault import Vault

_Result = api_pb2.GenericResult
_TERMINATED = _Result(status=_Result.GENERIC_STATUS_TERMINATED, exitcode=137)
_TIMED_OUT = _Result(status=_Result.GENERIC_STATUS_TIMEOUT, exitcode=124)


@dataclass(slots=True)
class Room:
    """A sandbox that lives."""

    thing: Thing
    task_id: str
    box: Box
    workdir: str
    main: Command | None = None
    commands: dict[str, Command] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Sandboxed:
    """A sandbox as it was asked for."""

    id: str
    app_id: str
    asked: api_pb2.Sandbox
    secrets: tuple[str, ...]  # ids
    variables: tuple[str, ...]  # names of those given without a secret of a name
    blocks_network: bool
    lives: bool
    tags: Mapping[str, str]


class Sandboxes:
    """A sandbox's body is the request that created it; how it ended is a thing of its own below it."""

    def __init__(self, store: Store, starting: Starting, vault: Vault, bells: Bells) -> None:
        self._store, self._starting, self._vault, self._bells = store, starting, vault, bells
        self.live: dict[str, Room] = {}  # by task id
        self._mains: dict[str, Command] = {}  # of sandboxes alive and dead, whose output can still be read
        self._tasks: set[asyncio.Task[None]] = set()

    def forget_the_dead(self) -> None:
        """What lived when the server went away doesn't any more."""
        for thing in self._store.all("sandbox"):
            if self._result(thing) is None:
                self._store.add("result", "rs", name="result", parent=thing.id, body=_TERMINATED.SerializeToString())

    async def sandbox_create_v2(self, request: api_pb2.SandboxCreateV2Request) -> api_pb2.SandboxCreateV2Response:
        room = await self._created("sb2", request)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=room.thing.id,
            task_id=room.task_id,
            metadata=api_pb2.SandboxHandleMetadata(app_id=room.thing.parent),
            command_router_access=api_pb2.CommandRouterAccess(url=self._starting.url, jwt=token()),
        )

    async def sandbox_create(self, request: api_pb2.SandboxCreateRequest) -> api_pb2.SandboxCreateResponse:
        """Of version 1, as sandboxes with a GPU are."""
        parts = {"app_id": request.app_id, "definition": request.definition, "tags": request.tags}
        room = await self._created("sb", api_pb2.SandboxCreateV2Request(**parts))
        metadata = api_pb2.SandboxHandleMetadata(app_id=room.thing.parent)
        return api_pb2.SandboxCreateResponse(sandbox_id=room.thing.id, metadata=metadata)

    async def _created(self, kind: str, request: api_pb2.SandboxCreateV2Request) -> Room:
        asked = request.definition
        thing = self._store.add(
            "sandbox", kind, name=asked.name, parent=request.app_id, body=request.SerializeToString()
        )
        room = self._open(thing, asked, self.variables(request.secret_sources))
        self.live[room.task_id] = room
        if asked.entrypoint_args:
            room.main = await Command.start(room.box, asked.entrypoint_args, asked.workdir, {}, self._bells)
            self._mains[room.task_id] = room.main
            self._follow(room, room.main)
        if asked.timeout_secs:
            loop = asyncio.get_running_loop()
            room.timer = loop.call_later(asked.timeout_secs, self._end, room, _TIMED_OUT)
        return room

    async def sandbox_get_command_router_access(
        self, _request: api_pb2.SandboxGetCommandRouterAccessRequest
    ) -> api_pb2.SandboxGetCommandRouterAccessResponse:
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=self._starting.url, jwt=token())

    async def task_get_command_router_access(
        self, _request: api_pb2.TaskGetCommandRouterAccessRequest
    ) -> api_pb2.TaskGetCommandRouterAccessResponse:
        return api_pb2.TaskGetCommandRouterAccessResponse(url=self._starting.url, jwt=token())

    async def sandbox_get_task_id(self, request: api_pb2.SandboxGetTaskIdRequest) -> api_pb2.SandboxGetTaskIdResponse:
        return await self.sandbox_get_task_id_v2(request)

    async def sandbox_wait(self, request: api_pb2.SandboxWaitRequest) -> api_pb2.SandboxWaitResponse:
        return await self.sandbox_wait_v2(request)

    async def sandbox_terminate(self, request: api_pb2.SandboxTerminateRequest) -> api_pb2.SandboxTerminateResponse:
        return await self.sandbox_terminate_v2(request)

    async def sandbox_tags_get(self, request: api_pb2.SandboxTagsGetRequest) -> api_pb2.SandboxTagsGetResponse:
        return await self.sandbox_tags_get_v2(request)

    async def sandbox_get_task_id_v2(
        self, request: api_pb2.SandboxGetTaskIdRequest
    ) -> api_pb2.SandboxGetTaskIdResponse:
        thing = self._thing(request.sandbox_id)
        for room in self.live.values():
            if room.thing.id == thing.id:
                return api_pb2.SandboxGetTaskIdResponse(task_id=room.task_id)
        return api_pb2.SandboxGetTaskIdResponse(task_result=self._result(thing))

    async def sandbox_wait_v2(self, request: api_pb2.SandboxWaitRequest) -> api_pb2.SandboxWaitResponse:
        thing = self._thing(request.sandbox_id)
        metadata = api_pb2.SandboxHandleMetadata(app_id=thing.parent)
        if self._result(thing) is None and request.timeout > 0:
            await self._bells.wait(thing.id, request.timeout)
        return api_pb2.SandboxWaitResponse(result=self._result(thing), metadata=metadata)

    async def sandbox_terminate_v2(self, request: api_pb2.SandboxTerminateRequest) -> api_pb2.SandboxTerminateResponse:
        thing = self._thing(request.sandbox_id)
        before = self._result(thing)
        self.terminate(thing.id)
        return api_pb2.SandboxTerminateResponse(existing_result=before)

    async def sandbox_list_v2(self, request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
        if request.before_timestamp:  # all were on the first page
            return api_pb2.SandboxListResponse()
        wanted = _tags(request.tags).items()
        found = [
            api_pb2.SandboxInfo(id=room.thing.id, created_at=room.thing.created, app_id=room.thing.parent)
            for room in self.live.values()
            if request.app_id in {"", room.thing.parent} and wanted <= _tags(_request(room.thing).tags).items()
        ]
        return api_pb2.SandboxListResponse(sandboxes=found)

    async def sandbox_tags_get_v2(self, request: api_pb2.SandboxTagsGetRequest) -> api_pb2.SandboxTagsGetResponse:
        return api_pb2.SandboxTagsGetResponse(tags=_request(self._thing(request.sandbox_id)).tags)

    async def sandbox_tags_set_v2(self, request: api_pb2.SandboxTagsSetRequest) -> Empty:
        self._thing(request.sandbox_id)
        return Empty()

    def terminate(self, sandbox_id: str) -> None:
        for room in [one for one in self.live.values() if one.thing.id == sandbox_id]:
            self._end(room, _TERMINATED)

    def asked(self) -> list[Sandboxed]:
        """All that were ever created."""
        living = {room.thing.id for room in self.live.values()}
        return [_sandboxed(thing, lives=thing.id in living) for thing in self._store.all("sandbox")]

    def variables(self, sources: Iterable[api_pb2.SecretSource]) -> dict[str, str]:
        merged: dict[str, str] = {}
        for source in sources:
            named = source.WhichOneof("source") == "secret_id"
            merged |= self._vault.environment([source.secret_id]) if named else dict(source.env.contents)
        return merged

    def main(self, task_id: str) -> Command | None:
        """The command that a sandbox was created with."""
        return self._mains.get(task_id)

    async def close(self) -> None:
        for room in list(self.live.values()):
            self._end(room, _TERMINATED)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _open(self, thing: Thing, asked: api_pb2.Sandbox, variables: dict[str, str]) -> Room:
        task_id = new_id("ta")
        if len(thing.id) > len("sb-") + 22:
            task_id += "V"  # which tells the SDK which protocol to speak
        seen = Seen(asked.image_id, asked.mount_ids, asked.volume_mounts, asked.secret_ids)
        own = {"MODAL_SANDBOX_ID": thing.id, **variables}
        box = self._starting.box(task_id, seen, own, network=not _blocks_network(asked), apart=True)
        return Room(thing, task_id, box, asked.workdir)

    def _follow(self, room: Room, main: Command) -> None:
        async def follow() -> None:
            code = await asyncio.shield(main.finished)
            status = _Result.GENERIC_STATUS_SUCCESS if code == 0 else _Result.GENERIC_STATUS_FAILURE
            self._end(room, _Result(status=status, exitcode=code if code >= 0 else 128 - code))

        task = asyncio.create_task(follow())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, room: Room, result: api_pb2.GenericResult) -> None:
        if self.live.pop(room.task_id, None) is None:
            return
        if room.timer is not None:
            room.timer.cancel()
        for command in [*room.commands.values(), *([room.main] if room.main else [])]:
            command.kill()
        self._store.add("result", "rs", name="result", parent=room.thing.id, body=result.SerializeToString())
        self._store.rename(room.thing.id, "")
        self._starting.clear(room.task_id)
        self._bells.ring(room.thing.id)

    def _result(self, thing: Thing) -> api_pb2.GenericResult | None:
        found = self._store.named("result", "result", thing.id)
        return api_pb2.GenericResult.FromString(found.body) if found else None

    def _thing(self, sandbox_id: str) -> Thing:
        thing = self._store.find(sandbox_id)
        if thing is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox '{sandbox_id}' not found")
        return thing


def _sandboxed(thing: Thing, *, lives: bool) -> Sandboxed:
    request = _request(thing)
    asked = request.definition
    ids = [one.secret_id for one in request.secret_sources if one.WhichOneof("source") == "secret_id"]
    names = [name for one in request.secret_sources for name in one.env.contents]
    return Sandboxed(
        id=thing.id,
        app_id=thing.parent,
        asked=asked,
        secrets=tuple(dict.fromkeys([*asked.secret_ids, *ids])),
        variables=tuple(sorted(names)),
        blocks_network=_blocks_network(asked),
        lives=lives,
        tags=_tags(request.tags),
    )


def _request(thing: Thing) -> api_pb2.SandboxCreateV2Request:
    request: api_pb2.SandboxCreateV2Request = api_pb2.SandboxCreateV2Request.FromString(thing.body)
    return request


def _tags(tags: Iterable[api_pb2.SandboxTag]) -> dict[str, str]:
    return {tag.tag_name: tag.tag_value for tag in tags}


def _blocks_network(asked: api_pb2.Sandbox) -> bool:
    return asked.block_network or asked.network_access.network_access_type == api_pb2.NetworkAccess.BLOCKED
