"""`koderz rollouts needs` and `clean`: what the environments of tasks are made of, and the room that they take."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from koderz.analysis.blocks import Table
from koderz.cli.console import print_json, say, warn
from koderz.cli.flags import Json, Trust
from koderz.cli.tables import print_blocks
from koderz.systems.rollouts.task_commands import Places, read_places, with_tasks
from koderz_tracker.files import MB

_HERE = {
    "yes": "yes",
    "host": "no; this machine's programs stand in for it",
    "packages": "in --packages",
    "no": "no",
}


@with_tasks
def needs(places: Places, given: dict[str, Any], json: Json = False, trust_config: Trust = False) -> None:
    """List the base images and the packages that tasks' Dockerfiles ask for, and whether they are here.

    What isn't comes from --images and --packages, or from the network with --allow-network build.

    Examples:
        koderz rollouts needs tasks
    """
    from koderz.errors import KoderzError
    from koderz.systems.rollouts.environments.needs import needs_of

    _, tasks, making, _ = read_places(places, given, trust_config=trust_config)
    found = {}
    for task in tasks:
        try:
            found[task.id] = needs_of(task, making)
        except KoderzError as error:
            warn(f"{task.id}: {error}")
    counted = Counter(each for wanted in found.values() for each in wanted)
    order = ("image", "apt", "pip", "npm")
    rows = sorted(counted, key=lambda each: (order.index(each.kind), -counted[each], each.name))
    if json:
        told = [{"kind": each.kind, "name": each.name, "here": each.here, "tasks": counted[each]} for each in rows]
        of_tasks = [
            {"id": task, "needs": [{"kind": each.kind, "name": each.name, "here": each.here} for each in wanted]}
            for task, wanted in found.items()
        ]
        print_json({"needs": told, "tasks": of_tasks})
        return
    lines = [[each.kind, each.name, str(counted[each]), _HERE[each.here]] for each in rows]
    print_blocks([Table(["Kind", "Name", "Tasks", "Here"], lines, (), ruled=False)])
    lacking = sum(each.here == "no" for each in rows)
    say(f"{lacking} of {len(rows)} aren't here" if rows else "no task asks for an image or a package")


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    json: Json = False,
) -> None:
    """Remove the environments that were built of Dockerfiles, but for those that a process uses.

    They are built anew when they are next needed.

    Examples:
        koderz rollouts clean --dry-run
    """
    from koderz.systems.workspaces.built import BuiltEnvironment, built_environments, kept_folder, remove_built

    removed, kept = list[BuiltEnvironment](), list[BuiltEnvironment]()
    for each in built_environments():
        (removed if dry_run or remove_built(each.digest) else kept).append(each)
    total = sum(each.bytes for each in removed)
    if json:
        found = [
            {"digest": each.digest, "dockerfile": each.source, "bytes": each.bytes, "removed": each in removed}
            for each in (*removed, *kept)
        ]
        about = {"folder": str(kept_folder()), "dry_run": dry_run, "bytes": total}
        print_json({**about, "environments": [{**each, "removed": each["removed"] and not dry_run} for each in found]})
        return
    for each in removed:
        say(f"{each.bytes / MB:8.1f} MB  {each.digest}  {each.source}")
    for each in kept:
        warn(f"{each.digest} is in use, and stays: {each.source}")
    what = "would be removed" if dry_run else "removed"
    say(f"{len(removed)} environments of {total / MB:.1f} MB {what} in {kept_folder()}")
