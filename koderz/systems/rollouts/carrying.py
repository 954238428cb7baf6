"""Work outside of WORKDIR that is carried into a fresh tree: all changes of the root but to the verifier's tools.

Of those are programs of the system and what stands in for them, Python's own packages and pytest's, settings of shells
and of programs, and temporary files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from koderz.sandbox.workspace import HOME, Backend
from koderz.systems.rollouts.task import Rollout
from koderz.systems.workspaces.images.changes import ImageChange, carry
from koderz.systems.workspaces.images.tree import Layers, copy_file
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.rooted import UPPER

_OF_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "boot")  # where nothing is changed or removed
_NEVER = ("tmp", "var/tmp", "dev", "proc", "sys", "run", "tests", "logs", "solution", "opt/koderz")
_SETTINGS = {
    *(
        "ld.so.preload",
        "ld.so.conf",
        "ld.so.conf.d",
        "ld.so.cache",
        "profile",
        "profile.d",
        "bash.bashrc",
        "environment",
    ),
    *("gitconfig", "pip.conf", "zsh", "skel", "sudoers", "sudoers.d", "passwd", "group", "hosts", "resolv.conf"),
}
_PYTHONS = {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "site", "sitecustomize", "usercustomize"}
_BINS = {"bin", "sbin"}
_TOOLS = {
    *(
        "bash",
        "sh",
        "dash",
        "env",
        "python",
        "python3",
        "pytest",
        "py.test",
        "uv",
        "uvx",
        "curl",
        "wget",
        "apt-get",
        "apt",
    ),
    *(
        "git",
        "cat",
        "diff",
        "grep",
        "cmp",
        "jq",
        "awk",
        "sed",
        "test",
        "timeout",
        "tee",
        "node",
        "npm",
        "make",
        "sha256sum",
    ),
}


def root_of(task: Rollout, backend: Backend) -> Layers | None:
    """The files of the image in whose root the task's commands run here; None where they run in none."""
    if isinstance(backend, Local) and isinstance(task.image, str):
        return backend.images.unpacked(task.image).layers
    return None


def carry_outside(worked: Path, place: Path, root: Layers | None, workdir: str) -> Sequence[str]:
    """Carries the changes outside of the checkout from one place into another. Returns the paths of what it carried."""
    if root is None:
        return [*_carry_home(worked / "home", place / "home")]
    programs = {*_TOOLS, *_programs(root)}
    fresh = place / UPPER
    fresh.mkdir(exist_ok=True)
    fresh.chmod(root.folders[-1].stat().st_mode & 0o7777)

    def is_wanted(change: ImageChange) -> bool:
        return not change.is_folder and is_work(change.path, programs, workdir, is_new=change.kind == "added")

    return [change.path for change in carry(root, worked / UPPER, fresh, is_wanted) if change.kind != "removed"]


def is_work(path: str, programs: set[str], workdir: str, *, is_new: bool) -> bool:
    """Whether a changed path may be an agent's work, rather than something that the verifier uses."""
    parts = PurePosixPath(path).parts[1:]
    inner = "/".join(parts)
    if f"{path}/".startswith(f"{workdir}/") or any(f"{inner}/".startswith(f"{each}/") for each in _NEVER):
        return False
    if parts[0] in _OF_SYSTEM and not is_new:
        return False
    if parts[0] == "etc" and (len(parts) < 2 or parts[1] in _SETTINGS):
        return False
    if any(part.startswith(".") for part in parts) or path.endswith((".pth", ".egg-link", ".pyc")):
        return False
    if len(parts) > 1 and parts[-2] in _BINS and parts[-1] in programs:
        return False
    names = {part.partition(".")[0] for part in parts}
    if names & _PYTHONS:
        return False
    return not (_is_for_python(parts) and parts[-1].partition(".")[0] in sys.stdlib_module_names)


def _is_for_python(parts: Sequence[str]) -> bool:
    return len(parts) > 1 and (parts[-2].startswith("python3") or parts[-2] in ("site-packages", "dist-packages"))


def _programs(root: Layers) -> Iterator[str]:
    for folder in ("bin", "usr/bin", "usr/local/bin", "sbin", "usr/sbin"):
        yield from root.names(folder)


def _carry_home(worked: Path, home: Path) -> Iterator[str]:
    """Carries what an agent left in its home, where no image has it."""
    for folder, folders, files in os.walk(worked):
        here = Path(folder).relative_to(worked)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*files, *(each for each in folders if Path(folder, each).is_symlink())):
            source, seen = Path(folder, name), f"{HOME}/{here / name}"
            if source.is_symlink() or not source.is_file() or not is_work(seen, _TOOLS, "/nowhere", is_new=True):
                continue
            target = home / here / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(source, target)
            yield seen
