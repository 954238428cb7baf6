"""Datasets of rollouts: a task's folder, a folder of such, a file of rows or of a skill's evals, a registry's tasks.

A registry is Harbor's registry.json, which names the tasks of each version of a dataset. Such a task is a folder beside
the registry, or lies in a git repository, from which it is fetched once by its commit. Evals of skills are the
evals.json of agentskills.io and of the skill skill-creator.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import orjson

from koderz.errors import KoderzError, Unreachable
from koderz.settings.paths import cache_folder
from koderz.suites.dataset import Row, meant, require_keys
from koderz.suites.tables import kind_of
from koderz.systems.rollouts.swebench import (
    DEPRECATED,
    Instance,
    is_task_repository,
    read_instances,
    with_substitute,
)
from koderz.systems.rollouts.swebench.places import SECONDS, variables_of
from koderz.systems.rollouts.task import Need, Network, Repo, Rollout, Rubric, SkillEval
from koderz.systems.rollouts.tasks.formats import FILES, load_task
from koderz.systems.rollouts.tasks.harbor import IMAGED
from koderz.systems.rollouts.tasks.runnable import Omission
from koderz.systems.workspaces import git
from koderz.systems.workspaces.environments import EnvironmentRule, read_environments
from koderz.systems.workspaces.folders import leads_out, made_whole
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.scripts import Script
from koderz_tracker.files import MB

if TYPE_CHECKING:
    from packaging.version import Version

_ELSEWHERE = "--sandbox docker, --images DIR with that image, or --environments FILE"


def read_rollouts(path: Path) -> list[Rollout]:
    """The instances in a file of rows or a task repository, but for those that it no longer publishes, as tasks.

    Raises KoderzError as `read_instances`.
    """
    return [
        _rollout(path, instance)
        for instance in read_instances(path)
        if instance.split != DEPRECATED
    ]


def _rollout(path: Path, instance: Instance) -> Rollout:
    image = f"{instance.where}: image = {instance.image}"
    assets = [Need(f"{instance.where}: image_assets", "SWE-bench Multimodal, which isn't run")]
    return Rollout(
        folder=(path / "tasks" if path.is_dir() else path) / instance.id,
        format="swebench",
        id=instance.id,
        title=instance.id,
        instructions=instance.problem_statement,
        rubrics=(Rubric("resolved", "the tests that the row names pass"),),
        workdir=instance.workdir,
        image_name=instance.image,
        network=Network("no-network"),
        test_seconds=SECONDS,
        needs=(
            *(assets if instance.has_assets else ()),
            Need(image, _ELSEWHERE, IMAGED, image=instance.image),
        ),
        digest=instance.digest,
        instance=instance,
        has_tree_of_image=True,
        metadata=instance.metadata,
    )


def stood_in(
    tasks: Iterable[Rollout], environments: Path | None, images: Path | None
) -> Sequence[Rollout]:
    """The tasks, where an environment of this machine stands in for each image that isn't in a folder of images.

    Raises KoderzError for a file of environments that can't be read.
    """
    if environments is None:
        return [*tasks]
    rules, store = read_environments(environments, "--environments"), ImageStore(images)
    return [_stood_in(task, rules, store) for task in tasks]


def _stood_in(task: Rollout, rules: Sequence[EnvironmentRule], images: ImageStore) -> Rollout:
    if task.instance is None:
        return task
    instance = with_substitute(task.instance, rules, images)
    if instance.substitute is None:
        return task
    rule = instance.substitute
    environment, mounts = variables_of(instance)
    return replace(
        task,
        image_name="",
        repo=Repo(rule.source, start_commit_sha=instance.base_commit),
        environment=environment,
        agent_mounts=mounts,
        needs=tuple(need for need in task.needs if not need.image),
        digest=hashlib.sha256(f"{task.digest} {rule}".encode()).hexdigest()[:16],
        instance=instance,
    )


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
    datasets = _read_registry(registry)
    bare, _, version = name.partition("@")
    versions = {each.version: each for each in datasets if each.name == bare}
    if not versions:
        raise KoderzError(
            f"{registry} has no dataset {bare!r}; {meant(bare, {each.name for each in datasets})}"
        )
    if version and version not in versions:
        raise KoderzError(
            f"{registry}: {bare} has no version {version!r}; {meant(version, versions)}"
        )
    dataset = versions[version or max(versions, key=_age)]
    if not dataset.tasks:
        raise KoderzError(f"{registry}: {bare}@{dataset.version} has no tasks")
    digest = hashlib.sha256(orjson.dumps(dataset, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    return FoundDataset(bare, dataset.version, digest, _task_folders(dataset, registry))


def _age(version: str) -> tuple[bool, bool, Version, str]:
    """The place of a version among others: the older, the smaller."""
    from packaging.version import Version

    try:
        return version == _HEAD, True, Version(version), version
    except ValueError:  # also of a number of thousands of digits
        return version == _HEAD, False, Version("0"), version


def _read_registry(registry: str) -> Sequence[RegistryDataset]:
    try:
        rows = orjson.loads(
            _fetched(registry) if "://" in registry else _read_bytes(Path(registry))
        )
    except orjson.JSONDecodeError as error:
        raise KoderzError(f"{registry}: no JSON ({error})") from None
    if not isinstance(rows, list):
        raise KoderzError(f"{registry}: a registry is a list of datasets")
    found = []
    for number, row in enumerate(rows, 1):
        where = f"{registry}: dataset {number}"
        if not isinstance(row, dict):
            raise KoderzError(f"{where} has to be a table")
        require_keys(row, [each.name for each in fields(RegistryDataset)], where)
        for task in row["tasks"] if isinstance(row.get("tasks"), list) else ():
            if isinstance(task, dict):
                require_keys(task, [each.name for each in fields(RegistryTask)], f"{where}, tasks")
        try:
            found.append(msgspec.convert(row, RegistryDataset))
        except msgspec.ValidationError as error:
            raise KoderzError(f"{where}: {str(error).replace('$.', '')}") from None
    return found


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise KoderzError(f"the registry {path} can't be read ({error.strerror})") from None


def _fetched(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise KoderzError(
            f"--registry {url}: a registry is a file, or is fetched by https:// or http://"
        )
    from koderz.connections import certificates, httpx, told

    found, trusted = bytearray(), certificates("https:")  # to which a server may redirect
    try:
        with httpx.stream(
            "GET", url, verify=trusted, timeout=_SECONDS, follow_redirects=True
        ) as answer:
            for part in answer.raise_for_status().iter_bytes():
                found += part
                if len(found) >= _LARGEST:
                    break
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise Unreachable(f"the registry {url} can't be fetched: {told(error)}") from None
    except httpx.HTTPError as error:
        raise Unreachable(f"the registry {url} can't be fetched: {error}") from None
    return bytes(found[:_LARGEST])


def _task_folders(dataset: RegistryDataset, registry: str) -> Sequence[Path]:
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
            wanted.setdefault(
                (_git_source(task.git_url, registry), task.git_commit_id or ""), []
            ).append(task.path)
    trees = {key: _fetch_tree(*key, paths, where) for key, paths in wanted.items()}
    found = []
    for task in dataset.tasks:
        key = (
            (_git_source(task.git_url, registry), task.git_commit_id or "")
            if task.git_url
            else None
        )
        folder = (trees[key] if key else Path(registry).absolute().parent) / task.path
        if not folder.is_dir():
            raise KoderzError(
                f"{where}: there is no folder {task.path}{f' in {task.git_url}' if key else ''}"
            )
        found.append(folder)
    return found


def _git_source(url: str, registry: str) -> str:
    """A repository's URL, or its path as seen from the registry."""
    return url if "://" in url else os.path.abspath(Path(registry).parent / url)  # noqa: PTH100


