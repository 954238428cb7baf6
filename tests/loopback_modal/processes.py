"""Containers as processes: a folder that holds what was mounted, and a fresh interpreter in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson

INTERPRETER = str(Path(sys.executable).resolve())
PATH = os.pathsep.join([str(Path(INTERPRETER).parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"])
ENTER = Path(__file__).with_name("enter.py")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/proc", "/dev", "/sys")
PROGRAMS = "/__modal/bin"
WORK = "/root"  # where Modal starts a container and keeps the app's own source
CODE = (WORK, "/pkg")  # what Modal puts on the path besides the image's packages


@dataclass(frozen=True, slots=True)
class Box:
    """What a process shall find: its root, and which of this machine's folders are bound where in it."""

    root: Path
    binds: tuple[tuple[str, str], ...]
    environment: Mapping[str, str]
    log: Path
    network: bool = True
    apart: bool = False  # whether it sees no process but its own, which may be other users
    read_only: Sequence[str] = ()  # what is bound so, since other containers see it, too


@cache
def rooted() -> bool:
    """Whether a process can be given a root of its own here (user namespaces, so Linux only)."""
    command = shutil.which("unshare")
    if command is None:
        return False
    tried = [command, "--user", "--mount", "--map-current-user", "true"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def lay_out(folder: Path, mounts: Mapping[str, Path]) -> tuple[tuple[str, str], ...]:
    """Readies a container's root; returns the binds that make it whole. `mounts`: files and volumes, by their path."""
    for name in (WORK, "/tmp", "/__modal"):
        (folder / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    (folder / PROGRAMS.lstrip("/")).mkdir()
    (folder / PROGRAMS.lstrip("/") / "python").symlink_to(INTERPRETER)  # which not every machine calls so
    mounted = tuple((str(source), path) for path, source in mounts.items())
    if rooted():
        return tuple((path, path) for path in _of_the_machine()) + mounted
    for source, path in mounted:
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    return ()


def place(box_root: Path, path: str) -> str:
    """Where a path of the container is, as its process sees it."""
    return path if rooted() else str(box_root / path.lstrip("/"))


async def start_python(box: Box, arguments: Sequence[str]) -> asyncio.subprocess.Process:
    """A fresh interpreter that sees the mounted files and the installed packages, but no working tree.

    Without `site`, since that is what makes an editable install of the working tree visible.
    """
    path = [place(box.root, folder) for folder in CODE] + installed()
    environment = {"PYTHONPATH": os.pathsep.join(path), **box.environment}
    with box.log.open("ab") as log:
        return await start(box, [INTERPRETER, "-S", "-P", *arguments], environment, stdout=log, stderr=log)


async def start(
    box: Box,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: str = WORK,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: object = asyncio.subprocess.PIPE,
    stderr: object = asyncio.subprocess.PIPE,
) -> asyncio.subprocess.Process:
    """A process in a box, leader of a group of its own."""
    if rooted():
        spec = {
            "root": str(box.root),
            "binds": box.binds,
            "folder": folder,
            "command": list(command),
            "network": box.network,
            "apart": box.apart,
            "read_only": box.read_only,
        }
        spec_file = box.root.with_name(f"{box.root.name}.{os.urandom(4).hex()}.json")
        spec_file.write_bytes(orjson.dumps(spec))
        command = [INTERPRETER, "-I", "-S", str(ENTER), str(spec_file)]
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=box.root if rooted() else _made(box.root / folder.lstrip("/")),
        env={
            "PATH": f"{PATH}:{place(box.root, PROGRAMS)}",
            "LANG": "C.UTF-8",
            "HOME": place(box.root, WORK),
            **environment,
        },
        stdin=stdin,
        stdout=stdout,  # type: ignore[arg-type]
        stderr=stderr,  # type: ignore[arg-type]
        start_new_session=True,
    )


def kill(process: asyncio.subprocess.Process, number: signal.Signals = signal.SIGKILL) -> None:
    """Ends a process and all that it started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:  # it ended by itself
        return


def installed() -> list[str]:
    """The folders of this interpreter's installed packages."""
    return [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _of_the_machine() -> tuple[str, ...]:
    own = {sys.base_prefix, *installed()}
    return tuple(path for path in (*SYSTEM, *sorted(own)) if Path(path).exists() and not _below(path))


def _below(path: str) -> bool:
    """Whether a path comes with one of the system's."""
    return path not in SYSTEM and any(Path(path).is_relative_to(one) for one in SYSTEM)
