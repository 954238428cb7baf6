"""The kit of a suite of patches, and its packing into one file for a machine without the user's files."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.scratch import scratch
from koderz.systems.patches.given import agents_in, given_by
from koderz.systems.patches.machines import Rules, idle_rules, read_rules
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.services import ABSENT, can_serve
from koderz.systems.patches.sources import tasks_of
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.workspaces import git
from koderz.systems.workspaces.remote import pack

_MARK = b"koderz-perf\n"
_MOST = 64 << 20  # bytes of a packed tree


class Kit(msgspec.Struct, frozen=True):
    """Tasks, the rules of their machines, and the user's own files."""

    tasks: tuple[PerfTask, ...]
    rules: Rules
    source: str
    patches: Mapping[str, Mapping[str, tuple[str, ...]]] | None = None  # by agent and task; None: they are files here
    notices: tuple[str, ...] = ()  # of rules that apply to nothing
    trees: Mapping[str, Mapping[str, bytes]] = {}  # packed, by repository and commit, of those that nobody else has

    def user_patches(self, agent: str, options: PerformanceOptions) -> Mapping[str, tuple[str, ...]]:
        """The user's patches of an agent, by task; without a name, those of --predictions. KoderzError for none."""
        return given_by(options, agent, self.tasks).patches if self.patches is None else self.patches.get(agent, {})


def kit_of(name: str, dataset: Path | None, options: PerformanceOptions) -> Kit:
    """The kit of a suite, or a packed one. Raises KoderzError for a file without tasks."""
    if dataset and (packed := _packed_in(dataset)):
        return msgspec.json.decode(gzip.decompress(packed), type=Kit)
    rules = read_rules(options.overrides, options.image or "")
    tasks = tuple(rules.served(task) for task in tasks_of(dataset, name, options))
    notices = idle_rules(options.overrides, tasks)
    if dataset is None and not can_serve():
        left_out = [task.id for task in tasks if task.kind == "serving"]
        tasks = tuple(task for task in tasks if task.id not in left_out)
        notices = (*notices, *(f"{task} is left out: {ABSENT}" for task in left_out))
    source = str(dataset or ("released packages" if tasks[0].wheels else "embedded, generated repositories"))
    return Kit(tasks, rules, source, notices=notices)


def packed(kit: Kit, options: PerformanceOptions) -> bytes:
    """Packs the kit with the user's patches, and the trees of repositories on this machine.

    Raises KoderzError where one can't be read or is too large, and for an image that is built from a folder here.
    """
    if built := next((rule.build for rule in kit.rules.images if rule.build), ""):
        raise KoderzError(f"the image built from {built} can't be sent elsewhere: push it, and name it in its rule")
    whole = msgspec.structs.replace(
        kit,
        rules=msgspec.structs.replace(kit.rules, environments=()),  # which are on this machine
        patches=kit.patches or _patches(kit, options),
        trees=kit.trees or asyncio.run(_trees(kit.tasks)),
    )
    return _MARK + gzip.compress(msgspec.json.encode(whole), mtime=0)


def _packed_in(dataset: Path) -> bytes:
    with suppress(OSError), dataset.open("rb") as file:
        if file.read(len(_MARK)) == _MARK:
            return file.read()
    return b""


def _patches(kit: Kit, options: PerformanceOptions) -> dict[str, Mapping[str, tuple[str, ...]]]:
    agents = agents_in(options.patches) if options.patches else []
    found = {}
    for agent in [*agents, *([""] if options.predictions else [])]:
        with suppress(KoderzError):  # an agent that has none of these tasks is in no arm
            found[agent] = kit.user_patches(agent, options)
    return found


async def _trees(tasks: tuple[PerfTask, ...]) -> dict[str, dict[str, bytes]]:
    """The trees of both commits of each task whose repository is on this machine."""
    found: dict[str, dict[str, bytes]] = {}
    for task in tasks:
        for commit in task.exported if not task.repo.startswith("https://") else ():
            kept = found.setdefault(task.repo, {})
            if commit not in kept:
                kept[commit] = await _tree(task.repo, commit)
    return found


async def _tree(repo: str, commit: str) -> bytes:
    with scratch() as tree:
        await git.export(repo, commit, tree)
        file = BytesIO()
        if not pack([str(tree)], file, _MOST):
            raise KoderzError(f"{repo} is larger than {_MOST >> 20} MB: name an https:// URL, from which it is fetched")
        return file.getvalue()
