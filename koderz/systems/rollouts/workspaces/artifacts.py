"""Artifacts: files that travel from where an agent worked to a separate verifier, and that are kept with the results.

Each is packed by `tar` where the agent worked, and unpacked outside with all that could leave its folder left out.
"""

from __future__ import annotations

import io
import json
import posixpath
import shlex
import shutil
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from koderz.sandbox.archives import tarfile_with_filters as tarfile
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend, Command, Limits, Mount
from koderz.systems.rollouts.task import PUBLISHED, Artifact, Rollout
from koderz_tracker.files import write_whole

PUBLISHED_FOLDER = "artifacts"
"""The folder of a place that is seen as PUBLISHED."""

_PACKED = "/opt/koderz/artifacts"
_LARGEST = 256 << 20  # bytes of all artifacts of a task
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Collected:
    """The artifacts of a task, each a tar archive by its source, and what couldn't be collected."""

    archives: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def recorded(self) -> dict[str, Any]:
        """The artifacts as JSON."""
        texts = {source: b64encode(packed).decode() for source, packed in self.archives.items()}
        return {"archives": texts, "notes": [*self.notes]}

    @classmethod
    def of_record(cls, recorded: Mapping[str, Any]) -> Collected:
        """The artifacts of a record."""
        packed = {source: b64decode(text) for source, text in recorded["archives"].items()}
        return cls(packed, tuple(recorded["notes"]))


def travels(task: Rollout) -> bool:
    """Whether something is to be collected once the agent has ended."""
    return bool(
        task.artifacts or (task.verifier and (task.verifier.is_separate or task.verifier.collect))
    )


def published(place: Path, backend: Backend) -> list[Mount]:
    """The folder of a place that always travels, as commands see it where they can be shown one."""
    if backend.name == "uncontained":
        return []
    folder = place / PUBLISHED_FOLDER
    folder.mkdir(exist_ok=True)
    return [Mount(folder, PUBLISHED.source, writable=True)]


def artifacts_of(task: Rollout) -> Sequence[Artifact]:
    """All artifacts of a task: what it declares, and PUBLISHED, unless it declares that itself."""
    declared = {artifact.source.rstrip("/"): artifact for artifact in task.artifacts}
    return [*({PUBLISHED.source: PUBLISHED} | declared).values()]


async def collect(task: Rollout, place: Path, backend: Backend) -> Collected:
    """Runs the task's hooks where the agent worked, and packs its artifacts. What fails is noted, and no fault."""
    usual = Command(
        [],
        task.environment,
        published(place, backend),
        checkout=task.workdir,
        image=task.image,
        network=bool(task.services) and task.is_online,
        services=task.services,
    )
    notes = []
    for hook in task.verifier.collect if task.verifier else ():
        limits = Limits(seconds=hook.seconds)
        ended = await backend.run(
            replace(usual, argv=["bash", "-c", hook.command], limits=limits), place
        )
        if ended.status:
            notes.append(
                f"collect: {hook.command[:80]!r} ended with {ended.cause or f'exit code {ended.status}'}"
            )
    wanted = artifacts_of(task)
    with scratch() as packed:
        lines = "\n".join(
            _line(number, artifact, task.workdir) for number, artifact in enumerate(wanted)
        )
        mounts = [*usual.mounts, Mount(packed, _PACKED, writable=True)]
        command = replace(
            usual, argv=["sh", "-c", lines], mounts=mounts, limits=Limits(seconds=_SECONDS)
        )
        await backend.run(command, place)
        archives = dict[str, bytes]()
        for number, artifact in enumerate(wanted):
            path = packed / f"{number}.tar"
            if path.is_symlink() or not path.is_file():
                notes += [f"{artifact.source}: there is none"] if artifact is not PUBLISHED else []
            elif sum(map(len, archives.values())) + path.stat().st_size > _LARGEST:
                notes.append(
                    f"{artifact.source}: larger than all artifacts may be, {_LARGEST >> 20} MB"
                )
            else:
                archives[artifact.source] = path.read_bytes()
    return Collected(archives, tuple(notes))


def _line(number: int, artifact: Artifact, workdir: str) -> str:
    """The line of a shell that packs an artifact, if it is there."""
    source = _whole(artifact.source, workdir)
    above, name = posixpath.split(source)
    excluded = "".join(f" --exclude={shlex.quote(pattern)}" for pattern in artifact.exclude)
    found, target = shlex.quote(source), f"{_PACKED}/{number}.tar"
    if source == workdir or source == PUBLISHED.source:
        return f"[ ! -e {found} ] || tar -C {found} -cf {target}{excluded} ."
    return f"[ ! -e {found} ] || tar -C {shlex.quote(above)} -cf {target}{excluded} -- {shlex.quote(name)}"


