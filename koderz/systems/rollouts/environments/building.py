"""Follows the lines of a Dockerfile in the local sandbox, and seals what they made as layers over their base."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
import socket
import stat
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

from koderz.errors import KoderzError
from koderz.sandbox.once import Once
from koderz.sandbox.scratch import remove
from koderz.sandbox.workspace import Command, Limits
from koderz.systems.rollouts.dockerfiles import BuildStage, RunCommand
from koderz.systems.rollouts.dockerfiles.context import Copy, copy_into
from koderz.systems.rollouts.environments import SCRATCH
from koderz.systems.rollouts.environments.packages import Packages, explained
from koderz.systems.rollouts.task import Environment
from koderz.systems.workspaces.built import HOST, NAMES, building, find_built, host_image, seal
from koderz.systems.workspaces.folders import make_tree
from koderz.systems.workspaces.images import UnpackedImage
from koderz.systems.workspaces.images.tree import (
    Layers,
    copy_file,
    copy_folder,
    is_white_out,
    make_opaque,
    mode_of,
    resolved,
)
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.proxy import PublicHosts, proxying
from koderz.systems.workspaces.rooted import UPPER

_RUN_SECONDS = 1800.0
_RUN_MEMORY = 4096


_BUILT: WeakKeyDictionary[Local, Once[None]] = WeakKeyDictionary()
"""The environments that are being built on a backend, each once."""


async def build(environment: Environment, backend: Local) -> None:
    """Makes an environment that isn't kept yet. Raises KoderzError, which names the line, where that fails.

    Another process that makes the same is waited for.
    """
    once = _BUILT.setdefault(backend, Once())
    await once(environment.name.encode(), lambda: _build(environment, backend))


async def _build(environment: Environment, backend: Local) -> None:
    lock = building(environment.name.removeprefix(NAMES))
    draft = await asyncio.to_thread(lock.__enter__)
    try:
        if draft is not None:
            await _Building(environment, backend, draft).run()
    finally:
        lock.__exit__(None, None, None)
    if (found := find_built(environment.name)) is None:
        raise KoderzError(f"{environment.name} was removed while it was built; try again")
    backend.images.lent[environment.name] = found


class _Building:
    """One environment at work. A stage has a place, in which its commands run one after the other."""

    def __init__(self, environment: Environment, backend: Local, draft: Path) -> None:
        self.environment, self.backend, self.draft = environment, backend, draft
        self.packages = Packages(environment.packages, draft / "packages")
        self.stages: dict[int, UnpackedImage] = {}

    async def run(self) -> None:
        for stage in self.environment.build.stages:
            await self.stage(stage)
        target = self.stages[self.environment.build.target.number]
        layers = [layer for layer in target.over if layer.is_relative_to(self.draft)]
        digest = self.environment.name.removeprefix(NAMES)
        file = (
            self.environment.build.target.steps
            and self.environment.build.target.steps[0].where.rpartition(",")[0]
        )
        image = replace(target, source=Path(file or "Dockerfile"), digest=digest)
        await asyncio.to_thread(seal, digest, self.draft, layers, image)

    async def stage(self, stage: BuildStage) -> None:
        base = (
            self.stages[stage.parent] if stage.parent is not None else await self.image(stage.image)
        )
        place = self.draft / f"stage-{stage.number}"
        place.mkdir(mode=0o700)
        make_tree(place)
        (place / UPPER).mkdir()
        (place / UPPER).chmod(stat.S_IMODE(base.root.stat().st_mode))
        name = f"{NAMES}{self.draft.name}-{stage.number}"
        at = replace(base, name=name, digest=name)
        self.backend.images.lent[name] = at
        try:
            for step in stage.steps:
                if isinstance(step, RunCommand):
                    await self.command(step, at, place)
                elif isinstance(step, Copy):
                    await self.copy(step, at, place)
                else:
                    await asyncio.to_thread(
                        Laying(at, place / UPPER).folder, resolved_in(at, place, step.path)
                    )
        finally:
            del self.backend.images.lent[name]
        own = {**stage.environment}
        self.stages[stage.number] = replace(
            base,
            over=(place / UPPER, *base.over),
            environment=own,
            workdir=stage.workdir,
            user=stage.user,
        )

    async def image(self, name: str) -> UnpackedImage:
        known = self.environment.bases[name]
        if known == SCRATCH:
            root = self.draft / SCRATCH
            root.mkdir(exist_ok=True)
            return UnpackedImage(SCRATCH, SCRATCH, root, root=root)
        if known == HOST:
            return await asyncio.to_thread(host_image)
        return await asyncio.to_thread(self.backend.images.unpacked, known)

    async def command(self, step: RunCommand, at: UnpackedImage, place: Path) -> None:
        """Follows a RUN. All its processes have ended then."""
        layers = Layers((place / UPPER, *at.layers.folders), at.hosted)
        online = self.environment.is_online and not step.is_offline
        shown = await asyncio.to_thread(self.packages.shown, layers, online=online)
        wanted = Command(
            step.command,
            {**step.environment, **shown.environment},
            shown.mounts,
            checkout=step.workdir,
            image=at.name,
            user=step.user,
            in_image=True,
            limits=Limits(
                seconds=_RUN_SECONDS, memory_mb=_RUN_MEMORY, disk_mb=self.environment.layer_mb
            ),
        )
        async with contextlib.AsyncExitStack() as stack:
            if online:

                async def serve(listening: socket.socket) -> None:
                    await stack.enter_async_context(proxying(listening, PublicHosts()))

                wanted = replace(wanted, bridge=serve)
            ended = await self.backend.run(wanted, place)
        if ended.cause:
            limit = {
                "timeout": f"{_RUN_SECONDS:.0f} seconds",
                "disk": f"{self.environment.layer_mb} MB of --layer-mb",
            }
            raise KoderzError(
                f"{step.where}: {_shown(step.text)} exceeds {limit.get(ended.cause, ended.cause)}"
            )
        if ended.status:
            raise KoderzError(f"{step.where}: {_shown(step.text)} fails: {explained(ended)}")

    async def copy(self, step: Copy, at: UnpackedImage, place: Path) -> None:
        """Lays files into an empty root, and what is in that into the stage's."""
        fresh, source = place / "laid", None
        remove(fresh)
        fresh.mkdir()
        if step.context is None and not step.inline:
            source = place / "source"
            remove(source)
            source.mkdir()
            if step.image and self.environment.bases[step.image] == HOST:
                await asyncio.to_thread(self.packages.lay_uv, step.sources, source)
            else:
                origin = (
                    self.stages[step.stage]
                    if step.stage is not None
                    else await self.image(step.image)
                )
                await asyncio.to_thread(_lay_sources, origin, step.sources, source)
        target = resolved_in(at, place, step.target)
        laying = Laying(at, place / UPPER)
        is_folder = step.target.endswith("/") or laying.layers.is_folder(target.lstrip("/"))
        moved = replace(step, target=f"{target.rstrip('/')}/" if is_folder else target)
        await asyncio.to_thread(copy_into, fresh, moved, source)
        try:
            await asyncio.to_thread(laying.take, fresh)
        except OSError as error:
            raise KoderzError(
                f"{step.where}: {_shown(step.text)}: {error.strerror or error}"
            ) from None
        remove(fresh)


