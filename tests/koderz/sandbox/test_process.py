"""Starting and ending koderz' own interpreters."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading

import pytest

from koderz.sandbox.process import begin, kill


def test_kill_leaves_the_exit_code_to_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
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
        kill(process)
        killed.set()
        return await process.wait()

    monkeypatch.setattr(os, "waitpid", late)
    assert asyncio.run(ended()) == 7


def test_kill_ends_a_process_and_may_come_again() -> None:
    async def ended() -> int | None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await begin(["/bin/cat"], theirs)
            kill(process)
            await process.wait()
        kill(process)
        return process.returncode

    assert asyncio.run(ended()) == -signal.SIGKILL
