"""Machines of tasks: images, prepared environments, GPUs and replaced models, by rules that users can extend."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Image
from koderz.suites.dataset import meant, require_keys
from koderz.systems.patches.tasks import GITHUB, PerfTask
from koderz.systems.workspaces.environments import (
    WHICH,
    EnvironmentRule,
    RowRule,
    beside,
    first_fitting,
    fits,
    interpreter_of,
)

_SHIPPED = Path(__file__).with_suffix(".toml")
_PARALLEL = re.compile(r"(?:--tensor-parallel-size|--tp-size|--tp|-tp)[ =]+(\d+)")
_MODEL = re.compile(r"--model(?:-path)?[ =]+(\S+)")


class ImageRule(RowRule, frozen=True):
    """The images for matching rows."""

    base: str
    human: str = ""  # empty: base's, with the human's answer
    folder: str = ""
    package: str = ""
    path: str = ""
    prepare: str = ""
    build: str = ""


class ModelRule(msgspec.Struct, frozen=True):
    """A model that replaces another."""

    model: str
    instead: str


class GpuRule(msgspec.Struct, frozen=True):
    """The GPUs that a model needs."""

    model: str
    count: int = 1
    type: str = "H100"


_KINDS: Mapping[str, type[msgspec.Struct]] = {
    "images": ImageRule,
    "environments": EnvironmentRule,
    "models": ModelRule,
    "gpus": GpuRule,
}


class Rules(msgspec.Struct, frozen=True):
    """All rules; of each kind the first that matches applies."""

    images: tuple[ImageRule, ...] = ()
    environments: tuple[EnvironmentRule, ...] = ()
    models: tuple[ModelRule, ...] = ()
    gpus: tuple[GpuRule, ...] = ()

    def model(self, name: str) -> str:
        """The model served for rows that say `name`."""
        return next((rule.instead for rule in self.models if fits(name, rule.model)), name)

    def gpu(self, command: str) -> str:
        """The GPUs of a command that serves a model, as `TYPE:COUNT`."""
        model = found[1] if (found := _MODEL.search(command)) else ""
        rule = next((rule for rule in self.gpus if fits(model, rule.model)), GpuRule(""))
        return f"{rule.type}:{found[1] if (found := _PARALLEL.search(command)) else rule.count}"

    def served(self, task: PerfTask) -> PerfTask:
        """The task with the import path of its rule, and the model that is served in place of what its row says, which
        its notes say."""
        task = replace(task, path=self._environment(task).path or task.path)
        if task.service is None or not task.conventions.published:
            return task
        argv, notes = [*task.service.argv], [*task.service.notes]
        for place, flag in enumerate(argv[:-1]):
            if (
                flag in ("--model", "--model-path")
                and (other := self.model(argv[place + 1])) != argv[place + 1]
            ):
                notes.append(f"{flag} {argv[place + 1]} → {other}")
                argv[place + 1] = other
        return replace(task, service=replace(task.service, argv=tuple(argv), notes=tuple(notes)))

    def _environment(self, task: PerfTask) -> EnvironmentRule:
        return first_fitting(self.environments, task) or EnvironmentRule()

    def repository(self, task: PerfTask) -> str:
        """The source of a task's repository; empty if it needs none."""
        return self._environment(task).source or task.repo

    def machine(self, task: PerfTask, *, has_images: bool = True) -> Machine:
        """The machine of a task. Raises KoderzError if a rule's python isn't one."""
        environment = self._environment(task)
        if not has_images:
            return _prepared(environment)
        command = " ".join(task.service.argv) if task.service else ""
        values = {
            "base_commit": task.base_commit,
            "human_commit": task.human_commit,
            "id": task.id.lower(),
        }
        values["arch"] = "arm64" if platform.machine() in ("arm64", "aarch64") else "x86_64"
        for rule in self.images:
            if rule.fits(task):
                base, human = (name.format_map(values) for name in (rule.base, rule.human))
                break
        else:
            rule, base, human = ImageRule(""), "", ""
        return Machine(
            base,
            human,
            folder=rule.folder,
            package=rule.package,
            path=rule.path,
            prepare=rule.prepare,
            build=rule.build,
            gpu=self.gpu(command) if command and task.conventions.published else "",
            model=found[1]
            if (found := _MODEL.search(command)) and task.conventions.published
            else "",
            source=environment.source,
            downloads=environment.downloads,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which a task's legs run. The fields about its image are explained in machines.toml."""

    base: str = ""  # image; empty: the sandbox's usual one
    human: str = ""  # empty: base's
    folder: str = ""
    package: str = ""
    path: str = ""
    prepare: str = ""
    build: str = ""
    gpu: str = ""  # TYPE:COUNT
    model: str = ""  # that it serves, of Hugging Face's hub
    python: str = ""  # of this machine, where it has no image
    prefixes: tuple[str, ...] = ()  # the folders that belong to that
    commands: tuple[str, ...] = ()  # that install there
    source: str = ""  # of its repository, where that isn't fetched from where its row says
    downloads: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the machine differs from the default."""
        return bool(self.base or self.python or self.source or self.downloads)

    def install(self, task: PerfTask) -> tuple[str, ...]:
        """The commands that install a tree of a task."""
        if self.python:
            return self.commands
        return () if self.package else task.install

    def images(self, task: PerfTask) -> list[Image | str | None]:
        """The images that it needs; None stands for the default one."""
        if not self.base:
            return [None]
        commits = {self.human: task.human_commit, self.base: task.base_commit}
        return [
            Image(Path(self.build), "", name, {"COMMIT": commit}) if self.build else name
            for name, commit in commits.items()
            if name
        ]

    def line_of(self, task: str) -> str:
        """A line for users; empty for the default machine."""
        if self.python:
            return f"{task} runs on {self.python}"
        where = " and ".join(dict.fromkeys(filter(None, (self.base, self.human))))
        if not where:
            return ""
        return f"{task} runs in {where}{f' on {self.gpu}' if self.gpu else ''}"


class TasksRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The suite's entry in a plan's details, by task."""

    commits: Mapping[str, tuple[str, str]] = {}  # the base, and the human's, which may be empty
    machines: Mapping[str, Machine] = {}  # of those that don't run on a backend's own
    notes: Mapping[str, Sequence[str]] = {}  # what isn't as a row states it


def read_rules(own: Path | None, image: str = "") -> Rules:
    """The user's own rules, then koderz' rules; `image`: one image for all tasks.

    Raises KoderzError for a file that has no rules.
    """
    shipped = _shipped()
    rules = _read(own) if own else Rules()
    images = (*rules.images, *shipped.images)
    if image:
        named = (msgspec.structs.replace(rule, base=image, human="", build="") for rule in images)
        images = (*named, ImageRule(image))
    return Rules(
        images, rules.environments, (*rules.models, *shipped.models), (*rules.gpus, *shipped.gpus)
    )


def idle_rules(own: Path | None, tasks: Sequence[PerfTask]) -> tuple[str, ...]:
    """A line for each of the user's rules that matches none of the tasks. Raises KoderzError as `read_rules`."""
    rules = _read(own) if own else Rules()
    kinds: Mapping[str, Sequence[RowRule]] = {
        "images": rules.images,
        "environments": rules.environments,
    }
    return tuple(
        f"--overrides {own}: [[{kind}]] number {number} applies to no task: {_why_idle(rule, tasks)}"
        for kind, several in kinds.items()
        for number, rule in enumerate(several, 1)
        if not any(
            rule is next((each for each in several if each.fits(task)), None) for task in tasks
        )
    )


def _why_idle(rule: RowRule, tasks: Sequence[PerfTask]) -> str:
    for name in WHICH:
        if not any(rule.fits_by(name, task) for task in tasks):
            known = {str(getattr(task, name)).removeprefix(GITHUB) for task in tasks} - {""}
            pattern = getattr(rule, name)
            return f"{name} = {pattern!r} fits none{f'; {meant(pattern, known)}' if known else ''}"
    if any(rule.fits(task) for task in tasks):
        return "an earlier one applies to each that it fits"
    return f"none fits by all of {', '.join(WHICH)}"


@cache
def _shipped() -> Rules:
    return _read(_SHIPPED)


def _read(path: Path) -> Rules:
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        require_keys(table, _KINDS, f"--overrides {path}")
        for kind, rows in table.items():
            for number, row in enumerate(rows if isinstance(rows, list) else (), 1):
                if isinstance(row, dict):
                    require_keys(
                        row,
                        _KINDS[kind].__struct_fields__,
                        f"--overrides {path}: [[{kind}]] number {number}",
                    )
        rules = msgspec.convert(table, Rules)
        for rule in rules.images:
            (rule.base + rule.human).format_map(
                dict.fromkeys(("base_commit", "human_commit", "id", "arch"), "")
            )
    except (OSError, ValueError, KeyError, RecursionError, msgspec.ValidationError) as error:
        what = f"there is no {{{error.args[0]}}}" if isinstance(error, KeyError) else str(error)
        raise KoderzError(f"--overrides {path}: {what}") from None
    return msgspec.structs.replace(
        rules,
        images=tuple(beside(path, rule, "build") for rule in rules.images),
        environments=tuple(
            beside(path, rule, "source", "python", "downloads") for rule in rules.environments
        ),
    )


def _prepared(rule: EnvironmentRule) -> Machine:
    """This machine, with the user's interpreter if a rule names one or says how to install."""
    if not (rule.python or rule.install):
        return Machine(source=rule.source, downloads=rule.downloads)
    found = interpreter_of(rule, "--overrides")
    return Machine(
        path=found.path,
        python=found.executable,
        prefixes=found.prefixes,
        commands=rule.install,
        source=rule.source,
        downloads=rule.downloads,
    )
