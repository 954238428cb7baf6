"""Terminals: standard streams that are closed, Ctrl-C with nothing to finish, and text of any origin made safe to show.

Closed streams are replaced, and what a full disk refuses doesn't end a run. Ctrl-C is one line and exit code 130,
without a traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


EXIT_UNSHOWN = 3


class _Output(io.FileIO):
    """Standard output that goes on where it can't be written, as on a full disk. A closed pipe is still an error."""

    problem = ""
    """Why something could not be written."""

    def write(self, data: Buffer) -> int:
        try:
            return super().write(data)
        except (BrokenPipeError, BlockingIOError):
            raise
        except OSError as error:
            self.problem = error.strerror or str(error)
            return memoryview(data).nbytes


def open_closed() -> None:
    """Opens closed standard streams on nothing, so that no file that is opened later takes their numbers.

    Python sets a stream to None if its descriptor is closed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(
                sys,
                name,
                open(number, "w" if number else "r", encoding="utf-8", closefd=False),  # noqa: SIM115
            )


def keep_going() -> _Output:
    """Replaces standard output by one that goes on where it can't be written."""
    raw, before = _Output(1, "w", closefd=False), sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.isatty(),
    )
    return raw


def exit_code(code: int, output: _Output) -> int:
    """The exit code of a command that ends with `code`: 3 instead of 0 if its output could not be written."""
    sys.stdout.flush()
    if not output.problem:
        return code
    sys.stderr.write(
        f"koderz: standard output can't be written ({output.problem}), so not all was shown\n"
    )
    return code or EXIT_UNSHOWN


def plain(text: str) -> str:
    """The text with every character that could steer a terminal made visible: control, format and bidi characters."""
    if text.isprintable():
        return text
    return "".join(_visible(char) if steers(char) else char for char in text)


def steers(char: str) -> bool:
    """Whether a terminal might act on the character instead of showing it."""
    if char in "\n\t" or char.isprintable():
        return False
    return unicodedata.category(char) != "Zs"  # spaces wider or narrower than usual are just spaces


def _visible(char: str) -> str:
    return repr(char)[1:-1] if ord(char) < 0xD800 or ord(char) > 0xDFFF else "\ufffd"


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