def resolved_in(at: UnpackedImage, place: Path, path: str) -> str:
    """Where a path of a stage leads."""
    return resolved(Layers((place / UPPER, *at.layers.folders), at.hosted), path)


class Laying:
    """Files laid into the folder that takes what is changed, so that nothing is written anywhere else."""

    def __init__(self, at: UnpackedImage, upper: Path) -> None:
        self.upper, self.layers = upper, Layers((upper, *at.layers.folders), at.hosted)

    def take(self, fresh: Path) -> None:
        """Moves all files of a root to where their paths lead. Raises OSError for a file in the place of a folder."""
        times: list[tuple[Path, os.stat_result]] = []
        for folder, folders, files in os.walk(fresh):
            inner = Path(folder).relative_to(fresh).as_posix()
            to = resolved(self.layers, "/" if inner == "." else inner)
            about = os.stat(folder)  # noqa: PTH116
            is_new = not self.layers.is_folder(to.lstrip("/"))
            self.folder(to)
            if is_new:
                times.append((self.upper / to.lstrip("/"), about))
            links = [name for name in folders if Path(folder, name).is_symlink()]
            for name in (*files, *links):
                target = posixpath.join(to, name).lstrip("/")
                if self.layers.is_folder(target):
                    raise IsADirectoryError(
                        21, f"/{target} is a folder, which a file can't replace"
                    )
                here = self.upper / target
                here.unlink(missing_ok=True)
                Path(folder, name).rename(here)
        for path, about in reversed(times):
            path.chmod(stat.S_IMODE(about.st_mode))
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    def folder(self, path: str) -> None:
        """Makes a folder whose path has no links, and those above it: new ones with mode 755."""
        inner = ""
        for name in path.split("/"):
            if not name:
                continue
            inner = posixpath.join(inner, name)
            here, shown = self.upper / inner, self.layers.find(inner)
            if shown and not stat.S_ISDIR(mode_of(shown)):
                raise NotADirectoryError(20, f"/{inner} isn't a folder")
            if mode_of(here) and not is_white_out(here):
                continue
            was_removed = is_white_out(here)
            here.unlink(missing_ok=True)
            here.mkdir()
            here.chmod(stat.S_IMODE(mode_of(shown)) if shown else 0o755)
            if was_removed:
                make_opaque(here)


def _lay_sources(origin: UnpackedImage, sources: tuple[str, ...], target: Path) -> None:
    """Copies what sources may name from an image into a root of its own; links in their paths are followed there."""
    for source in sources:
        plain = re.split(r"[*?\[]", source)[0]
        path = source if plain == source else posixpath.dirname(plain)
        inner = resolved(origin.layers, path).lstrip("/")
        found, here = origin.layers.find(inner), target / posixpath.normpath(path).lstrip("/")
        if found is None:
            continue
        here.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(mode_of(found)):
            here.mkdir(parents=True, exist_ok=True)
            here.chmod(stat.S_IMODE(mode_of(found)) | stat.S_IRWXU)
            copy_folder(origin.layers, inner, here)
        elif not os.path.lexists(here):
            copy_file(found, here)


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:99]}…"
