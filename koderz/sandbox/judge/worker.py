"""One warm judge as asyncio sees it: nothing here ever blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import signal
import socket
import subprocess
from fnmatch import fnmatchcase
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.judge.jobs import Job, JobResult
from koderz.sandbox.judge.launch import ENVIRONMENT, Premises, command
from koderz.sandbox.linux import limits

GRACE_SECONDS = 5.0  # beyond a job's wall limit, before the judge itself is taken for stuck
BUSY = 0.05  # of that time; a judge that spends more of it on the processor isn't stuck, but busy with what it was told

_LONGEST_LINE = 1 << 20  # bytes of a result, which are a few thousand


class WorkerLostError(Exception):
    """A judge that died, or, if `hung`, had to be ended; if `busy`, because the candidate's results kept it so."""

    def __init__(self, *, hung: bool, busy: bool = False) -> None:
        super().__init__("hung" if hung else "died")
        self.hung, self.busy = hung, busy


class Worker:
    """One judge process with its zygote."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.layers: frozenset[str] = frozenset()
        self._reader, self._writer = reader, writer

    @classmethod
    async def start(cls, premises: Premises) -> Worker:
        """Fault when it doesn't come up."""
        ours, theirs = socket.socketpair()
        with theirs:
            streams = await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE)
            worker = cls(_begun(premises, theirs), *streams)
        try:
            await worker._greet(premises.start_seconds)
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def run(self, job: Job) -> JobResult:
        """WorkerLostError when the judge dies or gets stuck, after which it is of no more use."""
        self._writer.write(marshal.dumps(tuple(job)))
        while (told := await self._told(job.wall)) is None:  # the tests are loaded, and the clock starts anew
            pass
        return JobResult(*told)

    async def _told(self, wall: float) -> Any:
        """What the judge says next, within so many seconds and the grace. WorkerLostError as in `run`."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wall):
                    return await self._received()
            before = self._cpu_seconds()
            async with asyncio.timeout(GRACE_SECONDS):
                return await self._received()
        except TimeoutError as error:
            raise WorkerLostError(hung=True, busy=self._cpu_seconds() - before > BUSY * GRACE_SECONDS) from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WorkerLostError(hung=False) from error

    def _cpu_seconds(self) -> float:
        """What the judge has used; 0 once it has ended."""
        try:
            return limits.cpu_seconds(self.process.pid)
        except OSError:
            return 0.0

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    async def end(self) -> None:
        """An idle judge ends when its socket does; one that doesn't is killed."""
        try:
            self._writer.write_eof()
            async with asyncio.timeout(GRACE_SECONDS):
                await self._reader.read()
        except (TimeoutError, OSError):
            pass  # what it would be waited for in vain is done all the same
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Ends the judge and all that it started: one process group, which candidates can't leave."""
        self._writer.close()
        self._kill_group()
        assert self.process.stderr is not None
        with self.process.stderr:  # closed also where this is called off
            await asyncio.to_thread(self.process.wait)

    def _kill_group(self) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _greet(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                self.layers = frozenset(await self._received())
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            self._kill_group()
            await asyncio.to_thread(self.process.wait)
            raise Fault(f"the judge doesn't start: {self._complaint()}", cause="sandbox") from error

    def _complaint(self) -> str:
        """The last line of what a judge that is no more had to say."""
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        said = self.process.stderr.read() or b""
        lines = said.decode(errors="replace").strip().splitlines() or ["no reason given"]
        return lines[-1].removeprefix("EOFError: ")

    async def _received(self) -> Any:
        """The next line, whole or not at all: who is called off meanwhile takes nothing of it."""
        return json.loads(await self._reader.readuntil())


def _begun(premises: Premises, connection: socket.socket) -> subprocess.Popen[bytes]:
    """Not by asyncio, which waits for ever when called off while a process starts (CPython issue 119710)."""
    patterns = premises.passed
    passed = {name: value for name, value in os.environ.items() if any(fnmatchcase(name, each) for each in patterns)}
    return subprocess.Popen(
        command("judge.start", [json.dumps(premises._asdict())]),
        stdin=connection.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**passed, **ENVIRONMENT},
        cwd="/",
        start_new_session=True,  # Ctrl-C is koderz's to handle
    )
