"""Starting and ending koderz' own interpreters."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading

import pytest

from koderz.sandbox.process import begin, reap


def test_reap_leaves_the_exit_code_to_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio waits for processes in a thread, which comes too late where its process is reaped by somebody else."""
    waitpid, here, killed = os.waitpid, threading.get_ident(), threading.Event()

    def late(process: int, options: int) -> tuple[int, int]:
        if threading.get_ident() != here:
            killed.wait()
        return waitpid(process, options)

    async def ended() -> int | None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await begin(["/bin/sh", "-c", "exit 7"], theirs)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 # it has ended, and nobody has reaped it
        reaping = asyncio.create_task(reap(process))
        await asyncio.sleep(0)
        killed.set()
        await reaping
        return process.returncode

    monkeypatch.setattr(os, "waitpid", late)
    assert asyncio.run(ended()) == 7


def test_reap_ends_a_process_and_may_come_again() -> None:
    async def ended() -> int | None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await begin(["/bin/cat"], theirs)
            await reap(process)
        await reap(process)
        return process.returncode

    assert asyncio.run(ended()) == -signal.SIGKILL


def test_reap_waits_for_the_end_however_often_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    waitpid, may_end = os.waitpid, threading.Event()

    def late(process: int, options: int) -> tuple[int, int]:
        may_end.wait()
        return waitpid(process, options)

    async def ended() -> int | None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await begin(["/bin/cat"], theirs, stdout=asyncio.subprocess.PIPE)
            reaping = asyncio.create_task(reap(process))
            for _ in range(3):
                await asyncio.sleep(0)
                reaping.cancel()
            assert not (await asyncio.wait([reaping], timeout=0))[0]
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await reaping
        return process.returncode

    monkeypatch.setattr(os, "waitpid", late)
    assert asyncio.run(ended()) == -signal.SIGKILL
