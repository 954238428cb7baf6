"""Fresh trees for grading: a new root, home and /tmp that carry the agent's work and nothing else of its making."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from koderz.sandbox.images.tree import copy_file
from koderz.sandbox.workspace import git
from koderz.sandbox.workspace.guarding import guard
from koderz.systems.rollouts.artifacts import Collected
from koderz.systems.rollouts.carrying import carry_outside
from koderz.systems.rollouts.tasks import Rollout

Graded = Literal["both", "fresh", "published"]
Carried = Literal["workdir", "root"]


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a task's work is graded, as its own solution needs them."""

    graded: Graded = "both"
    carried: Carried = "workdir"
    lifted: tuple[str, ...] = ()  # guards that its own solution can't pass under
    rewards: tuple[str, ...] = ()  # the names of its own solution's rewards; empty: it isn't known to be rewarded
    tests: tuple[str, ...] = field(default=(), repr=False)  # that its own solution passes, where pytest judges
    solution_fails: bool = field(default=False, repr=False)  # whether its own solution passes on no terms


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an agent that has ended."""

    diff: str
    place: Path | None = None  # where it worked; None: only the diff is left of it
    collected: Collected = field(default_factory=Collected)  # its artifacts


class Laid(NamedTuple):
    """A fresh tree."""

    changed: Sequence[str]  # the agent's files, by their paths in the checkout, or absolute ones outside of it
    aside: Sequence[str]  # what was put aside, as `path: why`


async def lay(task: Rollout, work: Work, store: git.Store, place: Path, terms: Terms, root: Path | None = None) -> Laid:
    """Makes a fresh tree in the empty folder `place`, and puts aside what would have a say in grading.

    `root` is the folder of the image in which the agent worked, whose changes are carried where the terms say so.
    Raises GitError if the diff doesn't apply.
    """
    checkout, diff = place / "checkout", work.diff.encode("utf-8", "backslashreplace")
    await store.checkout(checkout)
    await git.apply(diff, checkout)
    changed = [*await git.touched(diff)]
    if work.place:
        ignored = await store.ignored(work.place / "checkout")
        await asyncio.to_thread(_lay_unseen, work.place / "checkout", checkout, ignored)
        changed += ignored
        if terms.carried == "root":
            changed += await asyncio.to_thread(carry_outside, work.place, place, root, task.workdir)
    aside = guard(checkout, await store.baseline(), task.scripts, lifted=terms.lifted, seen=task.workdir)
    return Laid(changed, aside)


def _lay_unseen(worked: Path, checkout: Path, ignored: Sequence[str]) -> None:
    """Lays what no diff has: ignored files, with their holes, and folders without files. Links aren't followed."""
    for folder, folders, _ in os.walk(worked):
        folders[:] = [name for name in folders if Path(folder, name) != worked / ".git"]
        here = checkout / Path(folder).relative_to(worked)
        if not os.path.lexists(here) and here.parent.is_dir() and not here.parent.is_symlink():
            here.mkdir()
    for path in ignored:
        with contextlib.suppress(PermissionError):  # what the agent made unreadable can't be its work
            _lay_ignored(worked / path, checkout / path, checkout)


def _lay_ignored(source: Path, target: Path, checkout: Path) -> None:
    behind_a_link = any(parent.is_symlink() for parent in _parents(target, checkout))
    if behind_a_link or not (source.is_symlink() or source.is_file()):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        copy_file(source, target)


def _parents(path: Path, top: Path) -> Sequence[Path]:
    return [parent for parent in path.parents if parent.is_relative_to(top)]
