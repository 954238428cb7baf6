"""The near end of a command that runs far away: its folders are sent there, and what became of them comes back."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from koderz.errors import Fault
from koderz.sandbox import frames
from koderz.sandbox.frames import OversizeError, frame, take
from koderz.sandbox.scratch import own_folder, remove, scratch
from koderz.sandbox.workspace import Mount, Serve
from koderz.systems.workspaces import remote
from koderz.systems.workspaces.watching import Output

_BEAT_SECONDS = 30.0
_MOST_TOLD = 256 << 20  # bytes of an answer
_ENDED = "the command has ended"
_BOOT = """
import sys, types
for name, source in zip(("frames", "remote"), sys.argv[1:]):
    sys.modules[name] = types.ModuleType(name)
    exec(source, sys.modules[name].__dict__)
exec(sys.argv[3])
"""


def interpreter() -> list[str]:
    """The command there whose streams are a `Remote`'s."""
    here = Path(__file__).parent
    sources = (Path(frames.__file__), here / "remote.py", here / "guest/command.py")
    return ["python3", "-I", "-S", "-c", _BOOT, *(source.read_text() for source in sources)]


class Contact:
    """Requests to the far end while a command runs there."""

    def __init__(self) -> None:
        self._send: Callable[..., Awaitable[None]] | None = None
        self._numbers = count()
        self._answers: dict[int, tuple[bytearray, asyncio.Future[bytes]]] = {}

    async def cpu(self) -> int:
        """Nanoseconds that the command has used. OSError where nobody answers any more."""
        return int(await self._asked(remote.CLOCK, b""))

    async def beside(self, source: str, given: str) -> bytes:
        """See `koderz.sandbox.workspace.Beside`."""
        order = json.dumps({"source": source, "given": given}).encode()
        if not (answer := await self._asked(remote.BESIDE, order)):
            raise OSError("what was to run beside the command has failed")
        return answer

    @asynccontextmanager
    async def asking(self, send: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
        """While somebody is there to be asked."""
        self._send = send
        try:
            yield
        finally:
            self._send = None
            for _, answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(OSError(_ENDED))

    def tell(self, number: int, data: bytes, *, is_last: bool) -> None:
        """A part of an answer."""
        if number in self._answers:
            told, answer = self._answers[number]
            told += data
            if not answer.done() and (is_last or len(told) > _MOST_TOLD):
                answer.set_result(bytes(told))

    async def _asked(self, kind: bytes, data: bytes) -> bytes:
        if self._send is None:
            raise OSError(_ENDED)
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = bytearray(), answer
        try:
            for at in range(0, len(data), remote.LARGEST):
                await self._send(kind, data[at : at + remote.LARGEST], number)
            await self._send(kind, b"", number)
            return await answer
        finally:
            del self._answers[number]


@dataclass(frozen=True, slots=True)
class Remote:
    """An interpreter there that runs one command; its streams are such as those of Modal's SDK."""

    process: Any
    name: str  # by which faults call it

    async def done(
        self,
        spec: Mapping[str, Any],
        shipped: Sequence[Mount],
        output: Output,
        serve: Serve | None = None,
        contact: Contact | None = None,
    ) -> dict[str, Any]:
        """How the command ended, once its folders are back. Raises Fault where the sandbox is gone before."""
        back = [mount for mount in shipped if mount.writable]
        with (
            tempfile.TemporaryFile(dir=own_folder()) as there,
            tempfile.TemporaryFile(dir=own_folder()) as here,
        ):
            await asyncio.to_thread(
                remote.pack, [str(mount.source) for mount in shipped], there, math.inf
            )
            send, contact = _sender(self.process.stdin), contact or Contact()
            async with _bridged(serve, send) as hand_on, contact.asking(send):
                sending = asyncio.create_task(_sent(send, spec, there))
                try:
                    answer = await self._followed(here, output, hand_on, spec["room"], contact)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
            here.seek(0)
            await asyncio.to_thread(self._put_back, here, back, spec["room"])
        return answer

    async def _followed(
        self,
        archive: IO[bytes],
        output: Output,
        hand_on: Callable[[int, bytes], Awaitable[None]],
        room: int,
        contact: Contact,
    ) -> dict[str, Any]:
        async for kind, channel, data in self._frames():
            if kind == remote.OUTPUT:
                output.add(data)
            elif kind == remote.WIRE:
                await hand_on(channel, data)
            elif kind == remote.TREE and archive.tell() <= room + remote.LARGEST:
                archive.write(data)
            elif kind in (remote.CLOCK, remote.BESIDE):
                contact.tell(channel, data, is_last=kind == remote.CLOCK or not data)
            elif kind == remote.ENDED:
                answer: dict[str, Any] = json.loads(data)
                return answer
        complaint = (
            (await self.process.stderr.read.aio()).decode(errors="replace").strip().splitlines()
        )
        raise Fault(
            f"{self.name}: it is gone{': ' + complaint[-1][:300] if complaint else ''}",
            cause="sandbox",
        )

    async def _frames(self) -> AsyncIterator[tuple[bytes, int, bytes]]:
        buffer = bytearray()
        async for piece in self.process.stdout:
            buffer += piece
            try:
                while found := take(buffer, remote.LARGEST):
                    yield found
            except OversizeError:
                raise Fault(
                    f"{self.name}: it says what isn't understood", cause="sandbox"
                ) from None

    def _put_back(self, archive: IO[bytes], mounts: Sequence[Mount], room: int) -> None:
        """Puts what came back in the place of what was sent. Raises Fault where it can't be that."""
        with scratch() as fresh:
            folders = [fresh / str(number) for number in range(len(mounts))]
            for folder in folders:
                folder.mkdir()
            try:
                remote.unpack(archive, [str(folder) for folder in folders], room)
            except (
                ValueError,
                OverflowError,
                OSError,
                EOFError,
                tarfile.TarError,
                zlib.error,
            ) as error:
                raise Fault(
                    f"{self.name}: what came back can't be read: {error}", cause="sandbox"
                ) from error
            for mount, folder in zip(mounts, folders, strict=True):
                remove(mount.source)
                folder.rename(mount.source)


def _sender(stdin: Any) -> Callable[..., Awaitable[None]]:
    sending = asyncio.Lock()

    async def send(kind: bytes, data: bytes = b"", channel: int = 0) -> None:
        async with sending:
            stdin.write(frame(kind, data, channel))
            await stdin.drain.aio()

    return send


async def _sent(
    send: Callable[..., Awaitable[None]], spec: Mapping[str, Any], archive: IO[bytes]
) -> None:
    """Sends what is to be done, and then a sign of life now and then."""
    await send(remote.SPEC, json.dumps(spec).encode())
    archive.seek(0)
    while part := archive.read(remote.LARGEST):
        await send(remote.TREE, part)
    await send(remote.TREE)
    while True:
        await asyncio.sleep(_BEAT_SECONDS)
        await send(remote.BEAT)


@asynccontextmanager
async def _bridged(
    serve: Serve | None, send: Callable[..., Awaitable[None]]
) -> AsyncIterator[Callable[[int, bytes], Awaitable[None]]]:
    """Forward bytes of a numbered remote connection to the bridge's server here; no bytes close it."""
    address, writers = None, dict[int, asyncio.StreamWriter]()
    pumps = set[asyncio.Task[None]]()
    if serve:
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        await serve(listening)

    async def pump(channel: int, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while part := await reader.read(remote.LARGEST):
                await send(remote.WIRE, part, channel)
        writers.pop(channel).close()
        await send(remote.WIRE, b"", channel)

    async def hand_on(channel: int, data: bytes) -> None:
        with suppress(ConnectionError):
            if data and channel not in writers and address:
                reader, writers[channel] = await asyncio.open_connection(*address)
                pumps.add(asyncio.create_task(pump(channel, reader)))
            if writer := writers.get(channel):
                if data:
                    writer.write(data)
                else:
                    writer.write_eof()
                await writer.drain()

    try:
        yield hand_on
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in writers.values():
            writer.close()