def _fetch_tree(source: str, commit: str, paths: Sequence[str], where: str) -> Path:
    """The folder that has these paths of a commit, fetched if it isn't here yet. Raises KoderzError."""
    digest = hashlib.sha256("\0".join((source, commit, *sorted(paths))).encode()).hexdigest()
    tree = cache_folder() / "tasks" / digest[:24]
    if tree.is_dir():
        return tree
    with made_whole(tree) as fresh:
        try:
            with ThreadPoolExecutor(1) as pool:  # an event loop may be running here
                pool.submit(
                    lambda: asyncio.run(git.export(source, commit, fresh, paths=paths))
                ).result()
        except git.GitError as error:
            raise KoderzError(
                f"{where}: {commit[:12]} of {source} can't be fetched: {error}"
            ) from None
    return tree


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
        raise KoderzError(
            f"{place} is no folder of tasks, no file of rows (.jsonl), nor a configuration (.toml)"
        )
    if registry is None:
        raise KoderzError(
            f"there is no folder {place}; a dataset of that name needs --registry FILE or URL"
        )
    found = find_dataset(place.as_posix(), registry)
    loaded = _loaded(found.folders, variables)
    about = {
        "name": found.name,
        "version": found.version,
        "registry": registry,
        "entry_digest": found.digest,
    }
    return replace(_with_digest(loaded.tasks, about), refused=loaded.refused)


