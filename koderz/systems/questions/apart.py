"""ReadingRule of replies in a process of its own, which is ended when it takes too long.

A regular expression can't be stopped within a process, and one call of it keeps the lock that the event loop needs.
So patterns that aren't koderz' own, and replies that are very long, are read by one more interpreter.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from typing import IO

from koderz.errors import Fault
from koderz.suites.metrics import Graded
from koderz.systems.questions.question import Question
from koderz.systems.questions.rules import ScoringRule, nothing_read

SHORT = 32 << 10  # characters of a reply that koderz' own patterns read at once
LONGEST = 16 << 20  # characters
SECONDS = 5.0  # of CPU
_WALL = 300.0  # seconds that a reading may take on a machine that is busy
_LONGEST_REASON = 2000  # characters
_START = 60.0  # seconds in which the process has to begin
_SIZE = struct.Struct("<I")
_SCRIPT = (
    "import sys; sys.path[:] = {path!r}; from koderz.systems.questions.apart import serve; serve()"
)


class Reader:
    """A process that reads one reply after another; it is started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Reader] | None = None

    async def grade(self, rule: ScoringRule, question: Question, reply: str) -> Graded:
        """The score and answer of a reply by the rule; unread if it takes more than SECONDS of CPU.

        Raises Fault if the process ends for no fault of the reply's.
        """
        if len(reply) > LONGEST:
            return nothing_read(
                f"the reply has {len(reply):,} characters, and is read up to {LONGEST:,}"
            )
        request = pickle.dumps((rule, question, reply, SECONDS))
        return await asyncio.to_thread(self._graded, request)

    def _graded(self, request: bytes) -> Graded:
        with self._lock:
            process = self._begun()
            assert process.stdin
            assert process.stdout
            try:
                process.stdin.write(_SIZE.pack(len(request)) + request)
                process.stdin.flush()
                answer = _received(process.stdout, _WALL)
            except (OSError, EOFError) as error:
                if process.wait() == -signal.SIGPROF:
                    self.close()
                    return nothing_read(f"no answer was read within {SECONDS:g} s of CPU")
                self.close()
                what = f"the answer can't be read: the process that reads it ended ({error})"
                raise Fault(what, cause="judge") from None
            if answer is None:
                self.close()
                return nothing_read(f"no answer was read within {_WALL:g} s")
        found = pickle.loads(answer)  # noqa: S301 of koderz' own process
        if isinstance(found, str):
            raise Fault(f"the answer can't be read: {found}", cause="judge")
        return Graded(*found)

    def _begun(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [
                sys.executable,
                "-I",
                "-B",
                "-X",
                "utf8",
                "-c",
                _SCRIPT.format(path=sys.path),
            ]
            self._process = subprocess.Popen(
                command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL
            )
            self._end = weakref.finalize(self, _ended, self._process)
            assert self._process.stdout
            if _received(self._process.stdout, _START) is None:
                self.close()
                raise Fault(
                    "the answer can't be read: the process that reads it doesn't start",
                    cause="judge",
                )
        return self._process

    def close(self) -> None:
        """Ends the process."""
        if self._end:
            self._end()
        self._process = self._end = None


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            try:
                pipe.close()
            except OSError:  # what was to be written has no reader any more
                continue


def _received(pipe: IO[bytes], seconds: float) -> bytes | None:
    """The next message; None if it isn't there in time. Raises EOFError where the process has ended."""
    until, data = time.monotonic() + seconds, b""
    while len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack_from(data)[0]:
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        more = os.read(pipe.fileno(), 1 << 16)
        if not more:
            raise EOFError("no more output")
        data += more
    return data[_SIZE.size :]


def serve() -> None:
    """Answers requests on the standard input until it ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer

    def send(value: object) -> None:
        answer = pickle.dumps(value)
        target.write(_SIZE.pack(len(answer)) + answer)
        target.flush()

    send("ready")
    while head := source.read(_SIZE.size):
        rule, question, reply, seconds = pickle.loads(source.read(_SIZE.unpack(head)[0]))  # noqa: S301 of the process that began this one
        try:
            rule.prepare()
            # its signal ends the process, also within a pattern
            signal.setitimer(signal.ITIMER_PROF, seconds)
            found = asyncio.run(rule.grade(question, reply))
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(
                tuple(
                    found._replace(
                        metrics=dict(found.metrics), reason=found.reason[:_LONGEST_REASON]
                    )
                )
            )
        except MemoryError:
            send(tuple(nothing_read("the reply takes too much memory to read")))
        except Exception as error:  # noqa: BLE001 it is told to whoever asked
            send(f"{type(error).__name__}: {error}")
