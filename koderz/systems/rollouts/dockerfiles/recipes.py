"""The lines of a Dockerfile that the host's userland can stand in for, where no image is at hand.

Of a verifier's Dockerfile COPY may lead to /tests, and RUN may install packages: koderz' own test tools stand in for
these.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Services
from koderz.systems.rollouts.dockerfiles import (
    PATH,
    ROOT,
    SHELL,
    Build,
    BuildStep,
    RunCommand,
    follow,
)
from koderz.systems.rollouts.dockerfiles.context import Copy, Folder
from koderz.systems.rollouts.dockerfiles.syntax import parse
from koderz.systems.rollouts.task import RequestedResources, Step
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.images import StoredImage

_USUAL = "/app"
_ASSUMED = StoredImage("", "", Path(), _USUAL, {"PATH": PATH})
_TESTS = "/tests"
_TOOLS = ("uv", "uvx")
_SEPARATORS = re.compile(r"&&|;|\|\|")
_PIP = re.compile(r"(?:(?:python3?(?:\.\d+)? -m )?pip3?|uv pip) install\b(.*)")
_APT = re.compile(r"apt(?:-get)? (?:-\S+ )*(?:update|upgrade|clean|autoremove)\b.*")
_APT_INSTALL = re.compile(r"apt(?:-get)? (?:-\S+ )*install\b(.*)")
_HARMLESS = re.compile(
    r"rm -rf /var/lib/apt/lists\S*|curl \S.*astral\.sh/uv\S*(?: \| (?:ba)?sh)?|chmod \S+ /tests\S*|true"
)
_WITH_VALUE = (
    "--index-url",
    "-i",
    "--python",
    "-p",
    "--target",
    "-t",
    "--extra-index-url",
    "--find-links",
    "-f",
)


@dataclass(slots=True)
class Recipe:
    """The way to the machine of a Dockerfile: its image, or its effects on the host's userland."""

    workdir: str
    # whether that is only assumed, since no line says where its image works
    is_assumed: bool = False
    refused: str = ""  # why it needs its image
    base: str = ""  # the image that it begins with
    stated: dict[str, str] = field(default_factory=dict)  # by lines of ENV
    environment: dict[str, str] = field(default_factory=dict)  # besides, as a compose file has it
    steps: tuple[Step, ...] = ()
    installs: tuple[str, ...] = ()  # Python packages of a verifier's, as pip takes them
    programs: tuple[str, ...] = ()  # Debian packages of a verifier's
    image: str = ""  # a published one that takes its place
    asked: RequestedResources = field(default_factory=RequestedResources)  # by a compose file
    # folders of the context, each with its place below `workdir`
    mounted: tuple[tuple[str, str], ...] = ()
    services: Services | None = None  # beside it, as a compose file has them


