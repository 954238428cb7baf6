"""Images and packages that the lines of Dockerfiles ask for, and whether they are here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from koderz.systems.rollouts.dockerfiles import Build, RunCommand, follow
from koderz.systems.rollouts.dockerfiles.context import Copy
from koderz.systems.rollouts.environments import Making
from koderz.systems.rollouts.environments.packages import present
from koderz.systems.rollouts.task import Rollout
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.built import HOST, host_image
from koderz.systems.workspaces.images import UnpackedImage
from koderz.systems.workspaces.images.tree import Layers

Kind = Literal["image", "apt", "pip", "npm"]
_SEPARATORS = re.compile(r"&&|\|\||[;|&\n(){}]")
_WITH_VALUE = {
    "apt": ("-o", "-t", "-c", "--option", "--target-release"),
    "pip": (
        "-i",
        "--index-url",
        "--extra-index-url",
        "-f",
        "--find-links",
        "-t",
        "--target",
        "--python",
        "-p",
        "-c",
    ),
    "npm": ("--prefix", "--registry"),
}
_SKIPPED = ("sudo", "exec", "then", "do", "else", "if", "!", "time", "command")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image or package that a task asks for."""

    kind: Kind
    name: str  # with its version where one is asked for
    # `yes`, `host` for an image that this machine's programs stand in for, `packages`, or `no`
    here: str


def needs_of(task: Rollout, making: Making) -> list[Wanted]:
    """All that a task's Dockerfile asks for. Empty for a task without one. Raises KoderzError for what is none."""
    folder = task.context
    if not (task.has_tree_of_image and folder and (folder / "Dockerfile").is_file()):
        return [_image(task.image_name, making, is_base=False)] if task.image_name else []
    dockerfile = folder / "Dockerfile"
    text = dockerfile.read_bytes().decode("utf-8", "replace")
    build = follow(text, dockerfile, lambda _: None, hidden=task.hidden, is_strict=False)
    found = [
        *(
            _image(stage.image, making, is_base=True)
            for stage in build.stages
            if stage.image not in ("", "scratch")
        ),
        *(
            _image(step.image, making, is_base=False)
            for stage in build.stages
            for step in stage.steps
            if isinstance(step, Copy) and step.image
        ),
    ]
    at_hand = _AtHand(build, making)
    found += [
        Wanted(kind, name, at_hand.where(kind, name)) for kind, name in asked_for(build, folder)
    ]
    return [*dict.fromkeys(found)]


def asked_for(build: Build, folder: Path) -> Iterator[tuple[Kind, str]]:
    """The packages that lines of RUN install, by the name that they use."""
    for stage in build.stages:
        for step in stage.steps:
            if isinstance(step, RunCommand):
                for command in _SEPARATORS.split(step.command[-1].replace("\\\n", " ")):
                    yield from _installed_by(command, folder)


def _installed_by(command: str, folder: Path) -> Iterator[tuple[Kind, str]]:
    try:
        words = [word for word in shlex.split(command) if word not in _SKIPPED]
    except ValueError:
        return
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    program = words[0].rpartition("/")[2] if words else ""
    if re.fullmatch(r"python3?(\.\d+)?", program) and words[1:3] == ["-m", "pip"]:
        words, program = words[2:], "pip"
    if program == "uv" and words[1:2] == ["pip"]:
        words, program = words[1:], "pip"
    kind: Kind | None = None
    if program in ("apt", "apt-get"):
        kind = "apt"
    elif re.fullmatch(r"pip3?(\.\d+)?", program):
        kind = "pip"
    elif program == "npm":
        kind = "npm"
    plain = [*_plain(words[1:], _WITH_VALUE[kind])] if kind else []
    if kind and plain and plain[0] in ("install", "i", "ci"):
        yield from (
            (kind, name) for name in plain[1:] if name[:1] not in "./$" and "://" not in name
        )
        for file in (
            re.findall(r"(?:^|\s)(?:-r|--requirement)[ =]?(\S+)", " ".join(words))
            if kind == "pip"
            else ()
        ):
            path = folder / file.rpartition("/")[2]
            if path.is_file():
                lines = (
                    line.partition("#")[0].strip()
                    for line in path.read_text("utf-8", "replace").splitlines()
                )
                yield from ((kind, line) for line in lines if line and not line.startswith("-"))


def _plain(words: Iterable[str], with_value: tuple[str, ...]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word in (*with_value, "-r", "--requirement"):
            next(rest, None)
        elif not word.startswith("-"):
            yield word


def _image(name: str, making: Making, *, is_base: bool) -> Wanted:
    if making.find(name):
        return Wanted("image", name, "yes")
    return Wanted("image", name, "host" if is_base and making.has_host else "no")


class _AtHand:
    """The packages that are in the base of an environment, and in the folder of --packages."""

    def __init__(self, build: Build, making: Making) -> None:
        base = making.images.find(build.base) if build.base else None
        image: UnpackedImage | None = None
        if base:
            image = making.images.unpacked(base.name)
        elif making.has_host:
            image = host_image()
        self._image = image
        self._programs = present(image.layers) if image else set[str]()
        self._files = [file.name for file in making.packages.iterdir()] if making.packages else []
        self._installed = dict(_distributions(image)) if image else {}

    def where(self, kind: Kind, name: str) -> str:
        if kind == "apt":
            plain = re.split(r"[=/:]", name)[0]
            if plain in self._programs:
                return "yes"
            return "packages" if any(file.startswith(f"{plain}_") for file in self._files) else "no"
        if kind == "npm":
            plain = name[:1] + name[1:].partition("@")[0]
            layers = self._image.layers if self._image else Layers(())
            if any(
                layers.find(f"{folder}/node_modules/{plain}")
                for folder in ("usr/lib", "usr/local/lib")
            ):
                return "yes"
            start = plain.lstrip("@").replace("/", "-") + "-"
            return (
                "packages"
                if any(re.match(rf"{re.escape(start)}\d.*\.tgz", file) for file in self._files)
                else "no"
            )
        try:
            asked = Requirement(name)
        except InvalidRequirement:
            return "no"
        installed = self._installed.get(canonicalize_name(asked.name))
        if installed and asked.specifier.contains(installed, prereleases=True):
            return "yes"
        return "packages" if any(_is_for(file, asked) for file in self._files) else "no"


def _is_for(file: str, asked: Requirement) -> bool:
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return False
    return name == canonicalize_name(asked.name) and asked.specifier.contains(
        version, prereleases=True
    )


def _distributions(image: UnpackedImage) -> Iterator[tuple[str, Version]]:
    """The Python packages in an image, with their versions."""
    layers = image.layers
    folders = ["usr/lib/python3/dist-packages"]
    for top in ("usr/lib", "usr/local/lib"):
        versions = [name for name in layers.names(top) if name.startswith("python3")]
        folders += [
            f"{top}/{name}/{kind}-packages" for name in versions for kind in ("dist", "site")
        ]
    names = [name for folder in folders for name in layers.names(folder)]
    for prefix in userland.python().prefixes if image.name == HOST else ():
        names += [
            path.name for path in Path(prefix, "lib").glob("python3*/site-packages/*.dist-info")
        ]
    for name in names:
        if found := re.fullmatch(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", name):
            try:
                yield canonicalize_name(found[1]), Version(found[2])
            except InvalidVersion:
                continue
