"""Where tasks run besides this machine: images, GPUs and model overrides, by rules that users can add to."""

from __future__ import annotations

import platform
import re
import tomllib
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Image
from koderz.suites.performance.tasks import PerfTask

_SHIPPED = Path(__file__).with_suffix(".toml")
_PARALLEL = re.compile(r"(?:--tensor-parallel-size|--tp-size|--tp|-tp)[ =]+(\d+)")
_MODEL = re.compile(r"--model(?:-path)?[ =]+(\S+)")


class ImageRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Images of the rows that fit."""

    base: str
    human: str = ""  # empty: base's, with the human's answer
    format: str = "*"
    repo: str = "*"
    id: str = "*"
    folder: str = ""
    package: str = ""
    path: str = ""
    prepare: str = ""
    build: str = ""


class ModelRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model in the place of another."""

    model: str
    instead: str


class GpuRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model takes."""

    model: str
    count: int = 1
    type: str = "H100"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rules; of each kind the first that fits counts."""

    images: tuple[ImageRule, ...] = ()
    models: tuple[ModelRule, ...] = ()
    gpus: tuple[GpuRule, ...] = ()

    def model(self, name: str) -> str:
        """The model that is served where a row says `name`."""
        return next((rule.instead for rule in self.models if _fits(name, rule.model)), name)

    def gpu(self, command: str) -> str:
        """What a command that serves a model takes, as `TYPE:COUNT`."""
        model = found[1] if (found := _MODEL.search(command)) else ""
        rule = next((rule for rule in self.gpus if _fits(model, rule.model)), GpuRule(""))
        return f"{rule.type}:{found[1] if (found := _PARALLEL.search(command)) else rule.count}"

    def served(self, task: PerfTask) -> PerfTask:
        """The task with the model that is served in place of what its row says, which its notes say."""
        if task.service is None or task.format == "own":
            return task
        argv, notes = [*task.service.argv], [*task.service.notes]
        for place, flag in enumerate(argv[:-1]):
            if flag in ("--model", "--model-path") and (other := self.model(argv[place + 1])) != argv[place + 1]:
                notes.append(f"{flag} {argv[place + 1]} → {other}")
                argv[place + 1] = other
        return replace(task, service=replace(task.service, argv=tuple(argv), notes=tuple(notes)))

    def machine(self, task: PerfTask) -> Machine:
        """Where a task runs."""
        command = " ".join(task.service.argv) if task.service else ""
        values = {"base_commit": task.base_commit, "human_commit": task.human_commit, "id": task.id.lower()}
        values["arch"] = "arm64" if platform.machine() in ("arm64", "aarch64") else "x86_64"
        for rule in self.images:
            if all(_fits(getattr(task, name), getattr(rule, name)) for name in ("format", "repo", "id")):
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
            gpu=self.gpu(command) if command and task.format != "own" else "",
            model=found[1] if (found := _MODEL.search(command)) and task.format != "own" else "",
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the legs of a task run. What it says of its image is said in machines.toml."""

    base: str = ""  # image; empty: the sandbox's usual one
    human: str = ""  # empty: base's
    folder: str = ""
    package: str = ""
    path: str = ""
    prepare: str = ""
    build: str = ""
    gpu: str = ""  # TYPE:COUNT
    model: str = ""  # that it serves, of Hugging Face's hub

    def images(self, task: PerfTask) -> list[Image | str | None]:
        """Those that it needs; None for the usual one."""
        if not self.base:
            return [None]
        commits = {self.human: task.human_commit, self.base: task.base_commit}
        return [
            Image(Path(self.build), "", name, {"COMMIT": commit}) if self.build else name
            for name, commit in commits.items()
            if name
        ]

    def told(self, task: str) -> str:
        """A line for users; empty where it is as usual."""
        where = " and ".join(dict.fromkeys(filter(None, (self.base, self.human))))
        return f"{task} runs in {where}{f' on {self.gpu}' if self.gpu else ''}" if where else ""


def read_rules(own: Path | None, image: str = "") -> Rules:
    """The user's own rules before those that come with koderz; `image`: the one of all tasks.

    Raises KoderzError for a file that has no rules.
    """
    shipped = _shipped()
    rules = _read(own) if own else Rules()
    images = (*rules.images, *shipped.images)
    if image:
        named = (msgspec.structs.replace(rule, base=image, human="", build="") for rule in images)
        images = (*named, ImageRule(image))
    return Rules(images, (*rules.models, *shipped.models), (*rules.gpus, *shipped.gpus))


@cache
def _shipped() -> Rules:
    return _read(_SHIPPED)


def _read(path: Path) -> Rules:
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        rules = msgspec.convert(table, Rules)
        for rule in rules.images:
            (rule.base + rule.human).format_map(dict.fromkeys(("base_commit", "human_commit", "id", "arch"), ""))
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as error:
        what = f"there is no {{{error.args[0]}}}" if isinstance(error, KeyError) else str(error)
        raise KoderzError(f"--overrides {path}: {what}") from None
    return msgspec.structs.replace(rules, images=tuple(_beside(path, rule) for rule in rules.images))


def _beside(path: Path, rule: ImageRule) -> ImageRule:
    return msgspec.structs.replace(rule, build=str(path.parent.absolute() / rule.build)) if rule.build else rule


def _fits(text: str, pattern: str) -> bool:
    return fnmatchcase(text.lower(), pattern.lower())
