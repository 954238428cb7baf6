"""Registries of datasets: Harbor's registry.json, which names the tasks of each version of a dataset.

A task is a folder beside the registry, or lies in a git repository, from which it is fetched once by its commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import orjson

from koderz.errors import KoderzError, Unreachable
from koderz.settings.paths import cache_folder
from koderz.suites.keys import meant, require_keys
from koderz.systems.workspaces import git
from koderz.systems.workspaces.folders import made_whole

if TYPE_CHECKING:
    from packaging.version import Version

_LARGEST = 64 << 20  # bytes of a registry
_SECONDS = 60.0  # to fetch one
_HEAD = "head"  # a version that is newer than all others
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class RegistryTask:
    """A task of a dataset: a folder beside the registry, or with `git_url` in a repository."""

    path: str
    name: str = ""
    git_url: str | None = None
    git_commit_id: str | None = None


@dataclass(frozen=True, slots=True)
class RegistryDataset:
    """A version of a dataset. `metrics` say how Harbor sums up its rewards, which koderz does in its own way."""

    name: str
    tasks: tuple[RegistryTask, ...]
    version: str = ""
    description: str = ""
    metrics: tuple[Any, ...] = ()


class FoundDataset(NamedTuple):
    """A dataset of a registry, with the folders of its tasks on this machine."""

    name: str
    version: str
    digest: str  # of its entry in the registry
    folders: Sequence[Path]


def find_dataset(name: str, registry: str) -> FoundDataset:
    """The dataset NAME or NAME@VERSION of a registry in a file or at a URL; without a version the newest.

    Raises KoderzError for a name that it lacks or an entry that can't be used, Unreachable for a URL without answer.
    """
    datasets = _read(registry)
    bare, _, version = name.partition("@")
    versions = {each.version: each for each in datasets if each.name == bare}
    if not versions:
        raise KoderzError(f"{registry} has no dataset {bare!r}; {meant(bare, {each.name for each in datasets})}")
    if version and version not in versions:
        raise KoderzError(f"{registry}: {bare} has no version {version!r}; {meant(version, versions)}")
    dataset = versions[version or max(versions, key=_age)]
    if not dataset.tasks:
        raise KoderzError(f"{registry}: {bare}@{dataset.version} has no tasks")
    digest = hashlib.sha256(orjson.dumps(dataset, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    return FoundDataset(bare, dataset.version, digest, _folders(dataset, registry))


def _age(version: str) -> tuple[bool, bool, Version, str]:
    """The place of a version among others: the older, the smaller."""
    from packaging.version import Version

    try:
        return version == _HEAD, True, Version(version), version
    except ValueError:  # also of a number of thousands of digits
        return version == _HEAD, False, Version("0"), version


def _read(registry: str) -> Sequence[RegistryDataset]:
    try:
        rows = orjson.loads(_fetched(registry) if "://" in registry else _bytes(Path(registry)))
    except orjson.JSONDecodeError as error:
        raise KoderzError(f"{registry}: no JSON ({error})") from None
    if not isinstance(rows, list):
        raise KoderzError(f"{registry}: a registry is a list of datasets")
    found = []
    for number, row in enumerate(rows, 1):
        where = f"{registry}: dataset {number}"
        _require_known(row, where)
        try:
            found.append(msgspec.convert(row, RegistryDataset))
        except msgspec.ValidationError as error:
            raise KoderzError(f"{where}: {str(error).replace('$.', '')}") from None
    return found


def _require_known(row: object, where: str) -> None:
    if not isinstance(row, dict):
        raise KoderzError(f"{where} has to be a table")
    require_keys(row, [each.name for each in fields(RegistryDataset)], where)
    for task in row["tasks"] if isinstance(row.get("tasks"), list) else ():
        if isinstance(task, dict):
            require_keys(task, [each.name for each in fields(RegistryTask)], f"{where}, tasks")


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise KoderzError(f"the registry {path} can't be read ({error.strerror})") from None


def _fetched(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise KoderzError(f"--registry {url}: a registry is a file, or is fetched by https:// or http://")
    from koderz.connections import certificates, httpx, told

    found, trusted = bytearray(), certificates("https:")  # to which a server may redirect
    try:
        with httpx.stream("GET", url, verify=trusted, timeout=_SECONDS, follow_redirects=True) as answer:
            for part in answer.raise_for_status().iter_bytes():
                found += part
                if len(found) >= _LARGEST:
                    break
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise Unreachable(f"the registry {url} can't be fetched: {told(error)}") from None
    except httpx.HTTPError as error:
        raise Unreachable(f"the registry {url} can't be fetched: {error}") from None
    return bytes(found[:_LARGEST])


def _folders(dataset: RegistryDataset, registry: str) -> Sequence[Path]:
    """The folder of each task. Raises KoderzError for a path that leaves its repository, or isn't there."""
    where = f"{registry}: {dataset.name}@{dataset.version}"
    for task in dataset.tasks:
        parts = PurePosixPath(task.path).parts
        if not parts or ".." in parts or task.path.startswith(("/", "~")) or "\\" in task.path:
            raise KoderzError(f"{where}: the path {task.path!r} has to be relative, without `..`")
        if task.git_url and not _COMMIT.fullmatch(task.git_commit_id or ""):
            raise KoderzError(
                f"{where}: {task.path} needs a git_commit_id of 40 hex digits, not {task.git_commit_id!r}"
            )
        if not task.git_url and "://" in registry:
            raise KoderzError(f"{where}: {task.path} has no git_url, and lies on another machine")
    wanted: dict[tuple[str, str], list[str]] = {}
    for task in dataset.tasks:
        if task.git_url:
            wanted.setdefault((_source(task.git_url, registry), task.git_commit_id or ""), []).append(task.path)
    trees = {key: _tree(*key, paths, where) for key, paths in wanted.items()}
    found = []
    for task in dataset.tasks:
        key = (_source(task.git_url, registry), task.git_commit_id or "") if task.git_url else None
        folder = (trees[key] if key else Path(registry).absolute().parent) / task.path
        if not folder.is_dir():
            raise KoderzError(f"{where}: there is no folder {task.path}{f' in {task.git_url}' if key else ''}")
        found.append(folder)
    return found


def _source(url: str, registry: str) -> str:
    """A repository's URL, or its path as seen from the registry."""
    return url if "://" in url else os.path.abspath(Path(registry).parent / url)  # noqa: PTH100


def _tree(source: str, commit: str, paths: Sequence[str], where: str) -> Path:
    """The folder that has these paths of a commit, fetched if it isn't here yet. Raises KoderzError."""
    digest = hashlib.sha256("\0".join((source, commit, *sorted(paths))).encode()).hexdigest()
    tree = cache_folder() / "tasks" / digest[:24]
    if tree.is_dir():
        return tree
    with made_whole(tree) as fresh:
        try:
            with ThreadPoolExecutor(1) as pool:  # an event loop may be running here
                pool.submit(lambda: asyncio.run(git.export(source, commit, fresh, paths=paths))).result()
        except git.GitError as error:
            raise KoderzError(f"{where}: {commit[:12]} of {source} can't be fetched: {error}") from None
    return tree
