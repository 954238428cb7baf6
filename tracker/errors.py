"""The root of all errors that a user can cause or has to know about."""

from __future__ import annotations


class KoderzError(Exception):
    """An error whose message says in one or two lines what happened, where, and what to do next.

    The command line prints the message without a traceback and ends with `exit_code`:
    2 wrong usage, configuration or input · 3 ended with faults or at a cap · 4 unreachable.
    """

    exit_code = 2


class JournalError(KoderzError):
    """The journal of a run can't be read, or is not a journal."""


class RunBusy(KoderzError):
    """Another process is working on the run."""


class StorageError(JournalError):
    """The disk refuses data that has to be recorded. Earlier records are safe, and the run can be resumed."""

    exit_code = 3
