"""`koderz perf`: measures whether patches make repositories faster, reliably."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from koderz.cli.console import print_json, say, warn
from koderz.cli.flags import Json, Trust
from koderz.cli.front import Front, run_options
from koderz.cli.groups import LazyGroup, PanelCommand, new_group
from koderz.cli.options import with_settings
from koderz.engines.sources import OWN, Scope
from koderz.errors import KoderzError
from koderz.settings.options import fields_of
from koderz.settings.schema import OF_PROGRAMS
from koderz.types import NOBODY

if TYPE_CHECKING:
    from koderz.settings.schema import Settings
    from koderz.suites.matrix import Matrix
    from koderz.systems.patches.patches import UserPatches
    from koderz.systems.patches.suite import PerformanceSuite
    from koderz.systems.patches.tasks import PerfTask

COMMANDS = {
    "opt-at-k": (
        "koderz.systems.patches.opt_at_k:opt_at_k",
        "Grade predictions as GSO does: how often is one of K as good as a human.",
    ),
}
"""Each command's module, which is loaded when it runs, and its line of help."""

_SUITE = "koderz-perf-mini"
_HELP = {
    "suite": f"The suite: {_SUITE}, koderz-perf-pypi, gso or iso. Default: {_SUITE}.",
    "local_model": "A model that writes the patches, such as openai/gpt-6-luna; repeatable. Default: patches that are "
    "given, else those that come with the embedded tasks.",
    "samples": "Patches that a model writes for each task. Default: 1.",
    "max_iterations": "Maximum patches that a model writes for one task. Default: 3; without a model or patches 1.",
    "matrix": "A TOML file that lists arms and cells, in place of baseline, human and agent.",
    "sandbox": "Where patches are timed: contained, docker or modal. Default: contained.",
}
_CHECKED = (
    "sandbox",
    "docker_image",
    "image",
    "overrides",
    "push",
    "timeout",
    "clock",
    "rounds",
    "agreement",
)
_WHICH = (
    *(
        "suite",
        "dataset",
        "predictions",
        "patches",
        "local_model",
        "models",
        "max_blocks",
        "threshold",
    ),
    *_CHECKED,
)


class PerfGroup(LazyGroup):
    lazy = COMMANDS


app = new_group(
    "Measure whether patches make repositories faster, beside a human's answer.",
    PerfGroup,
    ["koderz perf tasks", "koderz perf run --dry-run"],
)


@app.callback()
def perf() -> None:
    """Measure whether patches make repositories faster, beside a human's answer."""


@app.command(cls=PanelCommand)
@with_settings(usual={"suite": _SUITE}, scope=Scope(only=("suite", "dataset")))
def tasks(given: dict[str, Any], json: Json = False) -> None:
    """List the tasks: their commits, what is timed, and what that needs.

    Examples:
        koderz perf tasks
        koderz perf tasks --suite koderz-perf-pypi
    """
    _, suite = _suite(given)
    found = _tasks_of(suite)
    suite.require_repositories([task.id for task in found])
    if json:
        print_json(
            [
                {
                    "id": task.id,
                    "base_commit": task.base_commit,
                    "human_commit": task.human_commit or None,
                    "kind": task.kind,
                    "needs": task.needs,
                }
                for task in found
            ]
        )
        return
    width = max(len(task.id) for task in found)
    for task in found:
        base = f"{task.base_commit[:7]}{'^' * task.base_commit.count('^')}"
        say(f"{task.id:{width}}  {base:8} → {task.human_commit[:7] or 'patch  '}  {task.kind}")


