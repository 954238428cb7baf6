"""The root of every error that a user can cause or has to hear of."""

from __future__ import annotations


class KoderzError(Exception):
    """Says in one or two lines what happened, where, and what to do next.

    The command line prints the message without a traceback and ends with `exit_code`:
    2 wrong usage, configuration or input · 3 ended with faults or at a cap · 4 unreachable.
    """

    exit_code = 2


class JournalError(KoderzError):
    """The journal of a run can't be read, or isn't one."""


class RunBusy(KoderzError):
    """Another process is working on the run."""


class StorageError(JournalError):
    """The disk refuses what has to be recorded. What was recorded is safe, and the run can be resumed."""

    exit_code = 3
