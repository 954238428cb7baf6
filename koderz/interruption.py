"""Ctrl-C when there is nothing to finish: one line, exit code 130, no traceback."""

from __future__ import annotations

import os
import signal

EXIT_INTERRUPTED = 130


def leave_at_once() -> None:
    """Lets Ctrl-C end the process at once from now on, even within an import or while threads wait."""
    # elsewhere it is ignored, as after nohup, or a host's
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """Restores Python's handling of Ctrl-C, which raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os.write(2, b"koderz: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
