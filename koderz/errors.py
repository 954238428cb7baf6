"""All errors of koderz, as one tree.

KoderzError            wrong usage, configuration or input file (exit 2)
├─ JournalError        a run's journal can't be read, or isn't one
│  └─ StorageError     the disk refuses what has to be recorded (exit 3)
├─ Unreachable         something that nothing can do without is not there (exit 4)
└─ Fault               not the model's doing; ends one experiment, never counts as a verdict (exit 3)
   ├─ RunStopped        no more calls are made in this session, which can be resumed
   ├─ UserCodeFault     a solver, suite, scorer or metric raised an error that is no Fault
   └─ FatalFault       every further call would end the same way: ends the run (exit 4)
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from koderz_tracker.errors import CAUSES, OTHER, JournalError, KoderzError, StorageError

__all__ = [
    "FatalFault",
    "Fault",
    "JournalError",
    "KoderzError",
    "PromptTooLong",
    "RunStopped",
    "StorageError",
    "Unreachable",
    "UserCodeFault",
    "frames_of",
    "raised_at",
    "writable",
]

if TYPE_CHECKING:
    from collections.abc import Mapping
    from traceback import FrameSummary

    from koderz_tracker.basis import Frame
    from koderz_tracker.errors import Cause

_MOST_FRAMES = 20
_LONGEST = 200  # characters of a line or a name


class Unreachable(KoderzError):
    """A server, key or program that the command needs is missing."""

    exit_code = 4


class Fault(KoderzError):
    """A failure that is not the model's: an unreachable server, a dead sandbox, a refused request. The run goes on."""

    exit_code = 3
    cause: Cause = OTHER

    def __init__(
        self,
        message: str,
        *,
        cause: Cause | None = None,
        throttled: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`cause`: a word of `tracker.errors`; None: that of the class.

        `throttled`: how often the providers of a call that got no answer refused it for load.
        """
        super().__init__(message)
        self.throttled = throttled
        if cause and cause not in CAUSES:
            raise ValueError(
                f"a fault has no cause {cause!r:.80}; it is one of {', '.join(CAUSES)}"
            )
        self.cause = cause or self.cause


class PromptTooLong(KoderzError):
    """A prompt is longer than the context of the model that answers, so that the experiment ends as a failure."""

    def __init__(self, reply: Any) -> None:
        """`reply` is the Reply that holds the server's words."""
        super().__init__(reply.text)
        self.reply = reply


class ReplyTimedOut(Fault):
    """A reply of a model that didn't end within `--request-timeout`; by `--timeout-is failure` no fault."""

    cause = "unreachable"


class UserCodeFault(Fault):
    """An error raised by a solver, suite, scorer or metric that is not a Fault. It is the fault's `__cause__`."""

    cause = "user_code"


class FatalFault(Fault):
    """A bad key or an unknown model: no further call can succeed, so the run ends."""

    exit_code = 4
    cause = "rejected"


class RunStopped(Fault):
    """No more calls are made in this session, and the run stops. It can be resumed."""

    cause: Cause = "rejected"


def frames_of(error: BaseException) -> list[Frame]:
    """The innermost 20 frames of an error in users' files, the raising one last.

    Those of installed packages are left out, unless there are no others: an extension may be installed, too. With
    `--debug` all frames are kept, of koderz and libraries too.
    """
    import sysconfig  # which no command needs that ends well, and every one loads this module
    import traceback
    from pathlib import Path

    found = traceback.extract_tb(error.__traceback__)
    if os.environ.get("KODERZ_DEBUG"):
        return [_frame(each) for each in found]
    here = Path(__file__).parent
    ours = (f"{here}{os.sep}", f"{here.parent / 'koderz_tracker'}{os.sep}", "<frozen ")
    installed = tuple(
        f"{sysconfig.get_path(name)}{os.sep}"
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    theirs = [each for each in found if not each.filename.startswith(ours)]
    own = [each for each in theirs if not each.filename.startswith(installed)]
    return [_frame(each) for each in (own or theirs)[-_MOST_FRAMES:]]


def raised_at(error: BaseException) -> str:
    """The place where users' code raised an error, as ` (own.py, line 3)`; empty if none did."""
    frames = frames_of(error)
    return f" ({frames[-1].file}, line {frames[-1].line})" if frames else ""


def _frame(of: FrameSummary) -> Frame:
    from pathlib import Path

    from koderz_tracker.basis import Frame  # which few commands that end with an error need

    return Frame(
        file=writable(of.filename.removeprefix(f"{Path.cwd()}{os.sep}"))[:_LONGEST],
        line=of.lineno or 0,
        function=writable(of.name)[:_LONGEST],
        source=writable(of.line or "")[:_LONGEST],
    )


def writable(text: str) -> str:
    """The text without halves of surrogate pairs, which no JSON can hold."""
    return text.encode("utf-8", "backslashreplace").decode()
