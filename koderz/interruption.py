"""Ctrl-C where there is nothing to finish: one line, exit code 130, no traceback."""

from __future__ import annotations

import os
import signal

EXIT_INTERRUPTED = 130


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process, wherever it is: no import and no thread that waits can get in its way."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as after nohup, or a host's
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt, as Python has it."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os.write(2, b"koderz: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