def _suite(
    given: Mapping[str, Any], *, trust_config: bool = False, more: Collection[str] = ()
) -> tuple[Settings, PerformanceSuite]:
    """The settings and their suite of patches. Raises KoderzError for a suite of another kind.

    `more`: options that are read besides those by which tasks are chosen and measured.
    """
    from koderz.engines.sources import read_sources, require_sandbox
    from koderz.suites import load_suite
    from koderz.systems.patches.suite import PerformanceSuite

    given = {"suite": _SUITE, **given}
    settings = read_sources(
        given, names={*_WHICH, *more}, scope=OWN, schema=None, trust_config=trust_config
    ).settings
    require_sandbox(settings, given)
    suite = load_suite(settings.suite, settings.dataset, settings)
    if not isinstance(suite, PerformanceSuite):
        raise KoderzError(
            f"--suite {settings.suite}: its tasks are no commits; {_SUITE}, koderz-perf-pypi, gso or iso have such"
        )
    return settings, suite


def _tasks_of(suite: PerformanceSuite) -> tuple[PerfTask, ...]:
    return tuple(task.payload for task in suite.tasks)


def _which(help_text: str, metavar: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, metavar=metavar, help=help_text, rich_help_panel="Tasks", **more)


def _arms(help_text: str, metavar: str | None, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, metavar=metavar, help=help_text, rich_help_panel="Arms", **more)


