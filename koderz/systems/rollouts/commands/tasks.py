"""Commands on tasks: `koderz rollouts check`, `audit`, `needs`, `clean` and `regrade`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from koderz.analysis.blocks import Table
from koderz.cli.console import print_json, save_json, say, warn
from koderz.cli.flags import Json, Quiet, SummaryJson, Trust
from koderz.cli.options import with_settings
from koderz.cli.tables import print_blocks
from koderz.engines.sources import OWN, Scope
from koderz.errors import KoderzError
from koderz_tracker.files import MB

if TYPE_CHECKING:
    from koderz.sandbox.workspace import Backend
    from koderz.settings.schema import Settings
    from koderz.systems.rollouts.checking.audit import Audit
    from koderz.systems.rollouts.environments import Making
    from koderz.systems.rollouts.swebench.judging import Regraded
    from koderz.systems.rollouts.task import Rollout
    from koderz.systems.rollouts.tasks.datasets import Dataset
    from koderz.systems.rollouts.tasks.runnable import Omission

Places = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR|DATASET…",
        help="Tasks' folders, folders of such, rows of SWE-bench, or NAME[@VERSION] of --registry.",
    ),
]
_MAKING = ("packages", "host_base", "allow_network", "layer_mb")
_OF_TASKS = (
    "sandbox",
    "docker_image",
    "images",
    "environments",
    "registry",
    "env",
    "skip_unrunnable",
    *_MAKING,
)
with_tasks = with_settings(
    usual={"suite": "rollouts"},
    scope=Scope(only=_OF_TASKS),
    told={
        "sandbox": "Where commands run: local, docker, podman, modal or uncontained. Default: local."
    },
)


@with_tasks
def check(
    places: Places,
    given: dict[str, Any],
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail a task too where doing nothing scores above 0.")
    ] = False,
    flaky: Annotated[bool, typer.Option("--flaky", help="Try each three times.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N.")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", min=1, max=4096, help="Tasks at once.")
    ] = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the last check of these: only what is new or has changed."
        ),
    ] = False,
    json: SummaryJson = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Check that each task's own solution passes, and that doing nothing doesn't. Exit code 1 where one fails.

    Examples:
        koderz rollouts check tasks
        koderz rollouts check tasks --jobs 2 --resume
    """
    import asyncio

    from koderz.systems.rollouts.checking import Checked, CheckLog, check_tasks, log_of, table_lines
    from koderz.systems.rollouts.checking.screens import CheckScreen

    found = _found(places, given, trust_config=trust_config)
    tasks = found.tasks[:limit]

    def take(task: Rollout, checked: Checked) -> None:
        log.add(task, checked)
        screen.take(checked)

    with CheckLog(
        log_of(places, found.backend.name, flaky=flaky), found.left_out, resume=resume
    ) as log:
        waiting, is_stopped = log.taken_up(tasks), False
        if len(waiting) < len(tasks) and not json:
            warn(
                f"{len(tasks) - len(waiting)} of {len(tasks)} tasks were checked before and haven't changed"
            )
        with CheckScreen(len(waiting), strict=strict, json=json, quiet=quiet) as screen:
            for each in found.left_out:
                screen.refused(each)
            try:
                asyncio.run(
                    check_tasks(
                        waiting, found.backend, times=3 if flaky else 1, jobs=jobs, take=take
                    )
                )
            except KeyboardInterrupt:
                is_stopped = True
        document = log.document(len(tasks))
    if json:
        print_json(document)
    else:
        for line in table_lines(document):
            warn(line)
    if is_stopped:
        warn("stopped; the same command with --resume goes on")
        raise typer.Exit(130)
    failed = any(each.wrong or (strict and each.warning) for each in log.checked.values())
    raise typer.Exit(1 if failed or (found.left_out and not found.skips) else 0)


class _Found(NamedTuple):
    """The tasks of a command that can run here, those that can't, and the sandbox, not yet entered."""

    tasks: Sequence[Rollout]
    left_out: Sequence[Omission]
    skips: bool  # whether the latter are to be left out without a word of failure
    backend: Backend


class Read(NamedTuple):
    """The datasets of a command, and the terms on which environments are made of its tasks' Dockerfiles."""

    datasets: Sequence[Dataset]
    tasks: Sequence[Rollout]
    making: Making
    settings: Settings


