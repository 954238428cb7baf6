"""Commands of a task on its own machine, and the files of its image that belong beside its sources."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from koderz.errors import Fault
from koderz.sandbox.workspace import Command, Ended, Image, Images, Limits, Mount, Running, Timed
from koderz.sandbox.workspace.folders import own_folder, scratch
from koderz.systems.patches.machines import Machine

DOWNLOADS = "/opt/koderz/downloads"  # what scripts would fetch
HUMAN = "human-"  # how the name of a human's tree begins

_MODELS, _TOKENS = "/opt/koderz/models", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_VOLUME = "koderz-weights"  # Modal's volume, which koderz modal serve has, too
_GPU_LIMITS = {"memory_mb": 256 << 10, "processes": 16 << 10, "disk_mb": 64 << 10}  # of what uses some
_FETCH = "import huggingface_hub, sys; huggingface_hub.snapshot_download(sys.argv[1])"
_FETCH_SECONDS = 4 * 3600.0

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOCATE = "import importlib.util as u, sys; print(u.find_spec(sys.argv[1]).submodule_search_locations[0])"


class Fitted:
    """A backend that runs commands on the image of the tree that they work in."""

    def __init__(self, backend: Timed, machine: Machine) -> None:
        self.name, self.isolation, self.has_images = backend.name, backend.isolation, backend.has_images
        self.cost, self.enforces = backend.cost, backend.enforces
        self.guards_channels = backend.guards_channels
        self._backend, self._machine = backend, machine

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`."""
        return await self._backend.run(self._fitted(command, place), place)

    def started(self, command: Command, place: Path) -> AbstractAsyncContextManager[Running]:
        """See `Timed`."""
        return self._backend.started(self._fitted(command, place), place)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def _fitted(self, command: Command, place: Path) -> Command:
        tree, machine = (place / "checkout").resolve(), self._machine
        mounts: Sequence[Mount] = command.mounts
        if machine.folder:
            mounts = [*mounts, Mount(tree, machine.folder, writable=not command.read_only)]
        if machine.downloads:
            mounts = [*mounts, Mount(Path(machine.downloads), DOWNLOADS)]
        mounts = [*mounts, *(Mount(Path(prefix), prefix) for prefix in machine.prefixes)]
        own = {"PATH": f"{machine.path}:{_PATH}"} if machine.path else {}
        if machine.model:
            mounts = [*mounts, Mount(models(), _MODELS, kept=_VOLUME)]
            own |= {"HF_HOME": _MODELS, "HF_HUB_OFFLINE": "1"}
        return replace(
            command,
            image=image_of(machine, human=tree.name.startswith(HUMAN)),
            mounts=mounts,
            environment={**own, **command.environment},
            gpus=machine.gpu,
            limits=replace(command.limits, **_GPU_LIMITS) if machine.gpu else command.limits,
        )


def image_of(machine: Machine, *, human: bool = False) -> Image | str | None:
    """The image of a machine after its preparation; None for the default."""
    name = (human and machine.human) or machine.base
    if not (name and machine.prepare):
        return name or None
    text = f"FROM {name}\nUSER root\nRUN {machine.prepare}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    context = own_folder() / f"image-{digest}"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(text)
    return Image(context, digest)


async def copied(machine: Machine, backend: Timed, target: Path, *, human: bool) -> Path:
    """Copies the built and installed files of the repository from the image into `target`. Raises Fault."""
    image = image_of(machine, human=human)
    assert image
    folder = machine.folder or await _located(machine, backend, image)
    await asyncio.to_thread(target.mkdir)
    await cast("Images", backend).copy_out(image, folder, target)
    return target


def models() -> Path:
    """The folder in which Hugging Face's hub stores downloads."""
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")


async def fetched(machine: Machine, backend: Timed) -> Path:
    """The folder of models, with the served one downloaded: legs have neither network nor token. Raises Fault."""
    folder = models()
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    wanted = Command(
        ["python3", "-I", "-c", _FETCH, machine.model],
        {"HF_HOME": _MODELS},
        [Mount(folder, _MODELS, writable=True, kept=_VOLUME)],
        image=image_of(machine),
        network=True,
        secrets=[name for name in _TOKENS if name in os.environ],
        limits=Limits(seconds=_FETCH_SECONDS, disk_mb=1 << 30),
    )
    with scratch() as place:
        ended = await backend.run(wanted, place)
    if ended.status or ended.cause:
        raise Fault(
            f"the model {machine.model} can't be fetched: {ended.cause or ended.output[-300:].strip()}",
            cause="unprepared",
        )
    return folder


async def _located(machine: Machine, backend: Timed, image: Image | str) -> str:
    wanted = Command(["python3", "-I", "-c", _LOCATE, machine.package], image=image, limits=Limits(seconds=60))
    with scratch() as place:
        ended = await backend.run(wanted, place)
    if ended.status or not ended.output.strip():
        raise Fault(
            f"the image {machine.base} has no package {machine.package}: {ended.output[-300:].strip()}",
            cause="unprepared",
        )
    return ended.output.strip().splitlines()[-1]


def put_beside(source: Path, tree: Path, base: Path) -> None:
    """Copies files that `source` has and base lacks into a tree; a file that a patch removed stays away."""

    def known(folder: str, names: list[str]) -> list[str]:
        inner = Path(folder).relative_to(source)
        return [
            name for name in names if name == ".git" or _is_there(base / inner / name) or _is_there(tree / inner / name)
        ]

    shutil.copytree(source, tree, symlinks=True, dirs_exist_ok=True, ignore=known)


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.is_file()
