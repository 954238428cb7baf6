"""`koderz rollouts`: runs agents on prepared repositories, as listed in a configuration."""

from __future__ import annotations

import difflib
import itertools
import os
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import OutputOptions, print_json, say, say_all, warn, writing
from koderz.cli.flags import Quiet, SummaryJson, Trust, Wait
from koderz.cli.front import AcceptChanges, Front, run_options, take_up
from koderz.cli.groups import PanelCommand, new_group
from koderz.cli.options import changeable, with_settings
from koderz.engines.sources import OWN, SOLVING
from koderz.errors import KoderzError
from koderz.settings.schema import OF_PROGRAMS
from koderz.systems.rollouts.commands.tasks import audit, check, clean, needs, regrade
from koderz_tracker.files import write_whole

if TYPE_CHECKING:
    from koderz.settings.schema import Settings
    from koderz.suites.matrix import Matrix
    from koderz.systems.rollouts.options import RolloutsOptions
    from koderz.systems.rollouts.results import Benchmark
    from koderz.systems.rollouts.results.files import Place
    from koderz.systems.rollouts.tasks.config import Config

DATA = Path("data")
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Where files are: rollouts/ and runs/.")
]
Latest = Annotated[bool, typer.Option("--latest", help="The newest, which is the default.")]
Stamp = Annotated[
    str | None,
    typer.Option("--rollout", metavar="STAMP", help="Those of then, or the newest that begins so."),
]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A configuration's name, or a folder rollouts/NAME/STAMP."),
]
TOLD = {
    "dataset": "In place of CONFIG: a task's folder, a folder of such, a .jsonl of SWE-bench rows, or "
    "NAME[@VERSION] of --registry. Default: the embedded tasks.",
    "local_model": "The model of every entry. Default: the entry's own; without CONFIG simulated.",
    "concurrency": "The same as --parallel. Default: CONFIG's parallel.",
    "sandbox": "Where commands of every entry run: local, docker, podman, modal or uncontained. Default: the "
    "entry's own, else SANDBOX_BACKEND, else docker if it answers, else local.",
}
"""The help of settings whose meaning differs here."""

_WITHOUT_MODEL = ("oracle", "nop", "scripted")

app = new_group(
    "Have agents work on prepared repositories, graded by hidden tests.",
    examples=["koderz rollouts run", "koderz rollouts summarize sample"],
)


def own(help_text: str, metavar: str | None, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, metavar=metavar, help=help_text, rich_help_panel="Rollouts", **more)


WITHOUT: Mapping[str, str] = {
    **dict.fromkeys({*OF_PROGRAMS} - {"sandbox", "docker_image"}, ""),
    **dict.fromkeys(("suite", "problems", "limit", "shuffle"), "the tasks of CONFIG"),
    **dict.fromkeys(SOLVING, "--agent"),
    "samples": "--rollouts",
}
"""The settings that commands of rollouts don't take, and what stands in their place."""


@app.command(cls=PanelCommand)
@run_options(without=WITHOUT, told=TOLD, suite="rollouts")
def run(
    front: Front,
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="A TOML file with [[tasks]].")
    ] = None,
    agent: Annotated[str | None, own("The agent of every entry.", "NAME")] = None,
    rollouts: Annotated[
        int | None, own("Rollouts of every entry.", "N", min=1, max=100_000)
    ] = None,
    parallel: Annotated[int | None, own("Rollouts at work at once.", "N", min=1, max=4096)] = None,
    timeout_sec: Annotated[
        float | None, own("The agent's time, in every entry.", "SECONDS", min=1)
    ] = None,
    data: Annotated[Path, own("Where files are: rollouts/ and runs/.", "DIR")] = DATA,
    verbose: Annotated[
        int,
        own(
            "Lines without icons; -vv: what agents and tests say.",
            None,
            "-v",
            "--verbose",
            count=True,
        ),
    ] = 0,
) -> None:
    """Run rollouts of a configuration or a dataset; without either of the embedded tasks, on the simulated model.

    Examples:
        koderz rollouts run
        koderz rollouts run tasks/sample.toml --agent oracle
    """
    from koderz.systems.rollouts.results.screen import RolloutsScreen

    if timeout_sec is not None:
        front = replace(front, values={**front.values, "agent_timeout": timeout_sec})
    front, place = stated(
        front, config, agent=agent, rollouts=rollouts, parallel=parallel, data=data
    )
    at_once = {**front.usual, **front.values}["concurrency"]
    screen = RolloutsScreen(front.shown, verbose, at_once, len(place.config.entries))
    try:
        front.run(matrix=place.matrix, screen=screen, complete=place.documented)
    finally:
        place.release()