def read_places(places: Sequence[Path], given: Mapping[str, Any], *, trust_config: bool) -> Read:
    """The tasks at these places as they are written. Raises KoderzError for a place that has none."""
    from koderz.engines.sources import read_sources
    from koderz.systems.rollouts.options import RolloutsOptions
    from koderz.systems.rollouts.tasks.datasets import Dataset, each_once, read_dataset, stood_in
    from koderz.systems.rollouts.tasks.runnable import Omission
    from koderz.systems.workspaces.images import ImageStore

    given = {"suite": "rollouts", **given}
    settings = read_sources(
        given, names=_OF_TASKS, scope=OWN, schema=None, trust_config=trust_config
    ).settings
    options = settings.of(RolloutsOptions)
    datasets = []
    for place in places:
        try:
            datasets.append(read_dataset(place, options.registry, options.variables))
        except KoderzError as error:
            if len(places) == 1:
                raise
            datasets.append(Dataset((), refused=[Omission(place.name, str(error))]))
    every = [
        *stood_in(
            [task for each in datasets for task in each.tasks], options.environments, options.images
        )
    ]
    return Read(
        datasets,
        each_once(every, "the tasks"),
        options.making(ImageStore(options.images)),
        settings,
    )


def _found(places: Sequence[Path], given: Mapping[str, Any], *, trust_config: bool) -> _Found:
    """The tasks at these places. Raises KoderzError for a place that has none."""
    from koderz.systems.rollouts.environments import notes_on
    from koderz.systems.rollouts.options import RolloutsOptions
    from koderz.systems.rollouts.tasks.runnable import ROOTED, placed, runnable
    from koderz.systems.rollouts.workspaces.workspace import open_backend

    datasets, written, making, settings = read_places(places, given, trust_config=trust_config)
    images, sandbox = making.images, settings.sandbox
    tasks = [placed(task, images, making if sandbox in ROOTED else None) for task in written]
    able, unable = runnable(tasks, lambda _: sandbox, images)
    for note in notes_on(able):
        warn(note)
    left_out = [*(each for dataset in datasets for each in dataset.refused), *unable]
    skips = settings.of(RolloutsOptions).skip_unrunnable
    return _Found(able, left_out, skips, open_backend(sandbox, settings, images))


def _tasks_and_backend(
    places: Sequence[Path], given: Mapping[str, Any], *, trust_config: bool
) -> tuple[Sequence[Rollout], Backend]:
    """The tasks that can run here, and the sandbox, not yet entered. Raises KoderzError for others, unless left out."""
    from koderz.systems.rollouts.tasks.runnable import notices_of, require_none

    found = _found(places, given, trust_config=trust_config)
    total = len(found.tasks) + len(found.left_out)
    if not found.skips:
        require_none(found.left_out, total)
    for line in notices_of(found.left_out, total):
        warn(line)
    return found.tasks, found.backend


@with_tasks
def audit(
    places: Places,
    given: dict[str, Any],
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write each exploit's result here."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit code 1 too if an exploit passes as the task is published."
        ),
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

    from koderz.systems.rollouts.checking.audit import audit_tasks
    from koderz.systems.rollouts.checking.screens import AuditScreen, total_line
    from koderz.systems.rollouts.workspaces.workspace import Stores

    tasks, backend = _tasks_and_backend(places, given, trust_config=trust_config)
    if json and not json.absolute().parent.is_dir():
        raise KoderzError(f"--json {json}: there is no folder {json.absolute().parent}")

    async def audited() -> Audit:
        async with backend:
            return await audit_tasks(
                tasks, Stores({"": backend}), tell=screen.tell, progress=screen.progress
            )

    screen = AuditScreen([task.id for task in tasks], quiet=quiet)
    found = asyncio.run(audited())
    say(total_line(found))
    if json:
        save_json(json, found.document())
    raise typer.Exit(1 if found.forged["ours"] or (strict and found.forged["published"]) else 0)


_HERE = {
    "yes": "yes",
    "host": "no; this machine's programs stand in for it",
    "packages": "in --packages",
    "no": "no",
}


@with_tasks
def needs(
    places: Places, given: dict[str, Any], json: Json = False, trust_config: Trust = False
) -> None:
    """List the base images and the packages that tasks' Dockerfiles ask for, and whether they are here.

    What isn't comes from --images and --packages, or from the network with --allow-network build.

    Examples:
        koderz rollouts needs tasks
    """
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
        told = [
            {"kind": each.kind, "name": each.name, "here": each.here, "tasks": counted[each]}
            for each in rows
        ]
        of_tasks = [
            {
                "id": task,
                "needs": [
                    {"kind": each.kind, "name": each.name, "here": each.here} for each in wanted
                ],
            }
            for task, wanted in found.items()
        ]
        print_json({"needs": told, "tasks": of_tasks})
        return
    lines = [[each.kind, each.name, str(counted[each]), _HERE[each.here]] for each in rows]
    print_blocks([Table(["Kind", "Name", "Tasks", "Here"], lines, (), ruled=False)])
    lacking = sum(each.here == "no" for each in rows)
    say(
        f"{lacking} of {len(rows)} aren't here"
        if rows
        else "no task asks for an image or a package"
    )


