"""`koderz rollouts check` and `audit`: whether tasks can be solved, and whether they can be passed without the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import say, warn, writing
from koderz.cli.flags import Quiet, Trust
from koderz.cli.options import with_settings
from koderz.errors import KoderzError
from koderz.settings.layers import OWN, Scope
from koderz_tracker.files import write_whole

if TYPE_CHECKING:
    from koderz.sandbox.workspace import Backend
    from koderz.settings.schema import Settings
    from koderz.systems.rollouts.audit import Audit
    from koderz.systems.rollouts.environments import Making
    from koderz.systems.rollouts.tasks import Rollout

Places = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR|DATASET…",
        help="Tasks' folders, folders of such, rows of SWE-bench, or NAME[@VERSION] of --registry.",
    ),
]
_MAKING = ("packages", "host_base", "allow_network", "layer_mb")
_OF_TASKS = ("sandbox", "docker_image", "images", "environments", "registry", "env", "skip_unrunnable", *_MAKING)
with_tasks = with_settings(
    usual={"suite": "rollouts"},
    scope=Scope(only=_OF_TASKS),
    told={"sandbox": "Where commands run: local, docker, podman, modal or uncontained. Default: local."},
)


@with_tasks
def check(
    places: Places,
    given: dict[str, Any],
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail a task too where doing nothing scores above 0.")
    ] = False,
    flaky: Annotated[bool, typer.Option("--flaky", help="Try each three times.")] = False,
    trust_config: Trust = False,
) -> None:
    """Check that each task's own solution passes, and that doing nothing doesn't. Exit code 1 where one fails.

    Examples:
        koderz rollouts check tasks
    """
    import asyncio

    from koderz.systems.rollouts.checking import check_tasks

    failed = False
    tasks, backend = _tasks_and_backend(places, given, trust_config=trust_config)
    for checked in asyncio.run(check_tasks(tasks, backend, times=3 if flaky else 1)):
        wrong = checked.wrong or (checked.warning if strict else "")
        failed = failed or bool(wrong)
        say(f"{'failed' if wrong else 'ok':6}  {checked.id}{f': {wrong}' if wrong else ''}")
        if checked.warning and not strict:
            warn(f"{checked.id}: {checked.warning}")
    raise typer.Exit(1 if failed else 0)


def tasks_and_making(
    places: Sequence[Path], given: Mapping[str, Any], *, trust_config: bool
) -> tuple[Sequence[Rollout], Making, Settings]:
    """The tasks as they are written, and the terms on which environments are made of their Dockerfiles."""
    from koderz.engines.owners import schema_here
    from koderz.sandbox.images import ImageStore
    from koderz.settings.toml import read_sources
    from koderz.systems.rollouts.datasets import each_once, read_dataset
    from koderz.systems.rollouts.instances import stood_in
    from koderz.systems.rollouts.options import RolloutsOptions

    given = {"suite": "rollouts", **given}
    schema = schema_here(given, scope=OWN)
    settings = read_sources(given, names=_OF_TASKS, scope=OWN, schema=schema, trust_config=trust_config).settings
    options = settings.of(RolloutsOptions)
    found = [task for place in places for task in read_dataset(place, options.registry, options.variables).tasks]
    found = [*stood_in(found, options.environments, options.images)]
    return each_once(found, "the tasks"), options.making(ImageStore(options.images)), settings


def _tasks_and_backend(
    places: Sequence[Path], given: Mapping[str, Any], *, trust_config: bool
) -> tuple[Sequence[Rollout], Backend]:
    """The tasks that can run here, and the sandbox, not yet entered. Raises KoderzError for others, unless left out."""
    from koderz.systems.rollouts.environments import notes_on
    from koderz.systems.rollouts.options import RolloutsOptions
    from koderz.systems.rollouts.runnable import ROOTED, placed, require_runnable, runnable
    from koderz.systems.rollouts.workspaces import open_backend

    found, making, settings = tasks_and_making(places, given, trust_config=trust_config)
    images, here = making.images, making if settings.sandbox in ROOTED else None
    tasks: Sequence[Rollout] = [placed(task, images, here) for task in found]
    if settings.of(RolloutsOptions).skip_unrunnable:
        tasks, left_out = runnable(tasks, lambda _: settings.sandbox, images)
        for each in left_out:
            warn(f"left out: {each.id}: {each.why}")
    else:
        require_runnable(tasks, lambda _: settings.sandbox, images)
    for note in notes_on(tasks):
        warn(note)
    return tasks, open_backend(settings.sandbox, settings, images)


@with_tasks
def audit(
    places: Places,
    given: dict[str, Any],
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write each exploit's result here.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 too if an exploit passes as the task is published.")
    ] = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Try on each task what agents do to pass without doing the work, graded as published and by koderz.

    Exit code 1 if an exploit passes under koderz' grading.

    Examples:
        koderz rollouts audit tasks
    """
    import asyncio

    import orjson

    from koderz.systems.rollouts.audit import audit_tasks
    from koderz.systems.rollouts.audit_screen import AuditScreen, total_line
    from koderz.systems.rollouts.workspaces import Stores

    tasks, backend = _tasks_and_backend(places, given, trust_config=trust_config)
    if json and not json.absolute().parent.is_dir():
        raise KoderzError(f"--json {json}: there is no folder {json.absolute().parent}")

    async def audited() -> Audit:
        async with backend:
            return await audit_tasks(tasks, Stores({"": backend}), tell=screen.tell, progress=screen.progress)

    with AuditScreen([task.id for task in tasks], quiet=quiet) as screen:
        found = asyncio.run(audited())
    say(total_line(found))
    if json:
        with writing(json):
            write_whole(json, [orjson.dumps(found.document(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)])
    raise typer.Exit(1 if found.forged["ours"] or (strict and found.forged["published"]) else 0)
