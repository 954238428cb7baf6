"""An allowance: what an agent may spend in a results folder, over all its runs and over restarts of its server.

A run is begun with an amount taken from it beforehand, and settled by what it cost once it has ended. One that was
killed counts with its whole amount, since calls that were under way then may have been paid for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock

from koderz.errors import KoderzError
from koderz.settings.paths import state_folder
from koderz_tracker.errors import JournalError
from koderz_tracker.files import write_whole
from koderz_tracker.index import CODES, load_index
from koderz_tracker.journal import NAME
from koderz_tracker.runs import is_locked
from koderz_tracker.summary import summarize


class Held(msgspec.Struct):
    """The amount that a run may still spend."""

    dollars: float
    before: float  # what the run had cost before
    pid: int  # of the process that works on it, or of the server that is about to start one
    has_begun: bool = False


class _Book(msgspec.Struct):
    results: str
    spent: float = 0.0
    held: dict[str, Held] = {}


class Allowance:
    """US dollars for runs in one results folder: `cap` in all, less what was spent and what runs still hold."""

    def __init__(self, results: Path, cap: float, environ: Mapping[str, str] = os.environ) -> None:
        self.results, self.cap = results.resolve(), cap
        name = hashlib.sha256(str(self.results).encode()).hexdigest()[:32]
        self._path = state_folder(environ) / "allowances" / f"{name}.json"

    def left(self) -> float:
        with self._book() as book:
            return self._left(book)

    def hold(self, run: str, dollars: float, before: float = 0.0) -> float:
        """Takes so much for a run, or all that is left if that is less; returns how much.

        Raises KoderzError if a process works on the run already.
        """
        with self._book() as book:
            if run in book.held:
                raise KoderzError(
                    f"{run} is being worked on; follow it with show_run, or end it with stop"
                )
            given = max(0.0, min(dollars, self._left(book)))
            book.held[run] = Held(given, before, os.getpid())
            return given

    def hand_over(self, run: str, pid: int) -> None:
        """Notes the process that works on a run."""
        with self._book() as book:
            if run in book.held:
                book.held[run].pid, book.held[run].has_begun = pid, True

    def give_back(self, run: str) -> None:
        """Releases what a run holds that hasn't begun."""
        with self._book() as book:
            book.held.pop(run, None)

    def holder(self, run: str) -> int | None:
        """The process that works on a run for this allowance."""
        with self._book() as book:
            return book.held[run].pid if run in book.held else None

    def _left(self, book: _Book) -> float:
        return self.cap - book.spent - sum(held.dollars for held in book.held.values())

    @contextmanager
    def _book(self) -> Iterator[_Book]:
        """The book of what was spent and is held, with ended runs settled; one process has it at a time."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self._path.with_suffix(".lock"), timeout=30):
                text = self._path.read_bytes() if self._path.exists() else b""
                book = msgspec.json.decode(text, type=_Book) if text else _Book(str(self.results))
                for run, held in [*book.held.items()]:
                    folder = self.results / run
                    if is_locked(folder) or (
                        _is_alive(held.pid) and not (held.has_begun and _has_ended(folder))
                    ):
                        continue
                    book.spent += (
                        max(0.0, cost_so_far(folder) - held.before)
                        if _has_ended(folder)
                        else held.dollars
                    )
                    del book.held[run]
                yield book
                write_whole(self._path, [msgspec.json.encode(book)])
        except (OSError, msgspec.MsgspecError) as error:  # filelock's Timeout is an OSError
            raise KoderzError(
                f"the allowance in {self._path} can't be kept ({error}), so nothing is spent"
            ) from None


def cost_so_far(folder: Path) -> float:
    """US dollars that a run has cost, faults and unfinished experiments included."""
    return summarize(folder).paid["total"]


def _has_ended(folder: Path) -> bool:
    """Whether the journal of a run says how it ended, so that all it cost is known."""
    try:
        return load_index(folder / NAME).last.code == CODES["finished"]
    except (JournalError, OSError):  # it was deleted, or is damaged
        return False


def _is_alive(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # or a child that has ended would seem to live on
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # the number is another user's by now
        return False
    return True