def clean(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove the environments that were built of Dockerfiles, but for those that a process uses.

    They are built anew when they are next needed.

    Examples:
        koderz rollouts clean --dry-run
    """
    from koderz.systems.workspaces.built import (
        BuiltEnvironment,
        built_environments,
        kept_folder,
        remove_built,
    )

    removed, kept = list[BuiltEnvironment](), list[BuiltEnvironment]()
    for each in built_environments():
        (removed if dry_run or remove_built(each.digest) else kept).append(each)
    total = sum(each.bytes for each in removed)
    if json:
        found = [
            {
                "digest": each.digest,
                "dockerfile": each.source,
                "bytes": each.bytes,
                "removed": each in removed,
            }
            for each in (*removed, *kept)
        ]
        about = {"folder": str(kept_folder()), "dry_run": dry_run, "bytes": total}
        print_json(
            {
                **about,
                "environments": [
                    {**each, "removed": each["removed"] and not dry_run} for each in found
                ],
            }
        )
        return
    for each in removed:
        say(f"{each.bytes / MB:8.1f} MB  {each.digest}  {each.source}")
    for each in kept:
        warn(f"{each.digest} is in use, and stays: {each.source}")
    what = "would be removed" if dry_run else "removed"
    say(f"{len(removed)} environments of {total / MB:.1f} MB {what} in {kept_folder()}")


def regrade(
    rows: Annotated[
        Path,
        typer.Argument(metavar="ROWS", help="Rows of SWE-bench (.jsonl), or a task repository."),
    ],
    predictions: Annotated[
        Path,
        typer.Option(
            "--predictions",
            metavar="FILE",
            help="Patches of anyone: lines, a list or an object by id.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="REPORT.json", help="Where the reports go.")
    ],
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs",
            metavar="DIR",
            help="Recorded logs, DIR/INSTANCE/test_output.txt. Without, the tests run.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="DIR",
            envvar="KODERZ_IMAGES",
            help="A folder of the instances' images.",
        ),
    ] = None,
    environments: Annotated[
        Path | None,
        typer.Option(
            "--environments",
            metavar="FILE",
            help="[[environments]] of here that stand in for images.",
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, help="Instances at work at once.")
    ] = 1,
    json: SummaryJson = False,
) -> None:
    """Grade predictions for SWE-bench by its rules, from recorded logs or by running the tests.

    Exit code 3 where an instance can't be graded.

    Examples:
        koderz rollouts regrade rows.jsonl --predictions mine.jsonl -o report.json
    """
    import asyncio

    from koderz.systems.rollouts.swebench.judging import regraded

    found: list[Regraded] = []

    def take(each: Regraded) -> None:
        found.append(each)
        if each.fault:
            warn(f"{each.instance} isn't graded: {each.fault}")
        elif not json:
            say(f"{'resolved' if each.report['resolved'] else 'unresolved':10}  {each.instance}")

    total = asyncio.run(
        regraded(
            rows,
            predictions,
            take,
            logs=logs,
            images=images,
            environments=environments,
            most=parallel,
        )
    )
    reports: dict[str, Any] = {each.instance: each.report for each in sorted(found) if each.report}
    save_json(output, reports)
    resolved = [name for name, report in reports.items() if report["resolved"]]
    ungraded = [each.instance for each in found if each.fault]
    if json:
        about = {"resolved": resolved, "graded": len(found) - len(ungraded), "ungraded": ungraded}
        print_json(
            {
                **about,
                "empty": [each.instance for each in found if each.is_empty],
                "instances": total,
            }
        )
    else:
        say(f"{len(resolved)} of {total} instances resolved{_not_resolved(found, total)}: {output}")
    raise typer.Exit(3 if ungraded else 0)


def _not_resolved(found: Sequence[Regraded], total: int) -> str:
    """The numbers of instances whose patches no test was run on; empty if there are none."""
    counts = {
        "with an empty patch": sum(each.is_empty for each in found),
        "not graded": sum(bool(each.fault) for each in found),
        "without prediction": total - len(found),
    }
    more = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    return f" ({more})" if more else ""