def _beginning(*words: str) -> Callable[[str], list[str]]:
    """A completer for a few words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


_Kind = Annotated[
    str | None,
    _which(
        "Only tasks of this kind, such as workload.",
        "KIND",
        *("--benchmark-type", "--type"),
        autocompletion=_beginning("workload", "serving", "throughput", "latency"),
    ),
]
_Mode = Annotated[
    str | None,
    _arms(
        "Measure only this arm. Default: all three.",
        "human|agent",
        autocompletion=_beginning("human", "agent"),
    ),
]


@app.command(cls=PanelCommand)
@run_options(
    without={
        **dict.fromkeys({*OF_PROGRAMS} - {"sandbox", "docker_image"}, ""),
        **dict.fromkeys(("solver", "solvers"), "--mode, --predictions or --model"),
        "problems": "TASK or --commits-file",
    },
    told=_HELP,
    suite=_SUITE,
    concurrency=4,
)
def run(
    front: Front,
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK] …", help="Ids of tasks. Default: all.")
    ] = None,
    commit: Annotated[
        list[str] | None,
        _which("A task by 7 or more digits of its human commit; repeatable.", "COMMIT", "--commit"),
    ] = None,
    commits_file: Annotated[
        Path | None,
        _which("A file of commits, the first word of each line.", "FILE", "--commits-file"),
    ] = None,
    benchmark_type: _Kind = None,
    start_from: Annotated[
        str | None,
        _which("The first task: its index from 0, or a commit.", "N|COMMIT", "--start-from"),
    ] = None,
    baseline: Annotated[bool, _arms("Measure only the arm baseline.", None, "--baseline")] = False,
    mode: _Mode = None,
    agent_type: Annotated[
        list[str] | None,
        _arms("Whose patches of --patches; repeatable. Default: the only.", "NAME"),
    ] = None,
    resume: Annotated[
        bool,
        _arms(
            "Go on with the last run of the same plan, if any.", None, "--resume", "--skip-existing"
        ),
    ] = False,
    parallel: Annotated[
        int | None, _arms("Modal: how many are measured at once.", "N", min=1)
    ] = None,
) -> None:
    """Measure baseline, human and agent on tasks; without options the embedded ones, on the simulated model.

    Examples:
        koderz perf run --dry-run
        koderz perf run --mode human --max-blocks 2
    """
    from koderz.plans.selection import select_tasks
    from koderz.systems.patches.options import PerformanceOptions
    from koderz.systems.patches.tasks import read_commits

    if mode not in (None, "human", "agent"):
        raise KoderzError(f"--mode {mode}: human or agent")
    if baseline and mode:
        raise KoderzError("--baseline and --mode each measure one arm alone: give one of them")
    if parallel:
        front = replace(front, values={**front.values, "concurrency": parallel})
    settings, suite = _suite(
        front.values, trust_config=front.trust_config, more=fields_of(PerformanceOptions)
    )
    known = _tasks_of(suite)
    named = [*(tasks or ()), *(commit or ()), *(read_commits(commits_file) if commits_file else ())]
    wanted = _wanted(known, named, start_from, benchmark_type)
    chosen = select_tasks(replace(settings, problems=tuple(wanted)), None, suite.tasks)
    wanted = [task.id for task in chosen]
    suite.require_repositories(wanted)
    given = {**front.values, "problems": tuple(wanted)}
    alone = "baseline" if baseline else mode
    arms = [alone] if alone else ["baseline", "human", "agent"]
    agents: list[Agent] = []
    if "agent" in arms:
        more, agents = _agents(settings, agent_type or (), known, wanted)
        places = {name: more[name] for name in ("predictions", "patches") if name in more}
        suite.take_patches(**places)
        given = more | given | places
    matrix = _matrix(arms, agents, wanted)
    if front.dry_run and not front.shown.json:
        _show_plan(
            [task for task in known if task.id in wanted][: given.get("limit")],
            [arm.name for arm in matrix.arms],
        )
    replace(front, values=given, suite=suite).run(matrix=matrix, resumes=resume)


def _wanted(
    known: tuple[PerfTask, ...], named: Sequence[str], start_from: str | None, kind: str | None
) -> list[str]:
    """The ids of the selected tasks. Raises KoderzError if none is left."""
    from koderz.systems.patches.tasks import KINDS, chosen

    if kind not in (None, *KINDS):
        raise KoderzError(f"there is no kind {kind!r} of tasks; there are {', '.join(KINDS)}")
    wanted = chosen(known, named) if named else [task.id for task in known]
    if start_from is not None:
        wanted = _begun(known, wanted, start_from)
    if kind is not None:
        wanted = [task.id for task in known if task.id in wanted and task.kind == kind]
    if not wanted:
        raise KoderzError("no task is left; koderz perf tasks lists them")
    return wanted


def _begun(known: tuple[PerfTask, ...], wanted: list[str], start: str) -> list[str]:
    """The tasks from an index or a commit on."""
    from koderz.systems.patches.tasks import chosen

    ids = [task.id for task in known if task.id in wanted]
    if start.isdecimal() and len(start) < 7:
        return ids[int(start) :]
    (first,) = chosen(known, [start])
    if first not in ids:
        raise KoderzError(f"--start-from {start}: {first} isn't among the tasks")
    return ids[ids.index(first) :]


class Agent(NamedTuple):
    """A source of patches: a file or folder, or without one the model that writes them."""

    name: str = ""
    patches: UserPatches | None = None


def _agents(
    settings: Settings, names: Sequence[str], known: Sequence[PerfTask], wanted: Sequence[str]
) -> tuple[dict[str, Any], list[Agent]]:
    """The agents, and the settings that they add. Raises KoderzError if there is no patch."""
    from koderz.systems.patches.options import PerformanceOptions
    from koderz.systems.patches.patches import (
        agents_in,
        of_tasks,
        read_agent,
        read_predictions,
        with_tasks,
    )

    options, has_model = (
        settings.of(PerformanceOptions),
        bool(settings.local_model or settings.models),
    )
    tasks = [task for task in known if task.id in wanted]
    if words := with_tasks(options.predictions, tasks):
        return {"predictions": tuple(words)}, [
            Agent("", of_tasks(read_predictions(words, known), tasks))
        ]
    folder = (options.patches or Path("patches")).absolute()
    if names or options.patches or (folder.is_dir() and not has_model):
        found = agents_in(folder)
        if not found:
            raise KoderzError(
                f"there are no patches: {folder} has no folder or .jsonl file of an agent"
            )
        if not names and len(found) > 1:
            raise KoderzError(
                f"{folder} has the patches of {', '.join(found)}: choose with --agent-type NAME"
            )
        return {"patches": folder}, [
            Agent(name, of_tasks(read_agent(folder, name, known), tasks)) for name in names or found
        ]
    if has_model:
        return {}, [Agent()]
    if not all(task.canned for task in tasks):
        raise KoderzError(
            f"there are no patches: {folder} isn't there; name files with --predictions, a folder with --patches, or "
            "have patches written with --model"
        )
    return {"local_model": "simulated", "max_iterations": 1}, [Agent()]


def _matrix(arms: Sequence[str], agents: Sequence[Agent], tasks: Sequence[str]) -> Matrix:
    """A matrix of the arms, with a sample of each task for each patch."""
    from koderz.suites.matrix import Matrix, MatrixArm, MatrixCells

    solvers = {"baseline": "patch:base", "human": "patch:human"}
    stated = [MatrixArm(arm, solver, NOBODY) for arm, solver in solvers.items() if arm in arms]
    cells = [MatrixCells((arm.name,), None, 1) for arm in stated]
    for agent in agents:
        name = "agent" if len(agents) == 1 else f"agent · {agent.name}"
        if agent.patches is None:
            stated.append(MatrixArm(name, "patching"))
            cells.append(MatrixCells((name,)))
            continue
        parameters = {"agent": agent.name} if agent.name else {}
        stated.append(MatrixArm(name, "patch:given", agent.patches.model, parameters=parameters))
        counts = {task: len(agent.patches.patches.get(task, ())) for task in tasks}
        names = {task: each for task, each in agent.patches.names.items() if any(each)}
        cells += [
            MatrixCells((name,), (task,), n, names.get(task, ())) for task, n in counts.items() if n
        ]
        if without := [task for task, count in counts.items() if not count]:
            shown = ", ".join(without[:5]) + (", …" if len(without) > 5 else "")
            warn(
                f"note: {name} has no patch of {len(without)} tasks, which count as not opt: {shown}"
            )
    return Matrix(tuple(stated), tuple(cells), "koderz perf run")


def _show_plan(tasks: Sequence[PerfTask], arms: Sequence[str]) -> None:
    """Prints the commits of a dry run, what is measured of them, and about how long that takes."""
    for task in tasks:
        say(
            f"{task.human_commit[:7] or '-':7}  {task.id}: {', '.join(arms)}; up to {task.needs.minutes:g} min"
        )
    minutes = sum(task.needs.minutes for task in tasks)
    say(f"At most about {minutes:g} minute{'' if minutes == 1 else 's'}")
    say()


@app.command(cls=PanelCommand)
@with_settings(usual={"suite": _SUITE}, scope=Scope(only=("suite", "dataset", *_CHECKED)))
def check(
    given: dict[str, Any],
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK] …", help="Ids or commits. Default: all.")
    ] = None,
    max_blocks: Annotated[
        int | None, typer.Option(metavar="N", min=7, help="Maximum number of blocks. Default: 30.")
    ] = None,
    json: Json = False,
    trust_config: Trust = False,
) -> None:
    """Check that base works and is as fast as itself, and the human's answer surely faster. Exit code 1 where not.

    Examples:
        koderz perf check
    """
    import asyncio

    from koderz.systems.patches.checking import Checked, check_tasks
    from koderz.systems.patches.tasks import chosen

    def tell(each: Checked) -> None:
        say(f"{'failed' if each.wrong else 'ok':6}  {each.id}: {each.wrong or each.told}")

    given = given | ({} if max_blocks is None else {"max_blocks": max_blocks})
    settings, suite = _suite(given, trust_config=trust_config)
    known = _tasks_of(suite)
    wanted = chosen(known, tasks) if tasks else [task.id for task in known]
    suite.require_repositories(wanted)
    for notice in suite.notices:
        warn(f"note: {notice}")
    found = asyncio.run(check_tasks(suite, wanted, settings, warn, None if json else tell))
    if json:
        print_json(found)
    raise typer.Exit(1 if any(each.wrong for each in found) else 0)