def stated(
    front: Front,
    config: Path | None,
    *,
    agent: str | None,
    rollouts: int | None,
    parallel: int | None = None,
    data: Path = DATA,
    is_own: bool = False,
) -> tuple[Front, Place]:
    """The run of a configuration or a dataset as its options describe it, with its arms and the place of its files.

    `is_own`: koderz made the configuration of what the user named, so that it is trusted, and not spoken of.
    Raises KoderzError for what can't be run here.
    """
    import asyncio

    from koderz.suites import load_suite
    from koderz.systems.rollouts.options import RolloutsOptions, usual_sandbox
    from koderz.systems.rollouts.results.files import Place
    from koderz.systems.rollouts.suite import SAMPLE, RolloutsSuite
    from koderz.systems.rollouts.tasks.config import read_config

    given = dict(front.values)
    if "sandbox" in given:  # which is for every entry
        given.setdefault("entry_sandbox", False)
    settings = usual_settings(given, trust_config=front.trust_config)
    options = settings.of(RolloutsOptions)
    settled = _settled(options)
    if config and "dataset" in given:
        raise KoderzError(f"{config} and --dataset {given['dataset']}: give one of them")
    path = given.setdefault("dataset", config or SAMPLE / "sample.toml")
    if config or path.suffix == ".toml":
        entered = read_config(path, options.variables)
        _require_trusted(entered, settled, grant=front.trust_config or is_own)
    if options.images and not options.images.is_dir():
        raise KoderzError(f"--images: there is no folder {options.images}")
    if "sandbox" not in given:
        given["sandbox"] = asyncio.run(usual_sandbox(os.environ))
    suite = load_suite("rollouts", path, replace(settings, sandbox=given["sandbox"]))
    assert isinstance(suite, RolloutsSuite)
    # several samples, as one alone is asked at another temperature
    most = rollouts or max((entry.rollouts for entry in suite.config.entries), default=1)
    usual = {**front.usual, "concurrency": parallel or suite.config.parallel, "samples": most}
    found = suite.config.having({task.id for task in suite.tasks})
    if options.skip_unrunnable:
        found = _taken(found, agent)
    if not (front.shown.json or is_own):
        _say_sandboxes(found, settled, given["sandbox"])
    matrix = matrix_of(
        found,
        agent=agent,
        model=given.get("local_model") or ("simulated" if path == SAMPLE / "sample.toml" else None),
        usual_model=settings.local_model,
        rollouts=rollouts,
        judges="judge_model" not in given,
        without=settled,
    )
    front = replace(front, values=given, usual=usual, suite=suite)
    return front, Place(data, found, str(path), matrix)


def _say_sandboxes(config: Config, settled: Collection[str], usual: str) -> None:
    own = [] if "sandbox" in settled else [entry.sandbox or usual for entry in config.entries]
    say(f"[rollouts] sandbox={', '.join(dict.fromkeys(own or [usual]))}")


def _taken(config: Config, agent: str | None) -> Config:
    """The entries whose agent can be given what is added to their tasks. Raises KoderzError if there are none."""
    from koderz.systems.rollouts.agents.adapters import require_taken

    own = {task.id: [each for each in task.additions if each.inside] for task in config.tasks}
    pairs = zip(config.of_entries, config.entries, strict=True)
    refused = dict[str, str]()
    for task_id, name in sorted({(task, agent or entry.agent) for task, entry in pairs}):
        try:
            require_taken(name, own[task_id])
        except KoderzError as error:
            refused[task_id] = str(error)
            warn(f"{task_id} is left out: {error}")
    if refused and own.keys() <= refused.keys():
        why = next(iter(refused.values()))
        raise KoderzError(f"{config.path}: no task can run here; the first: {why}")
    return config.having(own.keys() - refused)