def read_dockerfile(path: Path, *, tests: bool = False, workdir: str = "") -> Recipe:
    """Reads a Dockerfile, a verifier's with `tests`. `workdir`: where its image works, if a compose file says so.

    `refused` names the line, and docker, if it needs more than the host's userland.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise KoderzError(f"{path} is missing or can't be read") from None
    recipe = Recipe(workdir or _USUAL, is_assumed=not workdir)
    try:
        build = follow(text, path, lambda _: None, is_strict=False)
        if not build.target.has_workdir:
            build = follow(text, path, lambda _: _ASSUMED, is_strict=False)
    except KoderzError as error:
        recipe.refused = f"{error}; use --sandbox docker"
        return recipe
    stage = build.target
    recipe.stated, recipe.base = dict(stage.stated), build.base
    if PATH in recipe.stated.get("PATH", ""):  # the host's programs are those of no image
        recipe.stated["PATH"] = recipe.stated["PATH"].replace(PATH, userland.environment()["PATH"])
    if not workdir:
        recipe.workdir, recipe.is_assumed = stage.workdir, not stage.has_workdir
    try:
        _require_host(
            build,
            recipe.workdir,
            {each.name: f"{path}, line {each.line}" for each in parse(text, str(path))},
        )
        for step in stage.steps:
            if not (tests and _taken_by_tests(recipe, step)):
                recipe.steps += _steps(step, recipe.workdir)
    except ValueError as error:
        recipe.refused = (
            str(error) if "--sandbox docker" in str(error) else f"{error}; use --sandbox docker"
        )
    return recipe


def _require_host(build: Build, workdir: str, lines: Mapping[str, str]) -> None:
    """Raises ValueError, which names the line, for what the host's userland can't stand in for."""
    if build.fault:
        raise ValueError(str(build.fault))
    if len(build.stages) > 1:
        raise ValueError(f"{lines['FROM']}: several stages need the image")
    if build.target.user.partition(":")[0] not in ROOT:
        raise ValueError(f"{lines['USER']}: USER {build.target.user} needs the image")
    if workdir == "/" or workdir.startswith(("/usr", "/etc", "/proc", "/dev")):
        raise ValueError(f"{lines['WORKDIR']}: WORKDIR {workdir} can't be the checkout")


def _steps(step: BuildStep, workdir: str) -> tuple[Step, ...]:
    """A step over the host's userland. Raises ValueError for one that needs the image."""
    if isinstance(step, Folder):
        return ()
    if isinstance(step, Copy):
        inner = posixpath.relpath(step.target, workdir)
        if not step.context or step.inline or step.mode:
            raise ValueError(f"{step.where}: {step.text[:80]} needs the image")
        if inner.startswith(".."):
            raise ValueError(
                f"{step.where}: COPY to {step.target.rstrip('/')}, outside of WORKDIR, needs the image"
            )
        return (Step("COPY", inner + ("/" if step.target.endswith("/") else ""), step.sources),)
    inner = posixpath.relpath(step.workdir, workdir)
    if step.user or (inner.startswith("..") and step.workdir != "/"):
        raise ValueError(
            f"{step.where}: RUN in {step.workdir}, outside of WORKDIR, needs the image"
        )
    line = step.command[-1] if step.command[:-1] == SHELL else shlex.join(step.command)
    if inner != "." and not inner.startswith(".."):
        line = f"mkdir -p {shlex.quote(inner)} && cd {shlex.quote(inner)} && {{ {line}\n}}"
    return (Step("RUN", line),)


def _taken_by_tests(recipe: Recipe, step: BuildStep) -> bool:
    """Takes in what only a verifier's Dockerfile may do: copy tests, and install what its tests are run by."""
    if isinstance(step, Copy):
        if not step.context:
            return all(
                posixpath.basename(each.rstrip("/")) in (*_TOOLS, "bin") for each in step.sources
            )
        if step.inline or step.mode or not f"{step.target}/".startswith(f"{_TESTS}/"):
            return False
        recipe.steps += (Step("COPY", step.target, tuple(each or "." for each in step.sources)),)
        return True
    if isinstance(step, Folder) or step.command[:-1] != SHELL:
        return False
    commands = [
        command.strip() for command in _SEPARATORS.split(step.command[-1]) if command.strip()
    ]
    packages, programs = list[str](), list[str]()
    for command in commands:
        if found := _PIP.fullmatch(command):
            packages += _packages(found[1], step)
        elif found := _APT_INSTALL.fullmatch(command):
            programs += _packages(found[1], step)
        elif not (_APT.fullmatch(command) or _HARMLESS.fullmatch(command)):
            return False
    recipe.installs += tuple(packages)
    recipe.programs += tuple(programs)
    return True


def _packages(rest: str, step: RunCommand) -> Iterator[str]:
    """The packages that a command installs. Raises ValueError for a file of such."""
    words = iter(shlex.split(rest))
    for word in words:
        if word in ("-r", "--requirement", "-c", "--constraint", "-e", "--editable"):
            raise ValueError(f"{step.where}: {word} needs the image")
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            yield word
