"""A fresh isolated interpreter a candidate: simple, portable, and not contained.

The candidate and its tests share a process, in a session of its own with limits on CPU, memory, output,
files and wall time, with no environment. What it can read or reach is not limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, cast

from koderz.errors import Fault
from koderz.sandbox import Job, Outcome
from koderz.types import VerdictWord

HARNESS = Path(__file__).with_name("harness.py")
_WALL_FACTOR, _WALL_SLACK = 2.0, 5.0  # the wall limit is a back-stop: CPU seconds are what is limited
_WORDS = ("passed", "failed", "timeout", "error")


class InterpreterSandbox:
    """Judges up to `judges` candidates at once."""

    name = "interpreter"

    def __init__(self, *, judges: int) -> None:
        self._threads = ThreadPoolExecutor(judges, thread_name_prefix="koderz-judge")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def judge(self, job: Job) -> Outcome:
        """Raises Fault where no interpreter can be started."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _judge, job)


def _judge(job: Job) -> Outcome:
    token = secrets.token_hex(16)
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="koderz-") as folder:
            run = _Run(job, token, folder)
            try:
                run.watch()
            finally:
                cpu = run.end()
    except OSError as error:
        raise Fault(f"no interpreter can be started for a candidate: {error}") from None
    return run.outcome(cpu, time.monotonic() - started)


class _Run:
    """One candidate's process."""

    def __init__(self, job: Job, token: str, folder: str) -> None:
        self._job, self._token = job, token
        self._over = ""  # the limit that it ran over
        self._output, self._report = 0, bytearray()
        report, write = os.pipe()
        self._pipe = os.fdopen(report, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(HARNESS), str(write)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[write],
                cwd=folder,
                env={},
                start_new_session=True,
            )
        except OSError:
            self._pipe.close()
            raise
        finally:
            os.close(write)

    def watch(self) -> None:
        """Returns when the process has closed its pipes or ran over a limit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {name: getattr(self._job, name) for name in Job.__slots__} | {"token": self._token}
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(job).encode())
        deadline = time.monotonic() + self._job.timeout * _WALL_FACTOR + _WALL_SLACK
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            selector.register(self._pipe, selectors.EVENT_READ)
            while selector.get_map() and not self._over:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    self._over = "wall"
                for key, _ in ready:
                    self._read(selector, cast("Any", key.fileobj))

    def _read(self, selector: selectors.BaseSelector, pipe: Any) -> None:
        data = os.read(pipe.fileno(), 1 << 16)
        if not data:
            selector.unregister(pipe)
        elif pipe is self._pipe:
            self._report += data
            if len(self._report) > 1 << 20 or _whole(self._report):
                selector.unregister(pipe)
                self._over = self._over or "done"
        else:
            self._output += len(data)
            if self._output > self._job.output_limit:
                self._over = "output"

    def end(self) -> float:
        """Ends all that is left of its session; returns the CPU seconds that it took."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        _, self._status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(self._status)
        self._pipe.close()
        if self._process.stdout:
            self._process.stdout.close()
        return usage.ru_utime + usage.ru_stime

    def outcome(self, cpu: float, wall: float) -> Outcome:
        verdict, cause, message = self._found(cpu)
        return Outcome(verdict, cause, message, round(cpu, 4), round(wall, 4), InterpreterSandbox.name)

    def _found(self, cpu: float) -> tuple[VerdictWord, str, str]:
        limit = self._job.timeout
        if self._over == "output":
            return "error", "output", f"printed more than {self._job.output_limit} bytes"
        if self._over == "wall":
            return (
                "timeout",
                "wall",
                f"took too long: no result after {limit * _WALL_FACTOR + _WALL_SLACK:g} s",
            )
        report = _whole(self._report)
        if report.get("token") == self._token and report.get("verdict") in _WORDS:
            if cpu > limit:
                return "timeout", "cpu", f"took too long: more than {limit:g} s of CPU"
            return report["verdict"], str(report["cause"]), _printable(str(report["message"]))
        if cpu >= limit:
            return "timeout", "cpu", f"took too long: more than {limit:g} s of CPU"
        return (
            "error",
            "killed",
            f"the program ended before its tests did (status {self._process.returncode})",
        )


def _whole(report: bytearray) -> dict[str, Any]:
    try:
        found = json.loads(report)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _printable(text: str) -> str:
    """The text without lone surrogates, which no JSON file can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
