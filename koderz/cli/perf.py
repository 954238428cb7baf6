"""`koderz perf`: whether patches make repositories faster, measured so that the answer holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from koderz.cli.console import print_json, say, warn
from koderz.cli.front import Front, run_options
from koderz.cli.groups import Json, LazyGroup, PanelCommand
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.plans.matrix import Matrix
    from koderz.suites.performance.given import Given
    from koderz.suites.performance.tasks import PerfTask

COMMANDS = {
    "opt-at-k": (
        "koderz.cli.opt_at_k:opt_at_k",
        "Grade predictions as GSO does: how often is one of K as good as a human.",
    ),
    "serve-bench": ("koderz.cli.serve_bench:serve_bench", "Put a server of completions under load, and time it."),
}
"""Command → the module that holds it, loaded when it is run, and its line of help."""

_NOBODY = "none"  # the model of an arm that asks none

Dataset = Annotated[Path | None, typer.Option("--dataset", metavar="FILE", help="A tasks.toml of your own.")]


class PerfGroup(LazyGroup):
    lazy = COMMANDS


app = typer.Typer(
    cls=PerfGroup,
    help="Measure whether patches make repositories faster, beside a human's answer.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def perf() -> None:
    """Measure whether patches make repositories faster, beside a human's answer."""


@app.command(cls=PanelCommand)
def tasks(dataset: Dataset = None, json: Json = False) -> None:
    """List the tasks: their commits, what is timed, and what that needs."""
    from koderz.suites.performance.sources import tasks_of

    found = tasks_of(dataset)
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
        say(f"{task.id:{width}}  {task.base_commit[:7]} → {task.human_commit[:7] or 'patch  '}  {task.kind}")


def _which(help_text: str, metavar: str, *flags: str) -> Any:
    return typer.Option(*flags, metavar=metavar, help=help_text, rich_help_panel="Tasks")


@app.command(cls=PanelCommand)
@run_options(suite="koderz-perf-mini", concurrency=4)
def run(
    front: Front,
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK] …", help="Ids of tasks. Default: all.")] = None,
    commit: Annotated[
        list[str] | None, _which("A task by 7 or more digits of its human commit; repeatable.", "COMMIT", "--commit")
    ] = None,
    commits_file: Annotated[
        Path | None, _which("A file of commits, the first word of each line.", "FILE", "--commits-file")
    ] = None,
    benchmark_type: Annotated[
        str | None, _which("Only tasks of this kind, such as workload.", "KIND", "--benchmark-type", "--type")
    ] = None,
    start_from: Annotated[
        str | None, _which("The first task: its index from 0, or a commit.", "N|COMMIT", "--start-from")
    ] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Measure only the arm baseline.")] = False,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="human|agent", help="Measure only this arm. Default: all three.")
    ] = None,
    agent_type: Annotated[
        list[str] | None,
        typer.Option("--agent-type", metavar="NAME", help="Whose patches of --patches; repeatable. Default: the only."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", "--skip-existing", help="Go on with the last run of the same plan, if any.")
    ] = False,
) -> None:
    """Measure baseline, human and agent on tasks; without options the embedded ones, on the simulated model."""
    from koderz.suites.performance.sources import tasks_of
    from koderz.suites.performance.tasks import chosen, read_commits

    if mode not in (None, "human", "agent"):
        raise KoderzError(f"--mode {mode}: human or agent")
    known = tasks_of(front.given.get("dataset"))
    named = [*(tasks or ()), *(commit or ()), *(read_commits(commits_file) if commits_file else ())]
    wanted = chosen(known, named) if named else [task.id for task in known]
    if start_from is not None:
        wanted = _begun(known, wanted, start_from)
    if benchmark_type is not None:
        wanted = [task.id for task in known if task.id in wanted and task.kind == benchmark_type]
    if not wanted:
        raise KoderzError("no task is left; koderz perf tasks lists them")
    given = {**front.given, "problems": tuple(wanted)}
    arms = ["baseline"] if baseline else [mode] if mode else ["baseline", "human", "agent"]
    agents: list[Agent] = []
    if "agent" in arms:
        given, agents = _agents(given, agent_type or (), [task for task in known if task.id in wanted])
    matrix = _matrix(arms, agents, wanted)
    if front.dry_run and not front.shown.json:
        _show_plan(
            [task for task in known if task.id in wanted][: given.get("limit")], [arm.name for arm in matrix.arms]
        )
    replace(front, given=given).run(matrix=matrix, figures=_show, resumes=resume)


def _begun(known: tuple[PerfTask, ...], wanted: list[str], start: str) -> list[str]:
    """Those from an index, or a commit, on."""
    from koderz.suites.performance.tasks import chosen

    ids = [task.id for task in known if task.id in wanted]
    if start.isdecimal() and len(start) < 7:
        return ids[int(start) :]
    (first,) = chosen(known, [start])
    if first not in ids:
        raise KoderzError(f"--start-from {start}: {first} isn't among the tasks")
    return ids[ids.index(first) :]


class Agent(NamedTuple):
    """Whose patches are measured: those of a file or folder, or without any those that a model writes."""

    name: str = ""
    given: Given | None = None


