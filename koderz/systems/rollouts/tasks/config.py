"""Configurations of rollouts: tasks, their agents and models, and the number of rollouts.

Settings in which entries of one task differ belong to arms, so that a task is compared under each.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import os
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox import SANDBOXES
from koderz.settings.trust import READS, RUNS_CODE
from koderz.systems.rollouts.additions import (
    KINDS,
    LARGEST_TEXT,
    Addition,
    read_additions,
    sources_of,
)
from koderz.systems.rollouts.agents.adapters import ACP
from koderz.systems.rollouts.task import Rollout, in_parts, with_digest
from koderz.systems.rollouts.tasks.datasets import Dataset, read_dataset
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.tasks.runnable import Omission
from koderz.systems.workspaces.opening import has_workspaces
from koderz_tracker.scrubber import Scrubber, is_secret_variable


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """An entry of `[[tasks]]`: a task, an agent, a model, and a number of rollouts."""

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
    skills: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    system_prompt: tuple[str, ...] = ()
    arm: str = ""  # the name of its [[arms]]

    @property
    def added(self) -> Mapping[str, tuple[str, ...]]:
        """The texts that name what its agent gets beyond the task, by their key."""
        return {key: found for key in KINDS if (found := getattr(self, key))}

    @property
    def seconds(self) -> float | None:
        """The agent's time in seconds, if the entry limits it."""
        said = self.environment_variables.get("TIMEOUT_SEC")
        return self.timeout_sec or (float(said) if said else None)


_TOP = {"name": str, "parallel": int, "dataset": str, "registry": str}
_KINDS: Mapping[str, Any] = {
    key: kind for key, kind in {**_TOP, **get_type_hints(TaskEntry)}.items() if key != "arm"
}
_LONGEST_NAME = 60  # characters, of an arm
_WANTED = {
    "name": "a text that can be the name of a folder",
    "parallel": "a whole number from 1 to 4096",
    "rollouts": "a whole number from 1 to 100000",
    "max_diff_mb": "a whole number from 1 to 1024",
    "timeout_sec": "a number of seconds above 0",
    "apply_overrides": "true or false",
    "environment_variables": "a table of texts, of which TIMEOUT_SEC is a number of seconds above 0",
    **dict.fromkeys(("agent_mounts", *KINDS), "a list of texts"),
    "sandbox": f"one of {', '.join(SANDBOXES)}",
}
_HOLDS: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda name: bool(name) and not {*name} & {*"/\\\0"} and name not in (".", ".."),
    "parallel": lambda number: 1 <= number <= 4096,
    "rollouts": lambda number: 1 <= number <= 100_000,
    "max_diff_mb": lambda number: number is None or 1 <= number <= 1024,
    "timeout_sec": lambda seconds: seconds is None or 0 < seconds < math.inf,
    "environment_variables": lambda each: 0 < float(each.get("TIMEOUT_SEC") or 1) < math.inf,
    "sandbox": has_workspaces,
}


