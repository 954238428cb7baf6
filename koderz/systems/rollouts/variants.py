"""Settings in which entries of one task differ. They belong to arms, so that a task is compared under each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.systems.rollouts.additions import KINDS
from koderz.systems.rollouts.config import Config, TaskEntry
from koderz_tracker.scrubber import Scrubber, is_secret_variable

if TYPE_CHECKING:
    from koderz.systems.rollouts.task import Rollout

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
        return [(firsts[task], {name: self._shown[task].get(name) for name in names}) for task in entries]

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
        return [name for name in names if any(len({own.get(name) for own in group}) > 1 for group in groups)]


def additions_by_arm(config: Config | None, tasks: Sequence[Rollout]) -> dict[str, list[dict[str, str]]]:
    """The additions of each of [[arms]], for the record; those of entries without an arm by the name ''."""
    arms = dict(zip(config.of_entries, config.entries, strict=True)) if config else {}
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for task in tasks:
        for each in task.additions:
            row = {"kind": each.kind, "name": each.name, "digest": each.digest}
            row |= {"place": each.place} if each.kind == "mcp" else {}
            found[arms[task.id].arm if task.id in arms else ""][f"{each.kind} {each.name} {each.digest}"] = row
    return {arm: [*rows.values()] for arm, rows in found.items()}


def settings_label(settings: Shown) -> str:
    """The settings in the name of an arm, such as `MODE=fast · timeout_sec=60`; cut if there are many."""
    scrubber = Scrubber()  # a value may be a secret of this machine, however it is called
    shown = {
        name: value if scrubber.text(value) == value else "#" for name, value in settings.items() if value is not None
    }
    words = [value if name == "arm" else f"{name.removeprefix(_VARIABLE)}={value}" for name, value in shown.items()]
    label = " · ".join(words)
    return label if len(label) <= _LONG_NAME else f"{label[:_LONG_NAME].rstrip(' ·')}…"


def _set_by(entry: TaskEntry) -> dict[str, str]:
    own = {
        "timeout_sec": None if entry.timeout_sec is None else f"{entry.timeout_sec:g}",
        "max_diff_mb": None if entry.max_diff_mb is None else str(entry.max_diff_mb),
        "sandbox": entry.sandbox,
        "agent_mounts": ", ".join(entry.agent_mounts) or None,
        # The name of an arm stands for all that it gives; without arms, the entries' own keys tell them apart.
        **({"arm": entry.arm} if entry.arm else {key: ", ".join(texts) for key, texts in entry.added.items()}),
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
                others[value] = words if words and words not in others.values() else f"{words}#{number}"
    return {task: {name: known[name][value] for name, value in own.items()} for task, own in values.items()}


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
