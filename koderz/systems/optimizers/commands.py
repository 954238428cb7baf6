"""`koderz optimize`: prompt optimizers compared, each on each dataset for each model, with the same budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from koderz.cli.console import warn
from koderz.cli.front import Front, run_options, take_up
from koderz.cli.groups import LazyGroup, PanelCommand, new_group
from koderz.errors import KoderzError
from koderz.settings.schema import OF_PROGRAMS
from koderz.systems.optimizers.datasets import BASELINE, OPTIMIZERS
from koderz.systems.optimizers.datasets.options import SearchOptions
from koderz.systems.optimizers.solvers.originals import DIFFERS

CONCURRENCY = 5
TEST_BUDGET = 150
# `koderz.systems.optimizers.analysis.gains.FEWEST_SEARCHES`, which loads more than help takes
SEEDS = 5
_MOST_CONNECTIONS = 4096
_CHECK = "optimize results --watch --run-id"
_HELP = {
    "suite": "The suite. Default: datasets.",
    "problems": "Only these datasets, by id or index, separated by commas.",
    "samples": f"The same as --seeds. Default: {SEEDS}.",
    "local_model": "The same as --models, one at a time; repeatable.",
    "matrix": "A TOML file that lists arms and cells, instead of --optimizers.",
    "concurrency": f"The same as --max-concurrent. Default: {CONCURRENCY}.",
    "max_connections": "Maximum calls in flight to one provider. Default: --max-concurrent times --item-concurrency.",
}

COMMANDS = {
    "results": (
        "koderz.systems.optimizers.results:results",
        "Show what a run has come to, also while it goes on.",
    )
}
"""Each command's module, which is loaded when it runs, and its line of help."""


class OptimizeGroup(LazyGroup):
    lazy = COMMANDS


app = new_group(
    "Compare prompt optimizers: whether they help at all, by how much, and how surely.",
    OptimizeGroup,
    ["koderz optimize run --model simulated --test-mode --yes", "koderz optimize results"],
)


@app.callback()
def optimize() -> None:
    """Compare prompt optimizers: whether they help at all, by how much, and how surely."""


def _option(help_text: str, metavar: str | None = None, *flags: str, **more: Any) -> Any:
    return typer.Option(
        *flags, metavar=metavar, help=help_text, rich_help_panel="Optimizers", **more
    )


