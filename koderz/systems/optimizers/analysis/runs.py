"""Runs of optimizers for display: koderz' own, and those of the original benchmark runner."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from koderz.engines import ENGINES
from koderz.errors import KoderzError
from koderz.systems.optimizers.analysis.checkpoint import NAME, State
from koderz.systems.optimizers.analysis.gains import GainRow, rows_of, searches_of
from koderz.systems.optimizers.analysis.trials import differences
from koderz.systems.optimizers.datasets.payload import DatasetRecord, DatasetRecords
from koderz_tracker.files import open_own
from koderz_tracker.records import decode
from koderz_tracker.runs import is_locked, named, read_plan, require_own, run_folders
from koderz_tracker.stories import Stories

OPTIMIZE = "optimize"
FOREIGN = "run_"
"""The beginning of names of the original's runs."""

_TIME = -len("20260131_234512")  # where the time begins in the names of both


@dataclass(frozen=True, slots=True)
class OptimizerRun:
    """One run in a list."""

    run_id: str
    timestamp: str
    datasets: Sequence[str]
    optimizers: Sequence[str]
    total_tasks: int


def latest_runs(results: Path, count: int | None = None) -> list[Path]:
    """The folders of runs of optimizers, the newest first."""
    own = [folder for folder in run_folders(results) if _is_own(folder)]
    foreign = (
        [path.parent for path in results.glob(f"{FOREIGN}*/{NAME}")] if results.is_dir() else []
    )
    return sorted([*own, *foreign], key=lambda folder: folder.name[_TIME:], reverse=True)[:count]


def found_run(results: Path, name: str | None) -> Path:
    """The run with this name, or the latest. Raises KoderzError if there is none."""
    folders = latest_runs(results)
    if name is None:
        if not folders:
            raise KoderzError(
                f"{results} holds no run of optimizers yet; make one with: koderz optimize run"
            )
        return require_own(folders[0])
    exact = [folder for folder in folders if folder.name == name]
    return require_own(exact[0] if exact else named(folders[::-1], name, results))


def is_foreign(folder: Path) -> bool:
    """Whether the run is the original's, which has no journal."""
    return folder.name.startswith(FOREIGN)


def shown(folder: Path) -> OptimizerRun:
    """The run for a list. Raises KoderzError if it can't be read."""
    if is_foreign(folder):
        document = foreign_document(folder)
        began = [each.get("timestamp_start") for each in document["task_results"]]
        times = [moment for moment in began if isinstance(moment, int | float)]
        return OptimizerRun(
            folder.name,
            _time(min(times)) if times else "",
            document["demo_datasets"],
            document["optimizers"],
            len(document["tasks"]),
        )
    document = State(read_plan(folder)).document()
    when = read_plan(folder).time[:19].replace("T", " ")
    return OptimizerRun(
        folder.name,
        when,
        document["demo_datasets"],
        document["optimizers"],
        len(document["task_results"]),
    )


def foreign_document(folder: Path) -> dict[str, Any]:
    """The checkpoint of an original's run, also in the early format. Raises KoderzError for anything else."""
    path = folder / NAME
    try:
        with open_own(path, 2) as file:
            document = json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise KoderzError(f"{path} can't be read: {error}") from None
    if not isinstance(document, dict):
        raise KoderzError(f"{path} is no checkpoint: it holds no JSON object")
    results = document.get("task_results") or []
    if not isinstance(results, list) or not all(isinstance(each, Mapping) for each in results):
        raise KoderzError(f"{path} is no checkpoint: task_results has to be a list of objects")
    listed = {
        name: _texts(document.get(name)) for name in ("demo_datasets", "optimizers", "models")
    }
    tasks = document.get("tasks")
    return {
        **document,
        **listed,
        "run_id": str(document.get("run_id") or folder.name),
        "tasks": tasks if isinstance(tasks, list) else results,
        "task_results": [{**each, "status": _status(each.get("status"))} for each in results],
    }


