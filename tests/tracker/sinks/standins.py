"""Real sinks, small ones, that can be made to fail: found by an entry point, like other packages' sinks.

What they do is said by files beside the runs: `NAME.down`, `NAME.hang`, `NAME.busy` (once, for six seconds),
`NAME.slow`, `NAME.wait` (until that is removed), `NAME.litter` (in its environment), `NAME.picky`, `NAME.die-before`
and `NAME.die-after` (the transaction of a batch; the file is removed, so that it dies once). The process that feeds the
sinks imports this module, so pytest isn't imported here: that takes longer than all the rest.
"""

from __future__ import annotations

import functools
import os
import signal
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from koderz_tracker.records import Record, encode
from koderz_tracker.sinks import Sink, SinkDown, Source

ROOT = Path(__file__).resolve().parents[3]


class Ledger(Sink):
    """A table with a row for each record; records are known by what they are about, so that none is doubled."""

    name = "ledger"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._results = source.folder.parent
        self._heed("down")
        assert "LEFT_BY_A_LIBRARY" not in source.environ
        self._rows = _opened(self._results / f"{self.name}.db")

    def take(self, records: Sequence[Record]) -> None:
        for trouble in ("down", "hang", "busy", "slow", "wait", "litter", "die-before"):
            self._heed(trouble)
        with self._rows:
            self._rows.executemany(
                "INSERT OR REPLACE INTO rows VALUES (?, ?)",
                [(self.source.folder.name, encode(record).decode()) for record in records],
            )
        self._heed("die-after")

    @property
    def note(self) -> str:
        return "without two rows" if (self._results / f"{self.name}.picky").exists() else ""

    @classmethod
    def rebuild(cls, results: Path, environ: Mapping[str, str]) -> None:
        (results / f"{cls.name}.db").unlink(missing_ok=True)

    def _heed(self, trouble: str) -> None:
        path = self._results / f"{self.name}.{trouble}"
        if not path.exists():
            return
        if trouble == "down":
            raise SinkDown("the ledger is closed today")
        if trouble == "hang":
            time.sleep(600)
        elif trouble == "busy":
            path.unlink()
            until = time.monotonic() + 6
            while time.monotonic() < until:
                sum(range(1000))
        elif trouble == "wait":
            while path.exists():
                time.sleep(0.02)
        elif trouble == "slow":
            time.sleep(0.05)
        elif trouble == "litter":
            os.environ["LEFT_BY_A_LIBRARY"] = "1"
        else:
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class Other(Ledger):
    name = "other"


@functools.cache
def _opened(path: Path) -> sqlite3.Connection:
    """A database that is kept open for good, as libraries do."""
    database = sqlite3.connect(path, timeout=30, check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS rows (run TEXT, record TEXT, PRIMARY KEY (run, record))")
    return database


def rows_of(results: Path, run: str, name: str = "ledger") -> list[dict[str, object]]:
    """What the stand-in holds of a run, sorted."""
    with sqlite3.connect(results / f"{name}.db") as database:
        found = [row for (row,) in database.execute("SELECT record FROM rows WHERE run = ? ORDER BY record", (run,))]
    database.close()
    return [orjson.loads(row) for row in found]


def killing(folder: Path) -> Mapping[str, str]:
    """The environment in which each process that feeds sinks is killed as soon as it starts."""
    site = folder / "killing"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, signal, sys\nif 'koderz_tracker.sinks' in sys.orig_argv: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}


def installed(folder: Path) -> Mapping[str, str]:
    """A package that has the stand-ins as its entry points, and the environment in which it is found."""
    package = folder / "site" / "standins-1.0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: standins\nVersion: 1.0\n")
    module = "tests.tracker.sinks.standins"
    (package / "entry_points.txt").write_text(
        f"[koderz.sinks]\nledger = {module}:Ledger\nother = {module}:Other\nabsent = {module}:Absent\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(package.parent), str(ROOT)])}
