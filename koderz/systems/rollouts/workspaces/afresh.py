"""Fresh trees for grading: a new root, home and /tmp that carry the agent's work and nothing else of its making.

Work outside of WORKDIR is carried, too: all changes of the root but to the verifier's tools. Of those are programs of
the system and what stands in for them, Python's own packages and pytest's, settings of shells and of programs, and
temporary files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from koderz.sandbox.workspace import HOME, Backend
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.workspaces.artifacts import Collected
from koderz.systems.workspaces import git
from koderz.systems.workspaces.guarding import guard
from koderz.systems.workspaces.images.tree import ImageChange, Layers, carry, copy_file
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.rooted import UPPER
from koderz.systems.workspaces.snapshots import Listing, changes, copy_tree

Graded = Literal["both", "fresh", "published", "judge"]
Carried = Literal["workdir", "root"]
Solution = Literal["", "passed", "in part", "failed"]
"""What a task's own solution has come to on its terms: all rewards are 1, some reward, or none. Empty: untried."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a task's work is graded, as its own solution needs them."""

    graded: Graded = "both"
    carried: Carried = "workdir"
    lifted: tuple[str, ...] = ()  # guards that its own solution can't pass under
    # the names of its own solution's rewards; empty: it isn't known to be rewarded
    rewards: tuple[str, ...] = ()
    # that its own solution passes, where pytest judges
    tests: tuple[str, ...] = field(default=(), repr=False)
    solution: Solution = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an agent that has ended."""

    diff: str
    place: Path | None = None  # where it worked; None: only the diff is left of it
    collected: Collected = field(default_factory=Collected)  # its artifacts
    removed: tuple[str, ...] = ()  # the files that were removed so that the diff could be taken
    message: str = ""  # the agent's last one


class Laid(NamedTuple):
    """A fresh tree."""

    # the agent's files, by their paths in the checkout, or absolute ones outside of it
    changed: Sequence[str]
    aside: Sequence[str]  # what was put aside, as `path: why`


async def lay(
    task: Rollout,
    work: Work,
    store: git.Store,
    place: Path,
    terms: Terms,
    root: Layers | None = None,
) -> Laid:
    """Makes a fresh tree in the empty folder `place`, and puts aside what would have a say in grading.

    It is a copy of the checkout as the agent left it, where that is there, else one with the diff applied. `root` is
    the folder of the image in which the agent worked, whose changes are carried where the terms say so.
    Raises GitError if the diff doesn't apply, or what the agent left can't be read.
    """
    checkout, changed = place / "checkout", list[str]()
    if work.place:
        try:
            changed += await asyncio.to_thread(
                _copied, await store.listing(), work.place / "checkout", checkout
            )
        except PermissionError as error:  # of another user, whom a container had
            raise git.GitError(f"{error.filename}: {error.strerror}") from error
        if terms.carried == "root":
            changed += await asyncio.to_thread(carry_outside, work.place, place, root, task.workdir)
    else:
        diff = work.diff.encode("utf-8", "backslashreplace")
        await store.checkout(checkout)
        await git.apply(diff, checkout)
        changed += await git.touched(diff)
    baseline = await store.baseline()
    with contextlib.closing(await asyncio.to_thread(Listing.of, checkout)):
        aside = guard(checkout, baseline, task.scripts, lifted=terms.lifted, seen=task.workdir)
    return Laid(changed, aside)


def _copied(before: Listing, worked: Path, checkout: Path) -> Sequence[str]:
    """Copies a checkout as it was left. Returns the files that aren't as they were."""
    with contextlib.closing(Listing.of(worked)) as now:
        copy_tree(now, checkout)
        return changes(before, now).present


# where nothing is changed or removed
_OF_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "boot")
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
    *(
        "gitconfig",
        "pip.conf",
        "zsh",
        "skel",
        "sudoers",
        "sudoers.d",
        "passwd",
        "group",
        "hosts",
        "resolv.conf",
    ),
}
_PYTHONS = {
    "pytest",
    "_pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "site",
    "sitecustomize",
    "usercustomize",
}
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
    programs = {*_TOOLS}.union(
        *map(root.names, ("bin", "usr/bin", "usr/local/bin", "sbin", "usr/sbin"))
    )
    fresh = place / UPPER
    fresh.mkdir(exist_ok=True)
    fresh.chmod(root.folders[-1].stat().st_mode & 0o7777)

    def is_wanted(change: ImageChange) -> bool:
        return not change.is_folder and is_work(
            change.path, programs, workdir, is_new=change.kind == "added"
        )

    return [
        change.path
        for change in carry(root, worked / UPPER, fresh, is_wanted)
        if change.kind != "removed"
    ]


def is_work(path: str, programs: set[str], workdir: str, *, is_new: bool) -> bool:
    """Whether a changed path may be an agent's work, rather than something that the verifier uses."""
    parts = PurePosixPath(path).parts[1:]
    inner = "/".join(parts)
    if f"{path}/".startswith(f"{workdir}/") or any(
        f"{inner}/".startswith(f"{each}/") for each in _NEVER
    ):
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
    folder = parts[-2] if len(parts) > 1 else ""
    is_for_python = folder.startswith("python3") or folder in ("site-packages", "dist-packages")
    return not (is_for_python and parts[-1].partition(".")[0] in sys.stdlib_module_names)


def _carry_home(worked: Path, home: Path) -> Iterator[str]:
    """Carries what an agent left in its home, where no image has it."""
    for folder, folders, files in os.walk(worked):
        here = Path(folder).relative_to(worked)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*files, *(each for each in folders if Path(folder, each).is_symlink())):
            source, seen = Path(folder, name), f"{HOME}/{here / name}"
            if (
                source.is_symlink()
                or not source.is_file()
                or not is_work(seen, _TOOLS, "/nowhere", is_new=True)
            ):
                continue
            target = home / here / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(source, target)
            yield seen
