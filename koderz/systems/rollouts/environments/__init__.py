"""The environment of a task that is made of its Dockerfile without Docker: its plan, whose digest names it."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Image
from koderz.systems.rollouts.dockerfiles import Build, RunCommand, follow
from koderz.systems.rollouts.dockerfiles.context import Copy
from koderz.systems.rollouts.task import Environment, Rollout, in_parts
from koderz.systems.workspaces.built import HOST, NAMES, host_image
from koderz.systems.workspaces.images import ImageStore, StoredImage
from koderz.systems.workspaces.images.archives import parse_reference

SCRATCH = "scratch"
"""The name of the empty image."""

_FORM = "1"  # of environments: another one where the same lines make something else
_INSTALLS = re.compile(r"\b(?:apt|apt-get|pip3?|uv|uvx|npm|npx)\b")
_UV = ("uv", "uvx")


@dataclass(frozen=True, slots=True)
class Making:
    """The terms on which environments are made of Dockerfiles."""

    images: ImageStore
    packages: Path | None = None  # a folder of wheels, debs and npm's archives
    # whether this machine's programs stand in for base images that aren't here
    has_host: bool = True
    is_online: bool = False  # whether lines may reach the network while they are followed
    layer_mb: int = 8192

    def __post_init__(self) -> None:
        if self.packages and not self.packages.is_dir():
            raise KoderzError(
                f"--packages {self.packages} is no folder; name one of wheels, debs and npm's archives"
            )

    def find(self, name: str) -> StoredImage | None:
        """The image of this name in --images; None where there is none, or nothing can have this name."""
        try:
            return self.images.find(name)
        except KoderzError:
            return None


def environment_of(folder: Path, hidden: Sequence[str], making: Making) -> Environment:
    """How the Dockerfile in a folder is followed here. Raises KoderzError for one that can't be."""
    dockerfile = folder / "Dockerfile"
    text = _text(dockerfile)
    build = follow(text, dockerfile, lambda name: base_of(name, making), hidden=hidden)
    bases = {}
    for stage in build.stages:
        if stage.image:
            bases[stage.image] = _require_base(
                f"{dockerfile}: FROM {stage.image}", stage.image, making
            )
        for step in stage.steps:
            if isinstance(step, Copy) and step.image:
                bases[step.image] = _copied_image(step, making)
    if build.base == SCRATCH:
        raise KoderzError(
            f"{dockerfile}: FROM scratch: an empty image has no shell; use --sandbox docker"
        )
    digest = hashlib.sha256(_FORM.encode())
    for part in _parts(build, folder, making, bases):
        digest.update(part + b"\0")
    name = f"{NAMES}{digest.hexdigest()[:32]}"
    absent = dict.fromkeys(stage.image for stage in build.stages if bases.get(stage.image) == HOST)
    notes = [
        f"{image} isn't in --images: this machine's programs stand in for it" for image in absent
    ]
    return Environment(
        name,
        build,
        bases,
        (*notes, *build.notes),
        making.packages,
        making.is_online,
        making.layer_mb,
    )


def base_of(name: str, making: Making) -> StoredImage | None:
    """The image that a stage begins with, or this machine's programs in its place; None where there is neither."""
    return making.find(name) or (host_image() if making.has_host else None)


def _require_base(where: str, name: str, making: Making) -> str:
    if name == SCRATCH:
        return SCRATCH
    parse_reference(name)
    if found := making.images.find(name):
        return found.name
    if making.has_host:
        return HOST
    raise KoderzError(
        f"{where}: there is no such image in --images; put it there, or leave out --no-host-base"
    )


def _copied_image(step: Copy, making: Making) -> str:
    """The image that files are copied from; HOST where it is for uv, whose programs may be here."""
    if found := making.images.find(step.image):
        return found.name
    if all(os.path.basename(source) in _UV for source in step.sources):  # noqa: PTH119
        return HOST
    raise KoderzError(
        f"{step.where}: there is no image {step.image[:100]} in --images; put it there"
    )