def _require_trusted(config: Config, settled: Collection[str], *, grant: bool) -> None:
    """Raises KoderzError for a risky configuration, unless it is trusted."""
    from koderz.settings.trust import require_trust
    from koderz.systems.rollouts.tasks.config import risks_of

    for where, risk in risks_of(config, settled).items():
        require_trust(config.text.encode(), f"{where}: this could {risk}", grant=grant)


def usual_settings(given: Mapping[str, Any], *, trust_config: bool) -> Settings:
    """The defaults for entries, or values for all of them, from any source; `local_model` except from flags."""
    from koderz.engines.sources import read_sources, schema_here
    from koderz.systems.rollouts.options import RolloutsOptions

    own = {field.name for field in fields(RolloutsOptions)}
    flags = {name: value for name, value in given.items() if name in own}
    schema = schema_here({**given, "suite": "rollouts"}, scope=OWN)
    names = {"local_model", *own}
    return read_sources(flags, names=names, schema=schema, trust_config=trust_config).settings


def _settled(options: RolloutsOptions) -> set[str]:
    """The settings of entries that the run overrides."""
    own = {"sandbox": not options.entry_sandbox, "timeout_sec": options.agent_timeout is not None}
    return {name for name, is_settled in own.items() if is_settled}


def matrix_of(
    config: Config,
    *,
    agent: str | None,
    model: str | None,
    rollouts: int | None,
    usual_model: str | None = None,
    judges: bool = True,
    without: Collection[str] = (),
) -> Matrix:
    """The entries as arms and cells; given values replace those of entries. KoderzError if an agent lacks a model.

    `usual_model` stands where an entry names none. Without `judges` the run names one model for all that entries name;
    `without` are settings of entries that it has its own word on.
    """
    from koderz.suites.matrix import Matrix, MatrixArm, MatrixCells
    from koderz.systems.rollouts.agents.adapters import require_taken
    from koderz.systems.rollouts.tasks.config import Variants, found_beside, settings_label

    arms: dict[tuple[object, ...], MatrixArm] = {}
    cells = []
    stated = Variants(config).of_entries(without)
    added = {each.id: each.additions for each in config.tasks}
    for number, (entry, (task, settings)) in enumerate(zip(config.entries, stated, strict=True), 1):
        name = agent or entry.agent
        where = "--agent" if agent else config.where(number, "agent")
        _require_agent(name, where)
        require_taken(name, added[config.of_entries[number - 1]], f"{where}: ")
        answering = model or entry.model or usual_model
        if name in ("oracle", "nop") or (name == "scripted" and not answering):
            answering = "simulated"
        if answering is None:
            where = config.where(number, "")
            raise KoderzError(
                f"{where}: the agent {name} needs a model: name it there, or with --model"
            )
        script = (
            str(found_beside(config.path, entry.script).absolute())
            if entry.script and name == "scripted"
            else None
        )
        if name == "scripted" and not (script and Path(script).is_file()):
            missing = f"; there is no file {entry.script}" if entry.script else ""
            where = config.where(number, "script")
            raise KoderzError(f'{where}: the agent scripted needs a file: script = "FILE"{missing}')
        judge = entry.judge_model if judges else None
        key = (name, answering, script, judge, *(settings or {}).items())
        if key not in arms:
            parts = [
                name,
                *([] if name in _WITHOUT_MODEL and answering == "simulated" else [answering]),
                *([Path(script).name] if script else []),
            ]
            parts += [f"judged by {judge}"] if judge else []
            parts += filter(None, [settings_label(settings or {})])
            parameters: dict[str, Any] = {"script": script} if script else {}
            roles = {"judge": judge} if judge else {}
            called = _other_than([arm.name for arm in arms.values()], " · ".join(parts))
            arms[key] = MatrixArm(
                called, f"agent:{name}", answering, roles, parameters, settings=settings
            )
        cells.append(MatrixCells((arms[key].name,), (task,), rollouts or entry.rollouts))
    return Matrix(tuple(arms.values()), tuple(cells), str(config.path))


