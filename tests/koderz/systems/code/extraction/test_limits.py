"""Replies of any size and shape: the loop goes on while they are read, and none is read without end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.systems.code.extraction import limits
from koderz.systems.code.extraction.blocks import Extraction
from koderz.systems.code.extraction.extraction import extract_program
from koderz.systems.code.extraction.limits import LONGEST, SHORT, extract_within_limits
from tests.conftest import PATIENCE, descendants, wait_for

PROMPT = "def area(sides):\n"
CODE = "```python\ndef area(sides):\n    return 1\n```\n"


def extracted(reply: str, finish_reason: str = "stop") -> Extraction:
    return asyncio.run(extract_within_limits(reply, PROMPT, "area", finish_reason))


@pytest.mark.parametrize("padding", [0, SHORT - len(CODE), SHORT, 100_000])
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("text", [CODE, "```python\ndef area(sides): return (\n```\n", "I can't.\ud800é\n"])
def test_reply_of_any_size_reads_the_same(text: str, finish_reason: str, padding: int) -> None:
    reply = "So it is.\n" * (padding // 10) + text

    assert extracted(reply, finish_reason) == extract_program(reply, PROMPT, "area", finish_reason=finish_reason)


def test_reply_that_is_too_long_holds_no_code_and_is_told_why() -> None:
    found = extracted(CODE + "x" * 15_000_000)

    assert (found.program, found.cause) == (None, "no_code")
    assert "15,000,0" in found.reason
    assert f"{LONGEST:,}" in found.reason


@pytest.mark.slow
def test_reply_that_takes_too_long_holds_no_code_and_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SCRIPT", limits._SCRIPT.replace("    found =", "    while True: pass\n    found ="))
    monkeypatch.setattr(limits, "CPU_SECONDS", 1)
    found = extracted(CODE * 1000)

    assert (found.program, found.cause) == (None, "no_code")
    assert "too long to read" in found.reason


def test_reply_that_needs_too_much_memory_holds_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SCRIPT", limits._SCRIPT.replace("    found =", "    bytearray(1 << 40)\n    found ="))

    assert extracted(CODE * 1000).cause == "no_code"


def test_interpreter_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SCRIPT", "raise SystemError('no such thing')")

    with pytest.raises(Fault, match="no such thing"):
        extracted(CODE * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_loop_runs_on_while_a_long_reply_is_read_and_cancelled(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    class Slow(subprocess.Popen[bytes]):
        """One that is called off before its beginner knows of it."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            time.sleep(seconds)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    monkeypatch.setattr(limits, "_SCRIPT", "while True: pass")
    monkeypatch.setattr(limits, "CPU_SECONDS", PATIENCE)

    async def call_off() -> None:
        reading = asyncio.create_task(extract_within_limits(CODE * 1000, PROMPT, "area", "stop"))
        await asyncio.to_thread(wait_for, _interpreters)
        assert not reading.done()
        reading.cancel()
        await asyncio.wait([reading])

    asyncio.run(call_off())
    wait_for(lambda: not _interpreters())


def _interpreters() -> set[int]:
    return {process for process in descendants(os.getpid()) if b"while True" in _command(process)}


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def test_short_reply_that_comes_again_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def extract(reply: str, *arguments: str, **named: str) -> Extraction:
        read.append(reply)
        return extract_program(reply, *arguments, **named)

    monkeypatch.setattr(limits, "extract_program", extract)
    limits._extracted.cache_clear()

    assert extracted(CODE) == extracted(CODE) != extracted("No code.")
    assert read == [CODE, "No code."]