def _text(dockerfile: Path) -> str:
    try:
        return dockerfile.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise KoderzError(f"{dockerfile} is missing or can't be read") from None


def _parts(build: Build, folder: Path, making: Making, bases: Mapping[str, str]) -> Iterator[bytes]:
    """All that an environment depends on: bases, lines after replacement, the files copied, and packages."""
    for name in sorted({*bases.values()} - {SCRATCH}):
        found = host_image() if name == HOST else making.images.require(name)
        yield f"{name} {found.digest}".encode()
    installs, copies = False, False
    for stage in build.stages:
        ends = sorted(stage.environment.items()), stage.workdir, stage.user
        yield repr((bases.get(stage.image), stage.parent, *ends)).encode()
        for step in stage.steps:
            if isinstance(step, Copy):
                copies = copies or bool(step.context)
                yield repr(replace(step, where="", context=None)).encode()
            elif isinstance(step, RunCommand):
                yield repr(
                    (step.command, sorted(step.environment.items()), step.workdir, step.user)
                ).encode()
                installs = installs or bool(_INSTALLS.search(step.text))
            else:
                yield step.path.encode()
    if copies:
        for path in sorted(folder.rglob("*")):
            mode = path.lstat().st_mode
            yield f"{path.relative_to(folder).as_posix()} {mode:o}".encode(
                "utf-8", "surrogateescape"
            )
            if path.is_symlink():
                yield os.fsencode(path.readlink())
            elif path.is_file():
                yield hashlib.sha256(path.read_bytes()).digest()
    if installs and making.packages:
        for file in sorted(making.packages.iterdir()):
            about = file.stat()
            yield f"{file.name} {about.st_size} {about.st_mtime_ns}".encode()
    yield repr(making.is_online).encode()


def environed(task: Rollout, making: Making) -> Rollout:
    """The task in the environment that its Dockerfile makes; `refused` says why that can't be made."""
    folder = task.context
    if (
        task.has_tree_of_image
        and not task.image_name
        and folder
        and (folder / "Dockerfile").is_file()
    ):
        task = _made(task, folder, making)
    verifier = task.verifier
    if verifier and verifier.is_separate and verifier.refused and isinstance(verifier.image, Image):
        try:
            made = environment_of(verifier.image.context, (), making)
        except (KoderzError, OSError) as error:
            return replace(task, verifier=replace(verifier, refused=str(error)))
        workdir = verifier.workdir or made.build.target.workdir
        own = replace(verifier, image=made.name, made=made, refused="", workdir=workdir)
        task = replace(task, verifier=own)
    return task


def _made(task: Rollout, folder: Path, making: Making) -> Rollout:
    try:
        made = environment_of(folder, task.hidden, making)
    except (KoderzError, OSError) as error:
        return replace(task, refused=str(error))
    workdir = task.workdir
    if task.workdir_of_image or workdir == _assumed_workdir(folder):
        workdir = made.build.target.workdir
    if workdir == "/":
        why = f"{folder}: neither the Dockerfile nor its image has a WORKDIR; write environment.workdir in task.toml"
        return replace(task, refused=why)
    return in_parts(
        task,
        lambda part: replace(
            part, image_name=made.name, made=made, refused="", workdir=workdir, steps=()
        ),
    )


def _assumed_workdir(folder: Path) -> str:
    """The working folder that lines end with on an image of which nothing is known, as readers of tasks have it."""
    dockerfile = folder / "Dockerfile"
    return follow(_text(dockerfile), dockerfile, lambda _: None, is_strict=False).target.workdir


def notes_on(tasks: Iterable[Rollout]) -> list[str]:
    """Differences of the environments of tasks from those with Docker: a line for each, with the number of tasks."""
    of_tasks = (
        {re.sub(r"^line \d+: ", "", note): None for note in task.made.notes}
        for task in tasks
        if task.made
    )
    counted = Counter(note for notes in of_tasks for note in notes)
    return [
        f"{note}{f' (in {count} tasks)' if count > 1 else ''}" for note, count in counted.items()
    ]