def _agents(
    given: dict[str, Any], names: Sequence[str], tasks: Sequence[PerfTask]
) -> tuple[dict[str, Any], list[Agent]]:
    """The settings with what the agents take, and the agents. Raises KoderzError where there is no patch."""
    from koderz.suites.performance.given import agents_in, read_agent, read_predictions

    if files := given.get("predictions"):
        given = {**given, "predictions": [str(Path(file).absolute()) for file in files]}
        return given, [Agent("", read_predictions([Path(file) for file in files], tasks))]
    folder = Path(given.get("patches") or "patches").absolute()
    if names or given.get("patches") or (folder.is_dir() and not given.get("local_model")):
        found = agents_in(folder)
        if not names and len(found) != 1:
            known = ", ".join(found) or "none"
            raise KoderzError(f"{folder} has the patches of {known}: choose with --agent-type NAME")
        return {**given, "patches": folder}, [Agent(name, read_agent(folder, name, tasks)) for name in names or found]
    if given.get("local_model"):
        return given, [Agent()]
    if not all(task.canned for task in tasks):
        raise KoderzError(
            f"there are no patches: {folder} isn't there; name files with --predictions, a folder with --patches, or "
            "have patches written with --model"
        )
    return {"local_model": "simulated", "max_iterations": 1, **given}, [Agent()]


def _matrix(arms: Sequence[str], agents: Sequence[Agent], tasks: Sequence[str]) -> Matrix:
    """The arms, and as many samples of each task as there are patches."""
    from koderz.plans.matrix import Matrix, MatrixArm, MatrixCells

    solvers = {"baseline": "patch:base", "human": "patch:human"}
    stated = [MatrixArm(arm, solver, _NOBODY) for arm, solver in solvers.items() if arm in arms]
    cells = [MatrixCells((arm.name,), None, 1) for arm in stated]
    for agent in agents:
        name = "agent" if len(agents) == 1 else f"agent · {agent.name}"
        if agent.given is None:
            stated.append(MatrixArm(name, "patching"))
            cells.append(MatrixCells((name,)))
            continue
        parameters = {"agent": agent.name} if agent.name else {}
        stated.append(MatrixArm(name, "patch:given", agent.given.model, parameters=parameters))
        counts = {task: len(agent.given.patches.get(task, ())) for task in tasks}
        cells += [MatrixCells((name,), (task,), count) for task, count in counts.items() if count]
        if without := [task for task, count in counts.items() if not count]:
            shown = ", ".join(without[:5]) + (", …" if len(without) > 5 else "")
            warn(f"note: {name} has no patch of {len(without)} tasks, which count as not opt: {shown}")
    return Matrix(Path("koderz perf run"), tuple(stated), tuple(cells))


def _show_plan(tasks: Sequence[PerfTask], arms: Sequence[str]) -> None:
    """The commits of a dry run, what is measured of them, and about how long that takes."""
    for task in tasks:
        say(f"{task.human_commit[:7] or '-':7}  {task.id}: {', '.join(arms)}; up to {task.needs.minutes:g} min")
    say(f"At most about {sum(task.needs.minutes for task in tasks):g} minutes")
    say()


@app.command(cls=PanelCommand)
def check(
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK] …", help="Ids or commits. Default: all.")] = None,
    dataset: Dataset = None,
    max_blocks: Annotated[int, typer.Option(metavar="N", min=7, help="Maximum number of blocks.")] = 30,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Maximum time of one leg.")] = 300.0,
    json: Json = False,
) -> None:
    """Check that base works and is as fast as itself, and the human's answer surely faster. Exit code 1 where not."""
    import asyncio

    from koderz.suites.performance.checking import check_tasks
    from koderz.suites.performance.measuring.verdicts import Rule
    from koderz.suites.performance.sources import tasks_of
    from koderz.suites.performance.tasks import chosen

    known = tasks_of(dataset)
    wanted = chosen(known, tasks) if tasks else [task.id for task in known]
    checking = check_tasks(
        [task for task in known if task.id in wanted],
        Rule(max_blocks=max_blocks),
        timeout,
        warn,
        None
        if json
        else lambda each: say(f"{'failed' if each.wrong else 'ok':6}  {each.id}: {each.wrong or each.told}"),
    )
    found = asyncio.run(checking)
    if json:
        print_json(found)
    raise typer.Exit(1 if any(each.wrong for each in found) else 0)


def _show(folder: Path) -> None:
    """A line a task: what each arm came to."""
    from tracker.summary import summarize

    summary = summarize(folder)
    for name, arm in summary.arms.items():
        say(f"{name}:")
        width = max((len(result.problem_id) for result in arm.results), default=0)
        for result in arm.results:
            say(f"  {result.problem_id:{width}}  {_told(result)}")
        for key, figures in arm.more.get("opt_at_k", {}).items() if name != "baseline" else ():
            low, high = figures["interval"] or (0.0, 1.0)
            say(f"  Opt@{key}: {100 * figures['value']:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %")


def _told(result: Any) -> str:
    metrics, facts = result.metrics or {}, result.facts
    parts = ["opt" if result.success else result.cause] if facts.get("opt") else []
    for key, shown in (("base", "of base"), ("human", "of human"), ("aa", "of itself")):
        value = metrics.get(f"speedup_{key}")
        if value and (key != "aa" or not parts):
            low, high = metrics.get(f"speedup_{key}_low"), metrics.get(f"speedup_{key}_high")
            bounds = f" [{low:.2f}, {high:.2f}]" if low and high else ""
            parts.append(f"{value:.2f}x {shown}{bounds}")
    if metrics.get("blocks"):
        parts.append(f"{metrics['blocks']:.0f} blocks")
    if facts.get("hack"):
        parts.append(f"hack: {facts['hack']}")
    if facts.get("tampering"):
        parts.append(f"dropped: {len(facts['tampering'])} changes of tests")
    return ", ".join(parts)