def _with_digest(tasks: Sequence[Rollout], about: Mapping[str, str]) -> Dataset:
    digests = sorted(f"{task.id} {task.digest}" for task in tasks)
    return Dataset(
        tasks, {**about, "digest": hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]}
    )


def _in_folder(folder: Path, variables: Mapping[str, str]) -> Dataset:
    """The task in a folder, or the tasks in the folders below it."""
    folders = (
        [] if _is_task(folder) else [path for path in sorted(folder.iterdir()) if _is_task(path)]
    )
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


_EVALS = "evals/evals.json"  # of a skill's folder
_LARGEST_EVALS = 16 * MB
_EVAL_KEYS = {
    "id",
    "name",
    "prompt",
    "expected_output",
    "files",
    "expectations",
    "assertions",
    "tests",
}
_EVAL_FOLDERS = ("evals/files/", "evals/")  # without which files are laid into the checkout


def evals_files(place: Path) -> list[Path]:
    """The files of evals that a dataset's place names: itself, or those of a skill's folder or of a folder of skills.

    Told by content: JSON with a list `evals`. None for any other dataset.
    """
    if place.is_dir():
        own = place / _EVALS
        return (
            [own]
            if own.is_file()
            else sorted(path for path in place.glob(f"*/{_EVALS}") if path.is_file())
        )
    is_small = (
        place.suffix == ".json" and place.is_file() and place.stat().st_size <= _LARGEST_EVALS
    )
    return [place] if is_small and isinstance(_json_of(place).get("evals"), list) else []