@app.command(
    cls=PanelCommand, epilog="\n\n".join(f"{name}: {text}" for name, text in DIFFERS.items())
)
@run_options(
    without=dict.fromkeys(OF_PROGRAMS, "")
    | dict.fromkeys(("mode", "solver", "solvers"), "--optimizers"),
    parts=(("solver", BASELINE),),
    offered=(("suite", "datasets"),),
    told=_HELP,
    suite="datasets",
    seed=42,
    samples=SEEDS,
    temperature=0.0,
    concurrency=CONCURRENCY,
)
def run(
    front: Front,
    models: Annotated[
        list[str] | None,
        _option(
            "The models that prompts are for. Default: koderz.toml's, else the usual one.",
            "NAME …",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        _option(
            f"How many seeds from --seed on. Default: {SEEDS}, the fewest that tell of an optimizer; in test mode 1.",
            "N",
            min=1,
            max=1000,
        ),
    ] = None,
    max_concurrent: Annotated[
        int | None,
        _option(
            f"Maximum concurrent experiments, or containers. Default: {CONCURRENCY}.", "N", min=1
        ),
    ] = None,
    checkpoint_dir: Annotated[Path | None, _option("The results folder.", "DIR")] = None,
    config: Annotated[
        Path | None,
        _option(
            "A manifest of opik's benchmark runner, in place of datasets, optimizers and models.",
            "FILE",
        ),
    ] = None,
    modal: Annotated[bool, _option("Submit to Modal and return: --engine modal --detach.")] = False,
    resume_run_id: Annotated[
        str | None, _option("Resume this run where it stopped.", "RUN")
    ] = None,
    retry_failed_run_id: Annotated[
        str | None, _option("Run what failed in this run again.", "RUN")
    ] = None,
    yes: Annotated[bool, _option("Begin without asking.", None, "--yes", "-y")] = False,
) -> None:
    """Run prompt optimizers on datasets: each on each dataset for each model and seed, with one budget of metric calls.

    The initial prompt (none) is measured on the test items as well, once: its scores are every other's baseline.

    Examples:
        koderz optimize run --model simulated --test-mode --yes
        koderz optimize run --optimizers few_shot --models simulated --dry-run
    """
    values, front = dict(front.values), replace(front, shown=replace(front.shown, check=_CHECK))
    if checkpoint_dir is not None:
        values["results"] = checkpoint_dir
    if resume_run_id or retry_failed_run_id:
        if resume_run_id and retry_failed_run_id:
            raise KoderzError("--resume-run-id and --retry-failed-run-id: give one of them")
        _take_up(
            front,
            values,
            resume_run_id or retry_failed_run_id or "",
            "resume" if resume_run_id else "retry",
        )
        return
    matrix = _of_manifest(config, values, models) if config else None
    if models and "local_model" in values:
        raise KoderzError("--models and --model say the same: give one of them")
    values |= _models(models or ()) | _sizes(values, seeds, max_concurrent, modal=modal)
    if matrix is None and values.get("suite", "datasets") != "datasets":
        matrix = _of_another_suite(values)
    front = replace(front, values=values, detach=front.detach or modal)
    front.run(matrix=matrix, asks_first=not yes)


def _take_up(front: Front, given: Mapping[str, Any], run: str, how: str) -> None:
    """Resumes or retries a run. Its record supplies all options except those that may change."""
    from koderz.cli.options import addresses, changeable

    if run.startswith("run_"):
        raise KoderzError(
            f"{run} was made by another program, whose calls aren't on record: it can be shown, not taken up again"
        )
    changes = {
        name: value
        for name, value in given.items()
        if name in (*changeable(), *addresses(), "results")
    }
    take_up(
        run, changes, front.shown, how=how, trust_config=front.trust_config, detach=front.detach
    )


def _models(names: Sequence[str]) -> dict[str, Any]:
    found = [word for text in names for word in text.replace(",", " ").split()]
    if not found:
        return {}
    return {"local_model": found[0], **({"models": found} if len(found) > 1 else {})}


def _sizes(
    given: Mapping[str, Any], seeds: int | None, at_once: int | None, *, modal: bool
) -> dict[str, Any]:
    """The settings for the amount of work, and for how much of it runs at once."""
    found: dict[str, Any] = {"samples": seeds} if seeds else {}
    if given.get("test_mode"):
        found = {"samples": 1, "budget_calls": TEST_BUDGET} | found
    at_once = at_once or given.get("concurrency") or CONCURRENCY
    if modal or given.get("engine") == "modal":
        found |= {"engine": "modal", "max_containers": at_once}
    requests = at_once * (given.get("item_concurrency") or SearchOptions().item_concurrency)
    found |= {"concurrency": at_once, "max_connections": min(requests, _MOST_CONNECTIONS)}
    named = ("samples", "budget_calls", "max_connections", "max_containers")
    return found | {
        name: given[name] for name in named if name in given and (name != "samples" or not seeds)
    }


def _of_another_suite(values: dict[str, Any]) -> Any:
    """The arms on tasks of a suite that reads no options of datasets, such as one's own; they leave `values`.

    Raises KoderzError for other options of datasets.
    """
    from koderz.engines.sources import schema_here, use_of_flag
    from koderz.settings.options import fields_of, flag_of
    from koderz.systems.optimizers.datasets.arms import arms_of
    from koderz.systems.optimizers.datasets.options import DatasetOptions

    stated = {
        name: values.pop(name) for name in ("optimizers", "optimizer_params") if name in values
    }
    unread = fields_of(DatasetOptions).keys() - schema_here(values).fields.keys()
    if idle := next((flag_of(name) for name in values if name in unread), ""):
        raise KoderzError(f"{idle} has no effect here: {use_of_flag(idle)}")
    matrix, notes = arms_of(DatasetOptions(**stated))
    for note in notes:
        warn(f"note: {note}")
    return matrix


def _of_manifest(path: Path, values: dict[str, Any], models: Sequence[str] | None) -> Any:
    """The matrix of a manifest's tasks; its settings are added to `values`, where they aren't given.

    Raises KoderzError for a manifest that can't be run, and for options that say what it says.
    """
    from koderz.solvers import SOLVERS, load_solver
    from koderz.suites.matrix import Matrix, MatrixArm, MatrixCells
    from koderz.systems.optimizers.datasets.arms import given_way
    from koderz.systems.optimizers.manifests import read_manifest

    others = {"demo_datasets", "local_model", "optimizers", "optimizer_params"}
    if models or others & values.keys():
        raise KoderzError(
            "--config names datasets, optimizers, their parameters and models: give it without these"
        )
    manifest = read_manifest(path)
    values["optimizers"] = ()  # those of koderz.toml, which would be recorded, take no part
    # each task once, as there
    usual = {"seed": manifest.seed, "test_mode": manifest.test_mode or None, "samples": 1}
    usual |= {f"{split}_items": size for split, size in manifest.sizes.items()}
    values |= {
        name: value for name, value in usual.items() if value is not None and name not in values
    }
    values["demo_datasets"] = tuple(dict.fromkeys(task.dataset for task in manifest.tasks))
    arms, cells, left_out = dict[str, MatrixArm](), dict[tuple[str, str], MatrixCells](), set[str]()
    for task in manifest.tasks:
        if not SOLVERS.has(task.optimizer):
            raise KoderzError(
                f"--config {path}: there is no optimizer {task.optimizer!r}; there are {', '.join(OPTIMIZERS)}"
            )
        known = load_solver(task.optimizer, {}, {}).signature
        own = {name: value for name, value in task.parameters.items() if name in known}
        left_out |= {
            f"{task.optimizer}'s {name}" for name in task.parameters.keys() - own.keys()
        } | {*task.unused}
        for note in given_way(f"--config {path}", task.optimizer, own):
            warn(f"note: {note}")
        name = f"{task.optimizer} · {task.model}"
        same = [each for each in arms if each == name or each.startswith(f"{name} #")]
        name = next((each for each in same if arms[each].parameters == own), "") or (
            f"{name} #{len(same) + 1}" if same else name
        )
        baseline = f"{BASELINE} · {task.model}"
        arms.setdefault(baseline, MatrixArm(baseline, BASELINE, task.model))
        arms[name] = MatrixArm(name, task.optimizer, task.model, parameters=own, baseline=baseline)
        cells[baseline, task.dataset] = MatrixCells((baseline,), (task.dataset,), 1)
        cells[name, task.dataset] = MatrixCells((name,), (task.dataset,))
    if left_out:
        warn(f"note: {path}: without an effect here: {', '.join(sorted(left_out))}")
    return Matrix(tuple(arms.values()), tuple(cells.values()), str(path))