def _whole(path: str, workdir: str) -> str:
    return posixpath.normpath(posixpath.join(workdir, path))


def files_of(collected: Collected, workdir: str) -> Sequence[str]:
    """The paths of all files in artifacts, as a verifier sees them once they are put back."""
    found = []
    for source, packed in collected.archives.items():
        target = _whole(source, workdir)
        folder = target if target in (workdir, PUBLISHED.source) else posixpath.dirname(target)
        with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            found += [
                posixpath.normpath(posixpath.join(folder, name)) for name in archive.getnames()
            ]
    return found


def put_back(
    collected: Collected, place: Path, workdir: str, *, outside: bool = False
) -> tuple[list[Mount], list[str]]:
    """Puts artifacts into a place at their own paths: what a command has to see besides, and what was left out.

    `workdir` is where the checkout of the place is seen; with `outside` those below it are left as they are there.
    """
    mounts, left_out = list[Mount](), list[str]()
    for number, (source, packed) in enumerate(collected.archives.items()):
        target = _whole(source, workdir)
        if outside and f"{target}/".startswith(f"{workdir}/"):
            continue
        is_whole = target in (workdir, PUBLISHED.source)
        folder = place / "put-back" / str(number)
        left_out += unpack(packed, folder, source, repositories=True)
        found = folder if is_whole else folder / PurePosixPath(target).name
        if not found.exists():
            continue
        if f"{target}/".startswith(f"{workdir}/"):
            lay(found, place / "checkout" / posixpath.relpath(target, workdir), place / "checkout")
        else:
            mounts.append(Mount(found, target, writable=True))
    return mounts, left_out


def lay(found: Path, target: Path, top: Path) -> None:
    """Lays a file or folder over what is there; a link in its way is replaced."""
    top.mkdir(parents=True, exist_ok=True)
    for parent in reversed(
        [each for each in target.parents if each.is_relative_to(top) and each != top]
    ):
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            parent.unlink()
        parent.mkdir(exist_ok=True)
    if target.is_symlink() or (target.exists() and (target.is_file() or found.is_file())):
        shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
    if found.is_dir():
        # Links in the tree that is laid over would lead what follows elsewhere, and objects of git are read-only.
        for path in found.rglob("*"):
            here = target / path.relative_to(found)
            if here.is_symlink() or here.is_file():
                here.unlink()
        shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(found, target)


def unpack(packed: bytes, folder: Path, source: str, *, repositories: bool = False) -> list[str]:
    """Unpacks an archive into a new folder. Returns what was left out: links that leave it, special files, a `.git`.

    `repositories`: whether to unpack a `.git`, too. Nobody should use git there, which does what its settings say.
    """
    folder.mkdir(parents=True)
    left_out = []
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive:
                if not repositories and ".git" in PurePosixPath(member.name).parts:
                    left_out.append(f"{source}: {member.name}: a repository's own file")
                    continue
                try:
                    safe = tarfile.data_filter(member, str(folder))
                    if member.isdir():
                        safe = safe.replace(mode=0o755, deep=False)
                    archive.extract(safe, folder, filter="data")
                except (tarfile.FilterError, KeyError, OSError) as error:
                    left_out.append(
                        f"{source}: {member.name}: {type(error).__name__.removesuffix('Error')}"
                    )
    except (tarfile.TarError, EOFError) as error:
        left_out.append(f"{source}: no archive ({error})")
    return left_out


def destinations_of(task: Rollout) -> dict[str, str]:
    """Where each artifact is kept, below the folder of all, by its source."""
    return {
        artifact.source: (artifact.destination or _whole(artifact.source, task.workdir)).strip("/")
        for artifact in artifacts_of(task)
    }


def keep(collected: Collected, destinations: Mapping[str, str], folder: Path) -> None:
    """Writes artifacts to where they are kept, and a manifest.json of them. Of two at one place the first is kept."""
    folder.mkdir(parents=True, exist_ok=True)  # an agent that left nothing has none
    manifest = list[dict[str, str]]()
    for source, destination in destinations.items():
        packed, target = collected.archives.get(source), folder / destination
        if packed is None:
            status = "missing"
        elif any(destination == each["destination"] for each in manifest):
            status = "skipped"
        else:
            status = "collected"
            with scratch() as own:
                unpack(packed, own / "all", source)
                below = own / "all" / PurePosixPath(source.rstrip("/")).name
                lay(below if below.exists() else own / "all", target, folder)
        manifest.append({"source": source, "destination": destination, "status": status})
    text = json.dumps({"artifacts": manifest, "notes": [*collected.notes]}, indent=2) + "\n"
    write_whole(folder / "manifest.json", [text.encode()], durable=False)
