"""A record of what MLflow already has of a run: the MLflow run and trace of each experiment.

MLflow makes up the ids of its runs, and looking one up by tag scans all of them. So before a run is created,
that it will be is written down here, and afterwards under which id. Whoever finds an entry with an empty id
knows that a process died in between, and has to look for that run once. The ids of traces are our own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from koderz_tracker.sinks import SinkDown

if TYPE_CHECKING:
    from filelock import BaseFileLock

NAME = "mlflow_outbox.db"
RUN = ""  # stands in an experiment's place for the run itself


def of_arm(name: str) -> str:
    """The key under which the run of an arm stands among those of experiments."""
    return f"arm/{name}"


_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    target TEXT NOT NULL,
    experiment_id TEXT NOT NULL,
    run_id TEXT,                              -- '': it is being created, or whoever did so has died
    run_lines INTEGER NOT NULL DEFAULT 0,     -- how much of the experiment's story the run tells
    trace_lines INTEGER NOT NULL DEFAULT 0,   -- and the trace
    place TEXT,                               -- MLflow's id of the experiment that the run is in
    PRIMARY KEY (target, experiment_id)
) WITHOUT ROWID
"""
_WAIT_SECONDS = 30.0


class OutboxEntry(NamedTuple):
    """The run of one experiment in MLflow, and how much of its story MLflow has."""

    run_id: str | None = None
    run_lines: int = 0
    trace_lines: int = 0


def page_of(folder: Path, target: str) -> str | None:
    """The path of the run's page within MLflow's UI; None if the run isn't there."""
    if not (folder / NAME).exists():
        return None
    query = (
        "SELECT place, run_id FROM entry WHERE target = ? AND experiment_id = ? AND run_id != ''"
    )
    try:
        with closing(
            sqlite3.connect(f"{(folder / NAME).absolute().as_uri()}?mode=ro", uri=True)
        ) as db:
            found = db.execute(query, (target, RUN)).fetchone()
    except sqlite3.Error:  # what is damaged is made anew by the next sync
        return None
    return f"#/experiments/{found[0]}/runs/{found[1]}" if found else None


class Outbox:
    """The entries of one run in one target. Only one process at a time can be `inside`."""

    def __init__(self, folder: Path, target: str) -> None:
        from filelock import FileLock

        self._path = folder / NAME
        self._target = target
        self._lock: BaseFileLock = FileLock(folder / f".{NAME}.lock", timeout=_WAIT_SECONDS)
        try:
            self._db = sqlite3.connect(self._path, timeout=_WAIT_SECONDS, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise SinkDown(
                f"{self._path} can't be used ({error}); remove it, and it is made anew"
            ) from None

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Keeps every other process out. The kernel releases the lock whenever this one ends."""
        from filelock import Timeout

        try:
            with self._lock:
                yield
        except Timeout:
            raise SinkDown(
                f"another process is bringing {self._path.parent.name} into MLflow"
            ) from None
        except sqlite3.Error as error:
            raise SinkDown(f"{self._path} can't be used ({error})") from None

    def get(self, experiment_id: str) -> OutboxEntry:
        """The entry of an experiment."""
        found = self._db.execute(
            "SELECT run_id, run_lines, trace_lines FROM entry WHERE target = ? AND experiment_id = ?",
            (self._target, experiment_id),
        ).fetchone()
        return OutboxEntry(found[0] or None, *found[1:]) if found else OutboxEntry()

    def created(self, experiment_id: str, run_id: str, place: str) -> None:
        """Records the run of an experiment ('' while it is being created), and MLflow's experiment of that run."""
        self._write(
            "INSERT INTO entry (target, experiment_id, run_id, place) VALUES (?1, ?2, ?3, ?4) "
            "ON CONFLICT DO UPDATE SET run_id = ?3, place = ?4",
            experiment_id,
            run_id,
            place,
        )

    def record_shown(self, experiment_id: str, lines: int) -> None:
        """Records how many lines of the experiment's story its run shows."""
        self._write(
            "UPDATE entry SET run_lines = ?3 WHERE target = ?1 AND experiment_id = ?2",
            experiment_id,
            lines,
        )

    def traced(self, lines: Mapping[str, int]) -> None:
        """Records how many lines of the experiments' stories their traces show."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO entry (target, experiment_id, trace_lines) VALUES (?1, ?2, ?3) "
                "ON CONFLICT DO UPDATE SET trace_lines = ?3",
                [(self._target, name, count) for name, count in lines.items()],
            )

    def is_unsure(self) -> bool:
        """Whether a process died while it was creating a run."""
        query = (
            "SELECT 1 FROM entry WHERE target = ? AND run_id = '' AND experiment_id != '' LIMIT 1"
        )
        return self._db.execute(query, (self._target,)).fetchone() is not None

    def settle(self, runs: Iterable[tuple[str, str]], place: str) -> None:
        """Records runs found by a search, as pairs of experiment and run; any other was never created."""
        for experiment_id, run_id in runs:
            self.created(experiment_id, run_id, place)
        self._write(
            "UPDATE entry SET run_id = NULL WHERE target = ? AND run_id = '' AND experiment_id != ''"
        )

    def forget(self) -> None:
        """Deletes all entries of the target, which has lost its data."""
        self._db.execute("DELETE FROM entry WHERE target = ?", (self._target,))

    def _write(self, statement: str, *values: object) -> None:
        self._db.execute(statement, (self._target, *values))
