"""The queue of jobs for the sinks of a results folder: a file for each run and sink, in its folder `.sinks`.

Commands submit jobs; a background process takes them from there, and removes each that it is through with. What a
process leaves undone, however it ends, is taken up by the next one. A job that is given up stays as a leftover, for a
process that finds the sink at work again. Files appear and change by rename alone, so that no lock is needed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson

from koderz_tracker.errors import StorageError
from koderz_tracker.files import links_in, refuse_links, whole_file
from koderz_tracker.scrubber import is_secret_variable

FOLDER = ".sinks"
_LEFT_OVER = ".left"  # the suffix of a job that was given up
MOST_TRIES = 3  # processes that may die of a job
_ROUNDS = 10_000  # of the digest of variables, among which are secrets: guessing one takes time
_OF_TARGETS = (
    "MLFLOW_", "KODERZ_MEMORY", "PG", "AWS_", "AZURE_", "GOOGLE_", "HTTP_", "HTTPS_", "NO_PROXY", "SSL_CERT_",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be copied into a sink, also while the run goes on."""

    run: str  # the name of its folder
    sink: str
    options: Mapping[str, Any] = field(default_factory=dict)  # see Source.options
    # seconds without progress after which it is given up, once the run is over
    patience: float = 30.0
    patient: bool = True  # try again where the sink is down
    renew: bool = False  # make the sink's target anew first, where it can


def environment_of(environ: Mapping[str, str], secrets: Iterable[str] = ()) -> str:
    """A digest of the variables that sinks depend on; a job needs a process that has the same ones.

    These are the variables by which sinks find their targets, and those whose values they have to keep out of them;
    `secrets` names such variables beside those that are named so. What is in them may be relative to the folder.
    """
    names = {
        name for name in environ if name.upper().startswith(_OF_TARGETS) or is_secret_variable(name)
    }
    values = sorted((name, environ[name]) for name in names.union(secrets) if name in environ)
    folder = os.getcwd() if any(name.upper().startswith(_OF_TARGETS) for name, _ in values) else ""  # noqa: PTH109
    return hashlib.pbkdf2_hmac("sha256", orjson.dumps([folder, *values]), b"koderz", _ROUNDS).hex()[
        :16
    ]


class QueuedJob(NamedTuple):
    """A job in a queue: the file `RUN.SINK.TRIES`, or `RUN.SINK.left` once it was given up."""

    path: Path

    @property
    def key(self) -> str:
        """The run and the sink, for which there is one job at a time."""
        return self.path.stem

    @property
    def sink(self) -> str:
        """The name of the job's sink."""
        return self.key.partition(".")[2]

    @property
    def tries(self) -> int:
        """The number of processes that have begun the job."""
        return int(self.path.suffix[1:])

    def read(self) -> Job | None:
        """The job; None if it is gone or damaged."""
        try:
            return _decoder.decode(self.path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return None

    def counted(self, tries: int) -> QueuedJob | None:
        """Counts a process that begins the job (+1) or leaves it to the next one (-1); None if the job is gone."""
        path = self.path.with_suffix(f".{self.tries + tries}")
        try:
            self.path.rename(path)
        except OSError:
            return None
        return QueuedJob(path)

    def give_up(self) -> None:
        """Marks the job as a leftover."""
        with suppress(OSError):
            self.path.rename(self.path.with_suffix(_LEFT_OVER))

    def take_up(self) -> None:
        """Turns a leftover into a job that no process has begun yet."""
        with suppress(OSError):
            self.path.rename(self.path.with_suffix(".0"))

    def remove(self) -> None:
        """Removes the job, which is done or withdrawn."""
        with suppress(OSError):
            self.path.unlink()


class Queue:
    """The jobs of a results folder that processes with the same variables can do."""

    def __init__(self, results: Path, environment: str) -> None:
        refuse_links(
            [results / FOLDER, *(results / FOLDER / link for link in links_in(results / FOLDER))]
        )
        self.results = results
        self.folder = results / FOLDER / environment

    def submit(self, job: Job) -> None:
        """Adds a job, replacing an earlier one of its run and sink. Raises StorageError if the disk refuses."""
        key = f"{job.run}.{job.sink}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self.folder / f"{key}.0", durable=False) as file:
                file.write(orjson.dumps(job))
                self.drop(job.run, job.sink)
        except OSError as error:
            raise StorageError(f"{self.folder} can't be written ({error.strerror})") from None

    def drop(self, run: str, sink: str) -> None:
        """Removes the jobs of a run and sink, whatever environment variables they were submitted with."""
        for path in self.results.glob(f"{FOLDER}/*/{run}.{sink}.*"):
            path.unlink(missing_ok=True)

    def entries(self) -> list[QueuedJob]:
        """All jobs, without leftovers."""
        return [entry for entry in self._all() if entry.path.suffix[1:].isdecimal()]

    def leftovers(self) -> list[QueuedJob]:
        """The jobs that were given up."""
        return [entry for entry in self._all() if entry.path.suffix == _LEFT_OVER]

    def _all(self) -> list[QueuedJob]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 it is looked at again and again
        except OSError:
            return []
        return [QueuedJob(self.folder / name) for name in names if not name.startswith(".")]

    def of_run(self, run: str) -> dict[str, QueuedJob]:
        """The jobs of a run, by sink."""
        return {
            entry.key.removeprefix(f"{run}."): entry
            for entry in self.entries()
            if entry.key.startswith(f"{run}.")
        }


_decoder = msgspec.json.Decoder(Job)