def _require_agent(name: str, where: str) -> None:
    """Raises KoderzError, which suggests the nearest name, for an unknown agent."""
    from koderz.settings.systems import names_of
    from koderz.solvers import SOLVERS
    from koderz.systems.rollouts.agents.adapters import ACP, adapter_of

    others = names_of("agents")
    if name.startswith(ACP):
        adapter_of(name)
    elif f"agent:{name}" not in SOLVERS and name not in others:
        known = sorted(
            {
                *others,
                *(each.removeprefix("agent:") for each in SOLVERS if each.startswith("agent:")),
            }
        )
        near = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise KoderzError(f"{where}: there is no agent {name!r}; {meant}")


def _other_than(names: Sequence[str], name: str) -> str:
    """The name, with a number behind it if another arm has it: two scripts or settings may have the same name."""
    numbered = (f"{name} #{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in names)


@app.command(cls=PanelCommand)
def summarize(
    name: Name,
    latest: Latest = False,
    rollout: Stamp = None,
    data: Data = DATA,
    json: SummaryJson = False,
) -> None:
    """Sum up rollouts: a row each, averages, and each task's mean and best.

    Examples:
        koderz rollouts summarize sample
    """
    from koderz.systems.rollouts.results import summary_figures, table_lines

    found = _find(data, name, latest, rollout)
    if json:
        print_json({"rollout_dir": str(found.folder), **summary_figures(found)})
        return
    lines = [*table_lines(found.rows, str(found.folder))]
    say_all(lines)
    file = found.folder / "summary.md"
    with writing(file):
        write_whole(file, ["\n".join([*lines, ""]).encode("utf-8", "backslashreplace")])
    say(f"[rollouts] summary.md written: {file}")


@app.command(name="eval", cls=PanelCommand)
@with_settings(*changeable(), "results")
def evaluate(
    name: Name,
    given: dict[str, Any],
    latest: Latest = False,
    rollout: Stamp = None,
    data: Data = DATA,
    json: SummaryJson = False,
    quiet: Quiet = False,
    wait: Wait = False,
    trust_config: Trust = False,
    accept_changes: AcceptChanges = False,
) -> None:
    """Grade the recorded diffs of rollouts again, as koderz benchmark rescore does. No agent and no model is asked.

    Examples:
        koderz rollouts eval sample
    """
    from koderz.systems.rollouts.results.screen import EvaluationScreen

    found = _find(data, name, latest, rollout)
    shown = OutputOptions(json=json, quiet=quiet, wait=wait)
    run = found.manifest.get("benchmark_run_id")
    if not run:
        raise KoderzError(
            f"{found.folder} was made by another program, whose diffs aren't on record"
        )
    take_up(
        run,
        given,
        shown,
        screen=EvaluationScreen(shown, found.folder),
        how="rescore",
        accept_changes=accept_changes,
        trust_config=trust_config,
    )


def _find(data: Path, name: str, latest: bool, stamp: str | None) -> Benchmark:
    from koderz.systems.rollouts.results import find_rollouts

    if latest and stamp:
        raise KoderzError("--latest and --rollout: give one of them")
    return find_rollouts(data, name, stamp)


app.command(cls=PanelCommand)(regrade)
app.command(cls=PanelCommand)(check)
app.command(cls=PanelCommand)(audit)
app.command(cls=PanelCommand)(needs)
app.command(cls=PanelCommand)(clean)


@app.command(cls=PanelCommand)
def sample(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where they are written; it isn't there yet.")
    ],
) -> None:
    """Write the embedded tasks and a configuration of them: koderz rollouts run DIR/sample.toml.

    Examples:
        koderz rollouts sample tasks
    """
    from koderz.systems.rollouts.suite import SAMPLE

    if folder.exists():
        raise KoderzError(f"{folder} is there already")
    shutil.copytree(SAMPLE, folder)
    say(
        f"{folder}: run them with: koderz rollouts run {shlex.quote(str(folder / 'sample.toml'))} --model MODEL"
    )