def log_of(folder: Path, result: Mapping[str, Any]) -> Path:
    """The path of a task's log, which may not exist."""
    return folder / f"optimization_{str(result.get('id')).replace('/', '_')}.log"


class View:
    """One run for display: the document of its checkpoint, up to the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_foreign = folder, is_foreign(folder)
        self.is_busy = False
        self.notes: list[str] = []  # what is to be said beside
        if self.is_foreign:
            self.document = foreign_document(folder)
            return
        self._stories = Stories(folder, os.environ)
        self.plan = self._stories.plan
        self._state = State(self.plan)
        self._remote = _remote(folder, self.plan.config)
        self.document = self._state.document()

    async def look(self) -> None:
        """Takes in new records here, and at the engine if that is remote."""
        if self.is_foreign:
            self.document = foreign_document(self.folder)
            return
        self.is_busy = is_locked(self.folder)
        for line in self._stories.records([entry.span for entry in self._stories.refresh()]):
            self._state.fold(line)
        if self._remote and not self.is_busy and self._state.status in ("running", "detached"):
            try:
                self.is_busy = await self._remote.is_busy()
                async for data in self._remote.new_lines():
                    if known := decode(data):
                        self._state.fold(known)
            except KoderzError as error:
                self.notes.append(
                    f"the run at {self.plan.config.get('engine')} can't be seen: {error}"
                )
        self.document = self._state.document()

    @property
    def datasets(self) -> Mapping[str, DatasetRecord]:
        """The records of the datasets; empty for an original's run."""
        return {} if self.is_foreign else self.plan.suite_details(DatasetRecords)

    @property
    def tasks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["task_results"]
        return found

    def count(self, *words: str) -> int:
        """The number of tasks in one of these states."""
        return sum(task["status"] in words for task in self.tasks)

    @property
    def status(self) -> str:
        if self.count("Success", "Failed") < max(len(self.tasks), len(self.document["tasks"])):
            return "IN PROGRESS"
        return "COMPLETED WITH FAILURES" if self.count("Failed") else "COMPLETED SUCCESSFULLY"

    def rows(self) -> list[GainRow]:
        """The rows of claims about optimizers; empty for an original's run."""
        return [] if self.is_foreign else rows_of(self.plan, searches_of(self.folder))

    def logs(self, task: Mapping[str, Any]) -> str:
        """The place of a task's log; empty if it has none."""
        trial = None if self.is_foreign else self._state.trials.get(str(task.get("experiment_id")))
        path = log_of(self.folder, task)
        return (trial.page if trial else "") or (str(path.resolve()) if path.exists() else "")

    def as_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {
            "run_id": self.document["run_id"],
            "status": self.status,
            "test_mode": bool(self.document.get("test_mode")),
            "datasets": self.document["demo_datasets"],
            "optimizers": self.document["optimizers"],
            "models": self.document["models"],
            "seeds": self.document.get("seeds", []),
            "budget_calls": None if self.is_foreign else self.plan.config.get("budget_calls"),
            "tasks": [
                {
                    "id": task.get("id"),
                    "status": task["status"],
                    "error_message": task.get("error_message"),
                    "logs": self.logs(task),
                }
                for task in self.tasks
            ],
            "rows": [asdict(row) for row in self.rows()],
            "differs": {} if self.is_foreign else differences(self.plan),
            "leakage": {
                name: to_builtins(record.leakage) for name, record in self.datasets.items()
            },
        }


def _remote(folder: Path, config: Mapping[str, Any]) -> Any:
    """The run on its engine, if that is remote and known here."""
    with suppress(KoderzError):
        return ENGINES.load(str(config.get("engine") or "local")).view(folder, config, os.environ)
    return None


def _is_own(folder: Path) -> bool:
    with suppress(KoderzError, OSError):
        return read_plan(folder).mode == OPTIMIZE
    return False


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _status(value: Any) -> str:
    return value if value in ("Pending", "Running", "Success", "Failed") else "Pending"


def _time(seconds: float) -> str:
    from datetime import datetime

    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
    return ""