@dataclass(frozen=True, slots=True)
class Config:
    """The content of a configuration, with its defaults filled into each entry."""

    path: Path
    text: str
    name: str
    parallel: int
    entries: tuple[TaskEntry, ...]
    tasks: tuple[Rollout, ...]  # the different ones
    of_entries: tuple[str, ...]  # the id of each entry's task
    about: Mapping[str, str] = field(default_factory=dict)  # its dataset, for the record
    refused: Sequence[Omission] = ()  # the tasks of its dataset that can't be loaded
    arms: int = 1  # of its [[arms]], each of which has an entry for every [[tasks]]

    @property
    def models(self) -> Sequence[str | None]:
        """The model of each entry."""
        return [entry.model for entry in self.entries]

    @property
    def dataset(self) -> Dataset:
        """Its tasks."""
        return Dataset(self.tasks, self.about, self.refused)

    def having(self, tasks: Collection[str]) -> Config:
        """The configuration without the entries of other tasks than these."""
        pairs = zip(self.entries, self.of_entries, strict=True)
        kept = [(entry, task) for entry, task in pairs if task in tasks]
        own = tuple(task for task in self.tasks if task.id in tasks)
        entries, of_entries = tuple(entry for entry, _ in kept), tuple(task for _, task in kept)
        return dataclasses.replace(self, entries=entries, tasks=own, of_entries=of_entries)

    def where(self, number: int, key: str) -> str:
        """The place of a key in an entry, for error messages."""
        return _where(self.path, self.text, (number - 1) // self.arms + 1, key)


def risks_of(config: Config, without: Collection[str] = ()) -> dict[str, str]:
    """The risks of its entries, by their place in the file.

    `without` are settings of entries that the run has its own word on.
    """
    near = (config.path.parent.resolve(), Path.cwd())
    found = {}
    for number, entry in enumerate(config.entries, 1):
        if entry.sandbox == "uncontained" and "sandbox" not in without:
            found[f"{config.where(number, 'sandbox')}, sandbox"] = RUNS_CODE
        scripts = [found_beside(config.path, entry.script)] if entry.script else []
        mounts = [found_beside(config.path, name) for name in entry.agent_mounts]
        words = entry.agent.removeprefix(ACP).split() if entry.agent.startswith(ACP) else ()
        files = [Path(word) for word in words if "/" in word and Path(word).exists()]
        named = [
            ("script", scripts, RUNS_CODE),
            ("agent_mounts", mounts, READS),
            ("agent", files, READS),
        ]
        for key, texts in entry.added.items():
            sources = (sources_of(KINDS[key], text, config.path.parent) for text in texts)
            named.append((key, [place for each in sources for place in each], READS))
        for key, places, risk in named:
            real = [Path(os.path.realpath(place)) for place in places]
            if not all(any(place.is_relative_to(folder) for folder in near) for place in real):
                found[f"{config.where(number, key)}, {key}"] = risk
    return found


def config_of(place: Path, dataset: Dataset) -> Config:
    """A configuration of one entry for each task of a dataset, by koderz' own agent where none is named."""
    tasks = tuple(dataclasses.replace(task, base=task.digest) for task in dataset.tasks)
    entries = tuple(TaskEntry(str(task.folder)) for task in tasks)
    name = place.absolute().name.removesuffix(".gz").removesuffix(".jsonl")
    return Config(
        place,
        "",
        name,
        1,
        entries,
        tasks,
        tuple(task.id for task in tasks),
        dataset.about,
        dataset.refused,
    )


def read_config(path: Path, variables: Mapping[str, str] = MappingProxyType({})) -> Config:
    """Reads a configuration. Raises KoderzError, which names the file, the line and the nearest valid key.

    `variables` of this machine are those that tasks may take their own from.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise KoderzError(f"there is no configuration {path}") from None
    except IsADirectoryError:
        raise KoderzError(
            f"{path} is a folder; a configuration is a TOML file with [[tasks]]. The tasks of a folder are run by: "
            f"koderz rollouts run --dataset {shlex.quote(str(path))} --agent koderz --model MODEL"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"{path} can't be read: {error}") from None
    return _config(path, text, tuple(variables.items()))


@cache
def _config(path: Path, text: str, variables: tuple[tuple[str, str], ...]) -> Config:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise KoderzError(f"{path}: {error}") from None
    arms = _arms(path, text, table.pop("arms", []))
    rows = table.pop("tasks", [] if "dataset" in table else None)
    is_empty = rows == [] and "dataset" not in table
    if not isinstance(rows, list) or is_empty or not all(isinstance(row, dict) for row in rows):
        raise KoderzError(f"{path} has no [[tasks]], and no dataset")
    usual = {key: _read(path, text, 0, key, value) for key, value in table.items()}
    name, parallel = usual.pop("name", path.stem), usual.pop("parallel", 1)
    dataset = _dataset(path, usual.pop("dataset", ""), usual.pop("registry", ""), dict(variables))
    stated: list[TaskEntry] = []
    for number, row in enumerate(rows, 1):
        entry = TaskEntry(
            **{
                **usual,
                **{key: _read(path, text, number, key, value) for key, value in row.items()},
            }
        )
        if not entry.prepared_dir:
            raise KoderzError(f"{_where(path, text, number, '')} has no prepared_dir")
        stated.append(entry)
    loaded = [
        _task(path, text, entry, number, dict(variables)) for number, entry in enumerate(stated, 1)
    ]
    of_dataset = [
        TaskEntry(**{**usual, "prepared_dir": str(task.folder)}) for task in dataset.tasks
    ]
    plain = [*zip(stated, loaded, range(1, len(stated) + 1), strict=True)]
    plain += zip(of_dataset, dataset.tasks, [0] * len(of_dataset), strict=True)
    entered = [
        (each, task, number) for entry, task, number in plain for each in _in_arms(entry, arms)
    ]
    added = cache(partial(_additions, path))  # which are read once for thousands of tasks
    own = [
        _with_settings(path, text, *each, added(tuple(each[0].added.items()))) for each in entered
    ]
    tasks = _told_apart({task.digest: task for task in own})
    of_entries = tuple(tasks[each.digest].id for each in own)
    entries, every = tuple(entry for entry, _, _ in entered), tuple(tasks.values())
    about, refused, number = dataset.about, dataset.refused, max(1, len(arms))
    return Config(path, text, name, parallel, entries, every, of_entries, about, refused, number)


def _arms(path: Path, text: str, rows: object) -> Sequence[Mapping[str, Any]]:
    """The arms that a configuration states. Raises KoderzError for one without a name of its own."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise KoderzError(f"{path}: arms have to be tables that begin with [[arms]]")
    arms = [
        {key: _read(path, text, number, key, value, "arms") for key, value in row.items()}
        for number, row in enumerate(rows, 1)
    ]
    names = [arm.get("name", "") for arm in arms]
    for number, name in enumerate(names, 1):
        if (
            not (name and name.isprintable() and len(name) <= _LONGEST_NAME)
            or names.index(name) < number - 1
        ):
            where = _where(path, text, number, "name", "arms")
            raise KoderzError(
                f"{where}: each of [[arms]] needs a name of its own, of up to {_LONGEST_NAME} characters"
            )
    return arms


def _in_arms(entry: TaskEntry, arms: Sequence[Mapping[str, Any]]) -> list[TaskEntry]:
    """An entry as it is in each arm, which has what the entry and the arm give."""
    found = []
    for arm in arms:
        added: dict[str, Any] = {key: (*getattr(entry, key), *arm.get(key, ())) for key in KINDS}
        found.append(dataclasses.replace(entry, arm=arm["name"], **added))
    return found or [entry]


def _additions(path: Path, added: Sequence[tuple[str, Sequence[str]]]) -> tuple[Addition, ...]:
    """The additions that an entry names. Raises KoderzError if two things of a kind have the same name."""
    found = dict[tuple[str, str], Addition]()
    for key, said in added:
        for text in said:
            try:
                every = read_additions(KINDS[key], text, path.parent)
            except KoderzError as error:
                raise KoderzError(f"{path}: {key}: {error}") from None
            for each in every:
                if found.setdefault((each.kind, each.bare_name), each) is not each:
                    raise KoderzError(
                        f"{path}: {key}: one arm can't have two that are called {each.bare_name}"
                    )
    if (
        sum(len(each.text.encode()) for each in found.values() if each.kind != "skill")
        > LARGEST_TEXT
    ):
        raise KoderzError(f"{path}: the texts of one arm have more than {LARGEST_TEXT >> 10} KB")
    return tuple(found.values())


def _dataset(path: Path, name: str, registry: str, variables: Mapping[str, str]) -> Dataset:
    """The dataset that a configuration names, as seen from its folder; one without tasks if it names none."""
    if not name:
        return Dataset(())
    beside = registry if "://" in registry else str(found_beside(path, registry))
    place = found_beside(path, name)
    return read_dataset(
        place if place.exists() else Path(name), beside if registry else None, variables
    )


def _read(path: Path, text: str, number: int, key: str, value: object, table: str = "tasks") -> Any:
    """The value of a key in the entry with this number; 0: of all. Raises KoderzError for an invalid one."""
    where = _where(path, text, number, key, table)
    known: Collection[str] = _KINDS if number == 0 else _KINDS.keys() - _TOP.keys()
    if table == "arms":
        known = {"name", *KINDS}
    if key not in known:
        near = difflib.get_close_matches(key, known if table == "arms" else _KINDS, 1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
        if key in _TOP:
            meant = "it stands above all [[tasks]]"
        raise KoderzError(f"{where}: unknown key {key!r}; {meant}")
    try:
        found = msgspec.convert(value, _KINDS[key])
        holds = table == "arms" or _HOLDS.get(key, lambda _: True)(found)
    except (msgspec.ValidationError, ValueError):
        holds = False
    if not holds:
        raise KoderzError(
            f"{where}: {key} has to be {_WANTED.get(key, 'a text')}, not {str(value)[:60]!r}"
        )
    return found


def _task(
    path: Path, text: str, entry: TaskEntry, number: int, variables: Mapping[str, str]
) -> Rollout:
    """The entry's task, before the entry's settings."""
    folder = found_beside(path, entry.prepared_dir)
    if not folder.is_dir():
        raise KoderzError(
            f"{_where(path, text, number, 'prepared_dir')}: there is no folder {entry.prepared_dir}"
        )
    overrides = (
        found_beside(path, entry.overrides) if entry.overrides and entry.apply_overrides else None
    )
    if overrides and not overrides.is_file():
        raise KoderzError(
            f"{_where(path, text, number, 'overrides')}: there is no file {entry.overrides}"
        )
    task = load_task(folder, overrides, apply_overrides=entry.apply_overrides, variables=variables)
    if overrides and not task.takes_overrides:
        where = _where(path, text, number, "overrides")
        raise KoderzError(
            f"{where}: {entry.prepared_dir} has no tb_meta.json, so it takes no overrides"
        )
    return task


def _with_settings(
    path: Path,
    text: str,
    entry: TaskEntry,
    task: Rollout,
    number: int,
    additions: Sequence[Addition],
) -> Rollout:
    """The task with the settings of its entry, and what its agent gets; its digest differs from other entries'."""
    own = {**task.environment, **entry.environment_variables}
    seconds = entry.seconds or task.agent_seconds
    mounts = tuple(str(found_beside(path, name).absolute()) for name in entry.agent_mounts)
    if missing := [name for name in mounts if not Path(name).exists() or Path(name) == Path("/")]:
        where = _where(path, text, number, "agent_mounts")
        raise KoderzError(
            f"{where}: agent_mounts: {missing[0]} is no file or folder that an agent can be shown"
        )
    if twice := {each.name for each in task.additions if each.kind == "mcp"} & {
        each.bare_name for each in additions
    }:
        raise KoderzError(
            f"{path}: {task.id} has a server {min(twice)} of its own; call that of the arm otherwise"
        )
    in_arm = (
        [entry.arm, *((each.name, each.digest) for each in additions)]
        if entry.arm or additions
        else []
    )
    changed = repr((task.digest, own, seconds, entry.max_diff_mb, entry.sandbox, *mounts, *in_arm))
    digest = hashlib.sha256(changed.encode()).hexdigest()[:16]

    def entered(part: Rollout) -> Rollout:
        return dataclasses.replace(
            part,
            environment={**part.environment, **entry.environment_variables},
            agent_seconds=entry.seconds or part.agent_seconds,
            max_diff_mb=entry.max_diff_mb,
            base=task.digest,
            sandbox=entry.sandbox or "",
            agent_mounts=mounts,
            additions=(*part.additions, *additions),
        )

    return with_digest(in_parts(task, entered), digest)


def _told_apart(tasks: Mapping[str, Rollout]) -> dict[str, Rollout]:
    """The tasks, with a number behind an id that several have."""
    found: dict[str, Rollout] = {}
    times: dict[str, int] = {}
    for digest, task in tasks.items():
        times[task.id] = count = times.get(task.id, 0) + 1
        found[digest] = dataclasses.replace(task, id=f"{task.id}#{count}") if count > 1 else task
    return found


def found_beside(path: Path, name: str) -> Path:
    """A file or folder found from the working directory, else from the configuration's folder."""
    here = Path(name)
    return here if here.exists() else path.parent / name


def _where(path: Path, text: str, number: int, key: str, table: str = "tasks") -> str:
    """The file and line of a key in an entry, or above all entries; without a key, of the entry itself."""
    section, sections = ("", 0), dict.fromkeys(("tasks", "arms"), 0)
    found = dict[tuple[tuple[str, int], str], int]()
    for line, each in enumerate(text.splitlines(), 1):
        for name in sections:
            if each.strip().startswith(f"[[{name}]]"):
                sections[name] += 1
                section = name, sections[name]
                found[section, ""] = line
        name = each.strip(" \t[").partition("=")[0].partition("]")[0]
        found.setdefault((section, name.removeprefix("tasks.").strip(" \t\"'")), line)
    own = table, number
    at = found.get((own, key)) or found.get((("", 0), key)) or found.get((own, ""))
    return f"{path}, line {at}" if at else str(path)


Shown = Mapping[str, str | None]
"""Settings by name as they may be shown: None if an entry lacks a setting, a number for a secret."""

_VARIABLE = "environment_variables."
_LONG = 32  # characters of a value
_LONG_NAME = 72  # characters of all settings in the name of an arm


class Variants:
    """The tasks of a configuration, grouped by their state before their entries' settings."""

    def __init__(self, config: Config) -> None:
        self._config = config
        first: dict[str, TaskEntry] = {}
        for task_id, entry in zip(config.of_entries, config.entries, strict=True):
            first.setdefault(task_id, entry)
        self._set = {task.id: _set_by(first[task.id]) for task in config.tasks}
        self._shown = _shown(self._set)
        self._tasks = {task.id: task for task in config.tasks}
        self._groups: dict[str, list[Rollout]] = defaultdict(list)
        for task in config.tasks:
            self._groups[task.base].append(task)

    def of_entries(self, without: Collection[str] = ()) -> Sequence[tuple[str, Shown | None]]:
        """The id of each entry's task and the settings of its arm, which are None if no task has several.

        `without`: settings that the command line has the last word on.
        """
        entries = self._config.of_entries
        if len(self._groups) == len(self._tasks):
            return [(task, None) for task in entries]
        names = [name for name in self._varied() if name not in without]
        firsts = {task: self._groups[self._tasks[task].base][0].id for task in self._tasks}
        return [
            (firsts[task], {name: self._shown[task].get(name) for name in names})
            for task in entries
        ]

    def find(self, task: str, settings: Shown) -> Rollout:
        """The task with this id under an arm's settings. Raises KoderzError if no entry matches."""
        for each in self._groups[self._tasks[task].base] if task in self._tasks else ():
            if all(self._shown[each.id].get(name) == value for name, value in settings.items()):
                return each
        label = settings_label(settings) or "no settings of its own"
        raise KoderzError(f"{self._config.path}: no entry has the task {task} with {label}")

    def _varied(self) -> list[str]:
        """The names of settings with several values for some task."""
        groups = [[self._set[task.id] for task in group] for group in self._groups.values()]
        names = dict.fromkeys(name for own in self._set.values() for name in own)
        return [
            name
            for name in names
            if any(len({own.get(name) for own in group}) > 1 for group in groups)
        ]


def additions_by_arm(
    config: Config | None, tasks: Sequence[Rollout]
) -> dict[str, list[dict[str, str]]]:
    """The additions of each of [[arms]], for the record; those of entries without an arm by the name ''."""
    arms = dict(zip(config.of_entries, config.entries, strict=True)) if config else {}
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for task in tasks:
        for each in task.additions:
            row = {"kind": each.kind, "name": each.name, "digest": each.digest}
            row |= {"place": each.place} if each.kind == "mcp" else {}
            found[arms[task.id].arm if task.id in arms else ""][
                f"{each.kind} {each.name} {each.digest}"
            ] = row
    return {arm: [*rows.values()] for arm, rows in found.items()}


def settings_label(settings: Shown) -> str:
    """The settings in the name of an arm, such as `MODE=fast · timeout_sec=60`; cut if there are many."""
    scrubber = Scrubber()  # a value may be a secret of this machine, however it is called
    shown = {
        name: value if scrubber.text(value) == value else "#"
        for name, value in settings.items()
        if value is not None
    }
    words = [
        value if name == "arm" else f"{name.removeprefix(_VARIABLE)}={value}"
        for name, value in shown.items()
    ]
    label = " · ".join(words)
    return label if len(label) <= _LONG_NAME else f"{label[:_LONG_NAME].rstrip(' ·')}…"


def _set_by(entry: TaskEntry) -> dict[str, str]:
    own = {
        "timeout_sec": None if entry.timeout_sec is None else f"{entry.timeout_sec:g}",
        "max_diff_mb": None if entry.max_diff_mb is None else str(entry.max_diff_mb),
        "sandbox": entry.sandbox,
        "agent_mounts": ", ".join(entry.agent_mounts) or None,
        # The name of an arm stands for all that it gives; without arms, the entries' own keys tell them apart.
        **(
            {"arm": entry.arm}
            if entry.arm
            else {key: ", ".join(texts) for key, texts in entry.added.items()}
        ),
    }
    variables = {f"{_VARIABLE}{name}": value for name, value in entry.environment_variables.items()}
    return {**variables, **{name: value for name, value in own.items() if value is not None}}


def _shown(values: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The settings of each task as they may be shown.

    A secret is the number of its value, and what would look like another value has that number behind it. This depends
    on the configuration alone, since a run that is taken up elsewhere finds its settings by it.
    """
    scrubber = Scrubber({})
    known: dict[str, dict[str, str]] = defaultdict(dict)  # by name, each value as it is shown
    for own in values.values():
        for name, value in own.items():
            others = known[name]
            if value not in others:
                words, number = _words(name, value, scrubber), len(others) + 1
                others[value] = (
                    words if words and words not in others.values() else f"{words}#{number}"
                )
    return {
        task: {name: known[name][value] for name, value in own.items()}
        for task, own in values.items()
    }


def _words(name: str, value: str, scrubber: Scrubber) -> str:
    """A value in a few words; empty if it is a secret or can't be printed."""
    variable = name.removeprefix(_VARIABLE)
    assigned = f"{variable}={value}"
    shown = scrubber.address(scrubber.text(value)) if "://" in value else scrubber.text(value)
    if is_secret_variable(variable) or shown != value or scrubber.text(assigned) != assigned:
        return ""
    names = (Path(path).name for path in value.split(", "))
    text = ", ".join(names) if name in ("agent_mounts", *KINDS) else " ".join(value.split())
    if not text.isprintable():
        return ""
    return text if len(text) <= _LONG or name == "arm" else f"{text[:_LONG]}…"
