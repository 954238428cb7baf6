"""Configurations: which tasks, by which agents and models, how often."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.workspace import BACKENDS
from koderz.suites.rollouts.formats import load_task
from koderz.suites.rollouts.tasks import Rollout


@dataclass(frozen=True, slots=True)
class Entry:
    """One of `[[tasks]]`: a task, an agent and a model, so many times."""

    prepared_dir: str = ""
    agent: str = "koderz"
    model: str | None = None
    rollouts: int = 1
    apply_overrides: bool = True
    overrides: str | None = None
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    script: str | None = None
    sandbox: str | None = None
    judge_model: str | None = None
    timeout_sec: float | None = None
    max_diff_mb: int | None = None
    agent_mounts: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The agent's time, if the entry limits it."""
        said = self.environment_variables.get("TIMEOUT_SEC")
        return self.timeout_sec or (float(said) if said else None)


@dataclass(frozen=True, slots=True)
class Config:
    """What a configuration says, its defaults in each entry."""

    path: Path
    name: str
    parallel: int
    entries: tuple[Entry, ...]
    tasks: tuple[Rollout, ...]  # the different ones
    of_entries: tuple[str, ...]  # the id of each entry's task

    @property
    def models(self) -> Sequence[str | None]:
        """The model of each entry."""
        return [entry.model for entry in self.entries]


def read_config(path: Path) -> Config:
    """Raises KoderzError naming the file, the line and the nearest key for what is wrong with it."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise KoderzError(f"there is no configuration {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"{path} can't be read: {error}") from None
    return _config(path, text)


@cache
def _config(path: Path, text: str) -> Config:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise KoderzError(f"{path}: {error}") from None
    rows = table.pop("tasks", None)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise KoderzError(f"{path} has no [[tasks]]")
    name, parallel = table.pop("name", path.stem), table.pop("parallel", 1)
    if not isinstance(name, str) or not name or {*name} & {*"/\\\0"} or name in (".", ".."):
        raise KoderzError(f"{path}: name has to be a text that can be a folder's name")
    if not isinstance(parallel, int) or isinstance(parallel, bool) or not 1 <= parallel <= 4096:
        raise KoderzError(f"{path}: parallel has to be a number from 1 to 4096")
    entries = tuple(_entry(path, text, {**table, **row}, number) for number, row in enumerate(rows, 1))
    loaded = [_task(path, entry) for entry in entries]
    tasks = _told_apart({task.digest: task for task in loaded})
    return Config(path, name, parallel, entries, tuple(tasks.values()), tuple(tasks[each.digest].id for each in loaded))


def _entry(path: Path, text: str, row: Mapping[str, Any], number: int) -> Entry:
    known = [each.name for each in dataclasses.fields(Entry)]
    for key in row:
        if key not in known:
            near = difflib.get_close_matches(key, [*known, "name", "parallel"], 1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise KoderzError(f"{_where(path, text, key)}: unknown key {key!r}; {meant}")
    try:
        entry = msgspec.convert(row, Entry)
        wrong = entry.seconds is not None and not 0 < entry.seconds < float("inf")
    except (msgspec.ValidationError, ValueError) as error:
        raise KoderzError(f"{path}: [[tasks]] number {number}: {str(error)[:1].lower()}{str(error)[1:]}") from None
    if wrong or not 1 <= entry.rollouts <= 100_000 or not 1 <= (entry.max_diff_mb or 1) <= 1024:
        raise KoderzError(f"{path}: [[tasks]] number {number}: rollouts, timeout_sec or max_diff_mb is out of bounds")
    if not entry.prepared_dir:
        raise KoderzError(f"{path}: [[tasks]] number {number} has no prepared_dir")
    if entry.sandbox and not BACKENDS.has(entry.sandbox):
        raise KoderzError(f"{path}: [[tasks]] number {number}: sandbox has to be one of {', '.join(BACKENDS)}")
    return entry


def _task(path: Path, entry: Entry) -> Rollout:
    """The entry's task, with what the entry says of it; its digest tells it from other entries'."""
    folder = found_beside(path, entry.prepared_dir)
    if not folder.is_dir():
        raise KoderzError(f"{path}: there is no folder {entry.prepared_dir}")
    overrides = found_beside(path, entry.overrides) if entry.overrides and entry.apply_overrides else None
    task = load_task(folder, overrides, apply_overrides=entry.apply_overrides)
    own = {**task.environment, **entry.environment_variables}
    seconds = entry.seconds or task.agent_seconds
    mounts = tuple(str(found_beside(path, name).absolute()) for name in entry.agent_mounts)
    if missing := [name for name in mounts if not Path(name).exists() or Path(name) == Path("/")]:
        raise KoderzError(f"{path}: agent_mounts: {missing[0]} is no file or folder that an agent can be shown")
    changed = repr((task.digest, own, seconds, entry.max_diff_mb, entry.sandbox, *mounts))
    digest = hashlib.sha256(changed.encode()).hexdigest()[:16]
    return dataclasses.replace(
        task,
        environment=own,
        agent_seconds=seconds,
        max_diff_mb=entry.max_diff_mb,
        digest=digest,
        sandbox=entry.sandbox or "",
        agent_mounts=mounts,
    )


def _told_apart(tasks: Mapping[str, Rollout]) -> dict[str, Rollout]:
    """The same, where several have one id with a number behind it."""
    found: dict[str, Rollout] = {}
    times: dict[str, int] = {}
    for digest, task in tasks.items():
        times[task.id] = count = times.get(task.id, 0) + 1
        found[digest] = dataclasses.replace(task, id=f"{task.id}#{count}") if count > 1 else task
    return found


def found_beside(path: Path, name: str) -> Path:
    """A file or folder from the working directory, else from beside the configuration."""
    here = Path(name)
    return here if here.exists() else path.parent / name


def _where(path: Path, text: str, key: str) -> str:
    lines = (number for number, line in enumerate(text.splitlines(), 1) if line.split("=")[0].strip(" \t\"'") == key)
    number = next(lines, None)
    return f"{path}, line {number}" if number else str(path)
