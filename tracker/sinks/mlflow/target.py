"""The tracking store and experiment in MLflow that a run goes to, and what MLflow already has of a run.

Errors from there are handled here, too.

MLflow makes up the ids of its runs, and looking one up by tag scans all of them. So before a run is created,
that it will be is written down here, and afterwards under which id. Whoever finds an entry with an empty id
knows that a process died in between, and has to look for that run once. The ids of traces are our own.
"""

from __future__ import annotations

import os
import re
import sqlite3
import ssl
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from koderz_tracker.errors import KoderzError
from koderz_tracker.files import refuse_linked_database, refuse_links
from koderz_tracker.sinks import SinkDown, SinkSlow

if TYPE_CHECKING:
    from filelock import BaseFileLock


_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # its own retries take minutes; ours is `koderz sync`
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
_CONNECT_SECONDS = 5
_SLOW = (
    r"timed out|error code 50[234]\b|\b50[234] Server Error|too many 50[234] |database is locked"
)
# Words around a status, since a port may hold these digits, too.
_UNKNOWN_USER = r"\b(?:error code|too many) 401\b|\b401 Client Error|UNAUTHENTICATED"
_FORBIDDEN = r"\b(?:error code|too many) 403\b|\b403 Client Error|PERMISSION_DENIED"
_FAILURE = r"\b(?:error code|too many) 5\d\d\b|\b5\d\d Server Error|INTERNAL_ERROR"
_NO_ANSWER = r"refused|timed out|unreachable|Max retries|resolve"
_REASON = 200  # characters


@dataclass(frozen=True, slots=True)
class Target:
    """A place in a tracking store."""

    uri: str
    experiment: str  # MLflow's word: what groups runs
    artifacts: str | None  # where this experiment's files go; None: the tracking server decides
    name: str  # what an outbox knows it by; the results folder may be moved


def target_of(
    results: Path, suite: str, environ: Mapping[str, str], experiment: str | None = None
) -> Target:
    """The store that `environ` names, else the one in the results folder. Raises KoderzError if it is not valid.

    `experiment`: that of --mlflow-experiment, before the one that `environ` names.
    """
    uri = tracking_uri(results, environ)
    name = experiment or environ.get("MLFLOW_EXPERIMENT_NAME") or f"koderz/{suite}"
    place = results.resolve() / "mlartifacts" / re.sub(r"[^\w.+-]", "_", name)
    where = without_password(uri) if environ.get("MLFLOW_TRACKING_URI") else "results"
    return Target(uri, name, None if is_server(uri) else place.as_uri(), f"{where} {name}")


def tracking_uri(results: Path, environ: Mapping[str, str]) -> str:
    """MLFLOW_TRACKING_URI, else SQLite in the results folder. Raises KoderzError for a folder of files."""
    uri = environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store_file(results)}"
    if urlsplit(uri).scheme in ("", "file"):
        raise KoderzError(
            f"MLFLOW_TRACKING_URI: mlflow refuses to keep runs in a folder of files ({uri}); "
            "use sqlite:///PATH.db, a server's http://HOST:PORT, or unset it"
        )
    return uri


def store_file(results: Path) -> Path:
    """The SQLite file of this project's own store. Raises KoderzError if it or its folder of artifacts is a link."""
    refuse_links([results / "mlartifacts"])
    return refuse_linked_database(results.resolve() / "mlflow.db")


def log_ahead(store: Path) -> None:
    """Makes SQLite append commits to a log that is written to the disk only by `checkpoint`.

    MLflow commits several times for each trace, and each would wait for the disk.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    with closing(sqlite3.connect(store, timeout=_CONNECT_SECONDS)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    if not event.contains(Engine, "connect", _sync_at_checkpoints):
        event.listen(Engine, "connect", _sync_at_checkpoints)


def _sync_at_checkpoints(connection: object, _: object) -> None:
    if isinstance(connection, sqlite3.Connection) and connection.execute(
        "PRAGMA journal_mode"
    ).fetchone() == ("wal",):
        connection.execute("PRAGMA synchronous = NORMAL")


def checkpoint(store: Path) -> None:
    """Makes commits durable, and moves them from the log into the file."""
    with closing(sqlite3.connect(store, timeout=_CONNECT_SECONDS)) as db:
        db.execute("PRAGMA wal_checkpoint")


def put_aside(store: Path) -> None:
    """Renames a store together with its log."""
    name = f"{store.name}.{datetime.now():%Y%m%d_%H%M%S}.old"
    for suffix in ("-wal", "-shm", ""):
        if (path := store.with_name(store.name + suffix)).exists():
            path.replace(store.with_name(name + suffix))


def is_server(uri: str) -> bool:
    """Whether the address is of a tracking server and not of a database."""
    return "sql" not in urlsplit(uri).scheme


def without_password(uri: str) -> str:
    """The address without its password, as people may see it."""
    return re.sub(r"//[^/@]*@", "//", uri)


@contextmanager
def opening(results: Path) -> Iterator[None]:
    """A lock held while a store is opened, since two processes can't create its tables at once."""
    from filelock import FileLock

    with FileLock(results / ".mlflow.lock", timeout=60):
        yield


