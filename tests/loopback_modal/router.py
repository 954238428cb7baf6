"""Modal's task command router: what the SDK talks to for everything inside a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as router_pb2

from tests.loopback_modal.commands import Command
from tests.loopback_modal.sandboxes import Room, Sandboxes
from tests.loopback_modal.store import Bells

KEPT = 200  # commands that have ended and can still be asked about, in one sandbox
HELD = 50.0  # seconds a wait is held before the client asks again
_STDOUT = router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
_SANDBOX_STDOUT = router_pb2.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT


class Router:
    def __init__(self, sandboxes: Sandboxes, bells: Bells) -> None:
        self._sandboxes, self._bells = sandboxes, bells

    async def task_exec_start(self, request: router_pb2.TaskExecStartRequest) -> router_pb2.TaskExecStartResponse:
        room = self._room(request.task_id)
        if request.exec_id not in room.commands:  # else it was asked for again since the reply got lost
            variables = self._sandboxes.variables(request.secret_sources) | dict(request.env)
            try:
                command = await Command.start(
                    room.box, request.command_args, request.workdir or room.workdir, variables, self._bells
                )
            except OSError as error:
                raise GRPCError(Status.INVALID_ARGUMENT, f"{request.command_args[0]}: {error.strerror}") from error
            room.commands[request.exec_id] = command
            _forget_old(room)
            if request.timeout_secs:
                asyncio.get_running_loop().call_later(request.timeout_secs, command.kill)
        return router_pb2.TaskExecStartResponse()

    async def task_exec_stdio_read(
        self, request: router_pb2.TaskExecStdioReadRequest
    ) -> AsyncIterator[router_pb2.TaskExecStdioReadResponse]:
        command = self._command(request.task_id, request.exec_id)
        async for piece in _read(command, request.offset, errors=request.file_descriptor != _STDOUT):
            yield router_pb2.TaskExecStdioReadResponse(data=piece)

    async def task_exec_stdin_write(
        self, request: router_pb2.TaskExecStdinWriteRequest
    ) -> router_pb2.TaskExecStdinWriteResponse:
        command = self._command(request.task_id, request.exec_id)
        await command.write(request.data, request.offset, eof=request.eof)
        return router_pb2.TaskExecStdinWriteResponse()

    async def task_exec_stdin_write_stream(
        self, requests: AsyncIterator[router_pb2.TaskExecStdinWriteStreamRequest]
    ) -> router_pb2.TaskExecStdinWriteStreamResponse:
        begin = (await anext(requests)).start
        command, offset = self._command(begin.task_id, begin.exec_id), begin.offset
        async for one in requests:
            await command.write(one.data, offset, eof=one.WhichOneof("payload") == "end")
            offset += len(one.data)
        return router_pb2.TaskExecStdinWriteStreamResponse()

    async def task_exec_stdin_status(
        self, request: router_pb2.TaskExecStdinStatusRequest
    ) -> router_pb2.TaskExecStdinStatusResponse:
        command = self._command(request.task_id, request.exec_id)
        return router_pb2.TaskExecStdinStatusResponse(num_bytes_written=command.written, closed=command.stdin_closed)

    async def task_exec_wait(self, request: router_pb2.TaskExecWaitRequest) -> router_pb2.TaskExecWaitResponse:
        command = self._command(request.task_id, request.exec_id)
        try:
            async with asyncio.timeout(HELD):
                code = await asyncio.shield(command.finished)
        except TimeoutError:
            raise GRPCError(Status.DEADLINE_EXCEEDED, "it still runs") from None
        if code < 0:
            return router_pb2.TaskExecWaitResponse(signal=-code)
        return router_pb2.TaskExecWaitResponse(code=code)

    async def task_exec_poll(self, request: router_pb2.TaskExecPollRequest) -> router_pb2.TaskExecPollResponse:
        code = self._command(request.task_id, request.exec_id).code
        if code is None:
            return router_pb2.TaskExecPollResponse()
        return router_pb2.TaskExecPollResponse(signal=-code) if code < 0 else router_pb2.TaskExecPollResponse(code=code)

    async def sandbox_stdio_read_v2(
        self, request: router_pb2.SandboxStdioReadV2Request
    ) -> AsyncIterator[router_pb2.SandboxStdioReadV2Response]:
        main, offset = self._main(request.task_id), request.offset
        async for piece in _read(main, request.offset, errors=request.file_descriptor != _SANDBOX_STDOUT):
            yield router_pb2.SandboxStdioReadV2Response(data=piece, starting_offset=offset)
            offset += len(piece)

    async def sandbox_stdin_write_v2(
        self, request: router_pb2.SandboxStdinWriteV2Request
    ) -> router_pb2.SandboxStdinWriteV2Response:
        await self._main(request.task_id).write(request.data, request.offset, eof=request.eof)
        return router_pb2.SandboxStdinWriteV2Response()

    async def sandbox_wait_until_ready(
        self, request: router_pb2.SandboxWaitUntilReadyTcrRequest
    ) -> router_pb2.SandboxWaitUntilReadyTcrResponse:
        return router_pb2.SandboxWaitUntilReadyTcrResponse(ready_at=self._room(request.task_id).thing.created)

    async def task_reload_volumes(
        self, request: router_pb2.TaskReloadVolumesRequest
    ) -> router_pb2.TaskReloadVolumesResponse:
        self._room(request.task_id)
        return router_pb2.TaskReloadVolumesResponse()

    def _room(self, task_id: str) -> Room:
        room = self._sandboxes.live.get(task_id)
        if room is None:
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        return room

    def _command(self, task_id: str, exec_id: str) -> Command:
        command = self._room(task_id).commands.get(exec_id)
        if command is None:
            raise GRPCError(Status.NOT_FOUND, f"exec '{exec_id}' not found")
        return command

    def _main(self, task_id: str) -> Command:
        main = self._sandboxes.main(task_id)
        if main is None:
            raise GRPCError(Status.NOT_FOUND, "the sandbox runs no command of its own")
        return main


async def _read(command: Command, offset: int, *, errors: bool) -> AsyncIterator[bytes]:
    output = command.stderr if errors else command.stdout
    while True:
        if len(output.data) > offset:
            piece = bytes(output.data[offset : offset + (1 << 20)])
            offset += len(piece)
            yield piece
        elif output.closed:
            return
        else:
            await command.more(HELD)


def _forget_old(room: Room) -> None:
    ended = [exec_id for exec_id, command in room.commands.items() if command.code is not None]
    for exec_id in ended[:-KEPT]:
        del room.commands[exec_id]