def _json_of(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file; empty for anything else."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_evals(path: Path) -> tuple[list[Rollout], list[Omission]]:
    """The evals in a file as tasks, and those that can't be used. Raises KoderzError for a file that holds none."""
    document, root = _json_of(path), path.absolute().parent
    rows = document.get("evals")
    if not isinstance(rows, list) or not rows:
        raise KoderzError(f"{path} has no evals: it has to be JSON with a list `evals`")
    root = root.parent if root.name == "evals" else root
    skill = document.get("skill_name")
    skill = skill if isinstance(skill, str) and skill else root.name
    tasks, refused = dict[str, Rollout](), list[Omission]()
    for number, given in enumerate(rows, 1):
        row = Row(f"{path}, eval {number}", given if isinstance(given, dict) else {})
        named = next((name for name in ("id", "name") if name in row.fields), "")
        try:
            task = _eval_task(row, f"{skill}/{row.id(named) if named else number}", skill, root)
            if task.id in tasks:
                raise row.error(f"another eval has the id {task.id}")
            tasks[task.id] = task
        except (KoderzError, OSError, UnicodeDecodeError) as error:
            refused.append(Omission(f"{skill}/{number}", str(error)))
    return [*tasks.values()], refused


def _eval_task(row: Row, task_id: str, skill: str, root: Path) -> Rollout:
    def named(key: str) -> dict[str, Path]:
        """The files of the skill's folder that the eval names, by their names for whoever gets them."""
        found = dict[str, Path]()
        for path in row.texts(key):
            inner = path.removeprefix("./")
            name = inner.removeprefix(
                next((folder for folder in _EVAL_FOLDERS if inner.startswith(folder)), "")
            )
            file = root / inner
            if leads_out(file, root) or not file.is_file():
                raise row.error(f"{key}: there is no file {path} in {root}")
            if name in found:
                raise row.error(f"{key}: two files have the name {name}")
            found[name] = file.resolve()
        return found

    expected = row.text("expected_output", "")
    stated = (*row.texts("expectations"), *row.texts("assertions"))
    scripts = tuple(
        Script(name, "tests", file.read_text("utf-8")) for name, file in named("tests").items()
    )
    if not (stated or expected or scripts):
        raise row.error(
            "it has no expectations, expected_output or tests, so nothing could judge it"
        )
    expectations = stated or ((f"The result is as expected: {expected}",) if expected else ())
    shown = named("files")
    about = f"\n\nInput files: {', '.join(shown)}" if shown else ""
    rubrics = [Rubric(str(number), text) for number, text in enumerate(expectations, 1)]
    task = Rollout(
        folder=root,
        format="evals",
        id=task_id,
        title=row.text("name", task_id),
        instructions=row.text("prompt") + about,
        files={**shown},
        rubrics=(Rubric("tests", "the tests of the eval pass"),) if scripts else tuple(rubrics),
        scripts=scripts,
        skill_eval=SkillEval(skill, expected, tuple(expectations)),
        ignored_keys=tuple(f"evals.json: {key}" for key in row.fields if key not in _EVAL_KEYS),
    )
    # The skill itself is no part of the task: arms with two revisions of it have the same one.
    digest = hashlib.sha256(
        repr((replace(task, folder=Path(), files={}), task.skill_eval)).encode()
    )
    for path, source in shown.items():
        digest.update(f"{path}\0".encode() + source.read_bytes())
    return replace(task, digest=digest.hexdigest()[:16])


def skill_notices(tasks: Sequence[Rollout]) -> Iterator[str]:
    """Sentences on what judges the evals of skills among the tasks, and on what is wrong with skills."""
    # each once, however many arms
    evals = {task.base or task.id: task for task in tasks if task.skill_eval}.values()
    by = Counter("their tests" if task.scripts else "the role judge" for task in evals)
    if by:
        told = ", ".join(f"{count} by {what}" for what, count in by.items())
        calibrated = "koderz benchmark calibrate says how far that one can be believed"
        yield f"evals of skills are judged: {told}{f'; {calibrated}' if 'the role judge' in by else ''}"
    added = [
        each
        for task in tasks
        for each in task.additions
        if each.kind == "skill" and not each.inside
    ]
    for folder in dict.fromkeys(
        [*(task.folder for task in evals), *(Path(each.path) for each in added)]
    ):
        yield from skill_problems(folder)


def skill_problems(folder: Path) -> Iterator[str]:
    """Sentences on what the published validator finds wrong with a skill. None where it is not installed."""
    try:
        from skills_ref import validate

        found = validate(folder) if (folder / "SKILL.md").is_file() else ()
    except ImportError:
        return
    except (OSError, ValueError) as error:  # it decodes what it reads
        found = [str(error)]
    for problem in found:
        yield f"skill {folder.name}: not as agentskills.io specifies: {' '.join(problem.split())[:300]}"