@contextmanager
def border(uri: str, experiment: str = "") -> Iterator[None]:
    """Turns errors of MLflow, its database driver or the network into SinkDown, and hides their warnings.

    `experiment`: the name of the one that is written into.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ImportError as error:
            raise SinkDown(
                f"MLflow at {without_password(uri)} needs a driver that isn't installed: {error}"
            ) from error
        except _foreign() as error:
            down = SinkSlow if _is_slow(error) else SinkDown
            raise down(f"MLflow at {without_password(uri)} {_reason(error, experiment)}") from error


def _foreign() -> tuple[type[Exception], ...]:
    """The error types of the libraries that are loaded already; importing mlflow for them would take two seconds."""
    known = (
        ("mlflow.exceptions", "MlflowException"),
        ("sqlalchemy.exc", "SQLAlchemyError"),
        ("httpx", "HTTPError"),
    )
    return (
        OSError,
        sqlite3.Error,
        *(getattr(sys.modules[module], name) for module, name in known if module in sys.modules),
    )


def configure(environ: Mapping[str, str]) -> None:
    """Sets the process's environment variables for mlflow. They have to be set before mlflow is imported."""
    os.environ.update(
        {name: value for name, value in environ.items() if name.startswith("MLFLOW_TRACKING_")}
    )
    os.environ.update({name: environ.get(name, value) for name, value in _ENVIRONMENT.items()})


def check_target(uri: str) -> None:
    """Checks that the server or database answers; a file need not exist yet. Raises their errors."""
    if is_server(uri):
        import httpx

        # MLflow, too, trusts a server by these certificates.
        trusted = ssl.create_default_context()
        for name in ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            if path := os.environ.get(name):
                trusted.load_verify_locations(
                    **{"capath" if Path(path).is_dir() else "cafile": path}
                )
        url = f"{uri.rstrip('/')}/health"
        answer = httpx.get(url, timeout=_CONNECT_SECONDS, verify=trusted, follow_redirects=True)
        if answer.is_error:
            raise OSError(f"error code {answer.status_code}: {answer.reason_phrase}")
    elif not uri.startswith("sqlite:"):
        check_database(uri)


def check_database(uri: str) -> None:
    """Connects once, since mlflow itself would retry for an hour. Raises the driver's errors."""
    import sqlalchemy

    url = sqlalchemy.make_url(uri)
    name = {"postgresql": "connect_timeout", "mysql": "connect_timeout", "sqlite": "timeout"}.get(
        url.get_backend_name()
    )
    engine = sqlalchemy.create_engine(url, connect_args={name: _CONNECT_SECONDS} if name else {})
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _is_slow(error: Exception) -> bool:
    """Whether a server may answer later: it is starting or overloaded, or its database is in use."""
    return isinstance(error, TimeoutError) or bool(re.search(_SLOW, str(error)))


def is_forbidden(error: Exception) -> bool:
    """Whether the user, who is known, may not do this."""
    return bool(re.search(_FORBIDDEN, str(error)))


def is_refusal(error: Exception) -> bool:
    """Whether a server or database has answered, and refuses what it was sent, whoever sends it."""
    text = str(error)
    is_down = re.search(f"{_UNKNOWN_USER}|{_FORBIDDEN}|{_NO_ANSWER}", text) and not re.search(
        _FAILURE, text
    )
    return not is_down and not _is_slow(error)


def short_reason(error: Exception) -> str:
    """The message of an error on one line, without a password, cut to a sentence's length."""
    text = re.sub(r"//[^/@\s]*@", "//", " ".join(str(error).split()))
    return text if len(text) <= _REASON else f"{text[:_REASON]}…"


def _reason(error: Exception, experiment: str) -> str:
    text, short = str(error), short_reason(error)
    if re.search(_UNKNOWN_USER, text):
        return "refuses the credentials; see MLFLOW_TRACKING_USERNAME, _PASSWORD and _TOKEN"
    if re.search(_FORBIDDEN, text):
        where = f"the experiment {experiment}" if experiment else "it"
        return (
            f"knows the user, but refuses this: the permission EDIT on {where} is missing. Have it granted, or name "
            f"an experiment of your own with --mlflow-experiment ({short})"
        )
    if re.search(_FAILURE, text):
        return f"answers with an error ({short})"
    if re.search(_NO_ANSWER, text):
        return f"doesn't answer ({short})"
    return f"can't be written ({short})"


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
