"""Errors, as one tree.

KoderzError            wrong usage, configuration or input file (exit 2)
├─ JournalError        a run's journal can't be read, or isn't one
│  └─ StorageError     the disk refuses what has to be recorded (exit 3)
├─ Unreachable         something that nothing can do without is not there (exit 4)
└─ Fault               not the model's doing; ends one experiment, never counts as a verdict (exit 3)
   ├─ UserCodeFault   a solver, suite, scorer or metric raised an error that is no Fault
   └─ FatalFault       every further call would end the same way: ends the run (exit 4)
"""

from __future__ import annotations

from tracker.errors import JournalError, KoderzError, StorageError

__all__ = ["FatalFault", "Fault", "JournalError", "KoderzError", "StorageError", "Unreachable", "UserCodeFault"]


class Unreachable(KoderzError):
    """A server, key or program that the command can't do without is missing."""

    exit_code = 4


class Fault(KoderzError):
    """An unreachable server, a dead sandbox, a refused request: the experiment ends, the run goes on."""

    exit_code = 3


class UserCodeFault(Fault):
    """An error that is no Fault, raised by a solver, suite, scorer or metric. It is the fault's `__cause__`."""


class FatalFault(Fault):
    """A bad key or an unknown model: no further call can succeed, so the run ends."""

    exit_code = 4
