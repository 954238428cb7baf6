"""Extraction within limits of size and time for any reply, without blocking the event loop.

A short reply is read at once, as nothing in it can take long. A longer one, which is rare, is read by an
interpreter of its own, which the kernel ends when its CPU time is up: in a thread, one call into the parser
or a regular expression would keep the lock that the loop needs.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from koderz.errors import Fault
from koderz.systems.code.extraction.blocks import Extraction
from koderz.systems.code.extraction.extraction import extract_program

SHORT = 16 << 10  # characters; the densest reply of that size takes a fifth of a second
LONGEST = 1 << 20  # characters
REMEMBERED = 1024  # short replies; the same one comes up again among the samples of a task
CPU_SECONDS = 10  # the densest of the longest replies takes two
_MEMORY = 2 << 30  # bytes
_TOO_MUCH = 3  # exit code
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGKILL)

# The packages' own __init__ would load the whole of koderz: stubs with the right paths stand in.
_SCRIPT = """
import json, resource, sys, types
for limit, value in (("RLIMIT_CPU", {cpu}), ("RLIMIT_AS", {memory})):
    try:
        resource.setrlimit(getattr(resource, limit), (value, value + 1))
    except (OSError, ValueError):  # less is allowed already, or the system has no such limit
        pass
for name, path in (("koderz", {package!r}), ("koderz.systems", {package!r} + "/systems"),
                   ("koderz.systems.code", {package!r} + "/systems/code")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from koderz.systems.code.extraction.extraction import extract_program
reply, prompt, entry_point, finish_reason = json.load(sys.stdin)
try:
    found = extract_program(reply, prompt, entry_point, finish_reason=finish_reason)
except MemoryError:
    sys.exit({too_much})
json.dump([found.program, found.cause, found.line_offset, found.reason], sys.stdout)
"""


async def extract_within_limits(
    reply: str, prompt: str, entry_point: str, finish_reason: str
) -> Extraction:
    """Extracts as `extract_program`; the cause is "no_code" for a reply that is too long or takes too long.

    Raises Fault where the interpreter that reads a long reply can't do so for no fault of the reply's.
    """
    if len(reply) <= SHORT:
        return _extracted(reply, prompt, entry_point, finish_reason)
    if len(reply) > LONGEST:
        reason = (
            f"The answer is too long: it has {len(reply):,} characters, "
            f"and code is looked for in at most {LONGEST:,}."
        )
        return Extraction(None, "no_code", reason=reason)
    return await _extracted_apart(json.dumps([reply, prompt, entry_point, finish_reason]).encode())


@lru_cache(maxsize=REMEMBERED)
def _extracted(reply: str, prompt: str, entry_point: str, finish_reason: str) -> Extraction:
    return extract_program(reply, prompt, entry_point, finish_reason=finish_reason)


async def _extracted_apart(request: bytes) -> Extraction:
    begun: list[subprocess.Popen[bytes]] = []
    called_off = threading.Event()

    def attempted() -> tuple[int, bytes, bytes]:
        with subprocess.Popen(
            _command(), stdin=-1, stdout=-1, stderr=-1, env={}, cwd="/"
        ) as process:
            begun.append(process)
            if called_off.is_set():  # while it began
                process.kill()
            answer, complaint = process.communicate(request)
        return process.returncode, answer, complaint

    def extracted() -> Extraction:
        status, answer, complaint = attempted()
        if status in _CRASHES:  # also for want of memory on this machine, but hardly twice
            status, answer, complaint = attempted()
        if status in (_TOO_MUCH, -signal.SIGXCPU):
            reason = f"The answer takes too long to read: no code was found in it within {CPU_SECONDS} s of CPU."
            return Extraction(None, "no_code", reason=reason)
        if status in _CRASHES:
            return Extraction(
                None, "no_code", reason="The answer can't be read: Python's parser crashes over it."
            )
        if status:
            lines = complaint.decode(errors="replace").strip().splitlines()
            raise Fault(
                f"the answer can't be read: {lines[-1] if lines else f'status {status}'}",
                cause="judge",
            )
        return Extraction(*json.loads(answer))

    try:
        return await asyncio.to_thread(extracted)
    except asyncio.CancelledError:
        called_off.set()
        for process in begun:
            process.kill()
        raise


def _command() -> list[str]:
    package = str(Path(__file__).resolve().parents[3])
    script = _SCRIPT.format(cpu=CPU_SECONDS, memory=_MEMORY, package=package, too_much=_TOO_MUCH)
    return [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", script]
