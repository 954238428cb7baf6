"""Datasets of rollouts: a task's folder, a folder of such, a file of rows, or a name in a registry."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites.tables import kind_of
from koderz.systems.rollouts.formats import FILES, load_task
from koderz.systems.rollouts.instances import read_rollouts
from koderz.systems.rollouts.registry import find_dataset
from koderz.systems.rollouts.swebench.rows import is_task_repository
from koderz.systems.rollouts.tasks import Rollout


@dataclass(frozen=True, slots=True)
class Dataset:
    """The tasks of a dataset, and what is on record of it."""

    tasks: Sequence[Rollout]
    about: Mapping[str, str] = field(default_factory=dict)  # name, version, registry, digest


def read_dataset(place: Path, registry: str | None, variables: Mapping[str, str]) -> Dataset:
    """Reads the dataset at a place, or with that name in a registry.

    `variables` of this machine are those that tasks may take their own from. Raises KoderzError naming the file and
    what is wrong with it.
    """
    if (kind_of(place) and not place.is_dir()) or is_task_repository(place):
        return _with_digest(read_rollouts(place), {"name": place.name})
    if place.is_dir():
        return Dataset(_in_folder(place, variables))
    if place.exists() or (len(place.parts) > 1 and registry is None):
        raise KoderzError(f"{place} is no folder of tasks, no file of rows (.jsonl), nor a configuration (.toml)")
    if registry is None:
        raise KoderzError(f"there is no folder {place}; a dataset of that name needs --registry FILE or URL")
    found = find_dataset(place.as_posix(), registry)
    tasks = [load_task(folder, variables=variables) for folder in found.folders]
    about = {"name": found.name, "version": found.version, "registry": registry, "entry_digest": found.digest}
    return _with_digest(each_once(tasks, str(place)), about)


def _with_digest(tasks: Sequence[Rollout], about: Mapping[str, str]) -> Dataset:
    digests = sorted(f"{task.id} {task.digest}" for task in tasks)
    return Dataset(tasks, {**about, "digest": hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]})


def _in_folder(folder: Path, variables: Mapping[str, str]) -> Sequence[Rollout]:
    """The task in a folder, or the tasks in the folders below it."""
    if _is_task(folder):
        return [load_task(folder, variables=variables)]
    folders = [path for path in sorted(folder.iterdir()) if _is_task(path)]
    if not folders:
        return [load_task(folder, variables=variables)]  # which says what it lacks
    return each_once([load_task(path, variables=variables) for path in folders], str(folder))


def _is_task(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def each_once(tasks: Sequence[Rollout], where: str) -> Sequence[Rollout]:
    """The tasks. Raises KoderzError if two have one id."""
    ids = [task.id for task in tasks]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise KoderzError(f"{where}: two tasks have the id {twice[0]}")
    return tasks
