"""Fresh trees for grading: a new root, home and /tmp that carry the agent's work and nothing else of its making."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from koderz.systems.rollouts.artifacts import Collected
from koderz.systems.rollouts.carrying import carry_outside
from koderz.systems.rollouts.task import Rollout
from koderz.systems.workspaces import git
from koderz.systems.workspaces.guarding import guard
from koderz.systems.workspaces.images.tree import Layers
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
    rewards: tuple[str, ...] = ()  # the names of its own solution's rewards; empty: it isn't known to be rewarded
    tests: tuple[str, ...] = field(default=(), repr=False)  # that its own solution passes, where pytest judges
    solution: Solution = field(default="", repr=False)


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


async def lay(
    task: Rollout, work: Work, store: git.Store, place: Path, terms: Terms, root: Layers | None = None
) -> Laid:
    """Makes a fresh tree in the empty folder `place`, and puts aside what would have a say in grading.

    It is a copy of the checkout as the agent left it, where that is there, else one with the diff applied. `root` is
    the folder of the image in which the agent worked, whose changes are carried where the terms say so.
    Raises GitError if the diff doesn't apply, or what the agent left can't be read.
    """
    checkout, changed = place / "checkout", list[str]()
    if work.place:
        try:
            changed += await asyncio.to_thread(_copied, await store.listing(), work.place / "checkout", checkout)
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
