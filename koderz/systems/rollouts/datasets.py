"""Datasets of rollouts: a task's folder, a folder of such, a file of rows or of a skill's evals, a registry's name."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites.tables import kind_of
from koderz.systems.rollouts.formats import FILES, load_task
from koderz.systems.rollouts.instances import read_rollouts
from koderz.systems.rollouts.registry import find_dataset
from koderz.systems.rollouts.runnable import Omission
from koderz.systems.rollouts.skill_evals import evals_files, read_evals
from koderz.systems.rollouts.swebench import is_task_repository
from koderz.systems.rollouts.task import Rollout


@dataclass(frozen=True, slots=True)
class Dataset:
    """The tasks of a dataset, and what is on record of it."""

    tasks: Sequence[Rollout]
    about: Mapping[str, str] = field(default_factory=dict)  # name, version, registry, digest
    refused: Sequence[Omission] = ()  # the folders of tasks that can't be loaded


def read_dataset(place: Path, registry: str | None, variables: Mapping[str, str]) -> Dataset:
    """Reads the dataset at a place, or with that name in a registry.

    `variables` of this machine are those that tasks may take their own from. A task of several that can't be loaded is
    refused alone. Raises KoderzError naming the file and what is wrong with it.
    """
    if not place.is_dir() and (files := evals_files(place)):
        return _of_evals(files, place)
    if (kind_of(place) and not place.is_dir()) or is_task_repository(place):
        return _with_digest(read_rollouts(place), {"name": place.name})
    if place.is_dir():
        return _in_folder(place, variables)
    if place.exists() or (len(place.parts) > 1 and registry is None):
        raise KoderzError(f"{place} is no folder of tasks, no file of rows (.jsonl), nor a configuration (.toml)")
    if registry is None:
        raise KoderzError(f"there is no folder {place}; a dataset of that name needs --registry FILE or URL")
    found = find_dataset(place.as_posix(), registry)
    loaded = _loaded(found.folders, variables)
    about = {"name": found.name, "version": found.version, "registry": registry, "entry_digest": found.digest}
    return replace(_with_digest(loaded.tasks, about), refused=loaded.refused)


def _with_digest(tasks: Sequence[Rollout], about: Mapping[str, str]) -> Dataset:
    digests = sorted(f"{task.id} {task.digest}" for task in tasks)
    return Dataset(tasks, {**about, "digest": hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]})


def _in_folder(folder: Path, variables: Mapping[str, str]) -> Dataset:
    """The task in a folder, or the tasks in the folders below it."""
    folders = [] if _is_task(folder) else [path for path in sorted(folder.iterdir()) if _is_task(path)]
    if not folders and not _is_task(folder) and (files := evals_files(folder)):
        return _of_evals(files, folder)
    if not folders:
        return Dataset([load_task(folder, variables=variables)])  # which says what it lacks
    return _loaded(folders, variables)


def _of_evals(files: Sequence[Path], place: Path) -> Dataset:
    read = [read_evals(file) for file in files]
    tasks = each_once([task for tasks, _ in read for task in tasks], str(place))
    found = _with_digest(tasks, {"name": place.absolute().name})
    return replace(found, refused=[omission for _, omissions in read for omission in omissions])


def _loaded(folders: Sequence[Path], variables: Mapping[str, str]) -> Dataset:
    """The tasks in these folders; of two with one id the second is refused."""
    tasks, refused = dict[str, Rollout](), list[Omission]()
    for folder in folders:
        try:
            task = load_task(folder, variables=variables)
        except KoderzError as error:
            refused.append(Omission(folder.name, str(error)))
            continue
        if other := tasks.get(task.id):
            why = f"{folder}: two tasks have the id {task.id}, this one and {other.folder}"
            refused.append(Omission(folder.name, why))
        else:
            tasks[task.id] = task
    return Dataset([*tasks.values()], refused=refused)


def _is_task(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def each_once(tasks: Sequence[Rollout], where: str) -> Sequence[Rollout]:
    """The tasks. Raises KoderzError if two have one id."""
    counts = Counter(task.id for task in tasks)
    if twice := sorted(name for name, number in counts.items() if number > 1):
        raise KoderzError(f"{where}: two tasks have the id {twice[0]}")
    return tasks
