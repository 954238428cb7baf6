"""`koderz optimize results`: the results of optimizers, also while they work."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import is_live, link, print_json, say, say_all, warn
from koderz.cli.flags import Results, complete_runs
from koderz.errors import KoderzError
from koderz.settings.options import without_effect

if TYPE_CHECKING:
    from koderz.systems.optimizers.analysis.gains import GainRow
    from koderz.systems.optimizers.analysis.runs import OptimizerRun, View

_CHOICE = 15  # runs that a terminal offers
_WATCH_INTERVAL = 30.0  # seconds
_ERRORS = 5  # failed tasks that are shown
_LOG_LINES = 20
_SPLITS = ("test", "validation", "train")  # in the order of what their scores say
_MARKS = {"Success": "✓", "Failed": "✗", "Pending": "⏳", "Running": "⏳"}


def results(
    list_runs: Annotated[bool, typer.Option("--list-runs", help="List the runs.")] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Which run. Default: the latest.", autocompletion=complete_runs
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again until it has ended.")
    ] = False,
    watch_interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="With --watch: time between two looks. Default: 30.",
            min=0.1,
            max=86_400,
        ),
    ] = None,
    detailed: Annotated[
        bool, typer.Option("--detailed", help="Show the scores of each task.")
    ] = False,
    show_errors: Annotated[
        bool, typer.Option("--show-errors", help="Show the errors of failed tasks whole.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only this task: both prompts, and the end of its log."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print it as JSON, and nothing else.")
    ] = False,
    *,
    results: Results,
) -> None:
    """Show what a run of optimizers has come to: its tasks, and whether each optimizer helps, by how much, how surely.

    Shows the run_… folders of the original benchmark runner as well.

    Examples:
        koderz optimize results
        koderz optimize results --detailed
    """
    from koderz.systems.optimizers.analysis.runs import View, found_run, latest_runs

    if list_runs and (run_id or watch or task or detailed or show_errors):
        raise KoderzError("--list-runs lists all runs; give it alone, or name one with --run-id")
    if watch_interval is not None and not watch:
        raise without_effect("--watch-interval", "--watch")
    if list_runs:
        _list([*_readable(latest_runs(results))], results, json=json)
        return
    if run_id is None and not json and sys.stdin.isatty() and sys.stdout.isatty():
        run_id = _choose(latest_runs(results, _CHOICE))
    path = _brought(results, run_id) if run_id else found_run(results, None)
    view = View(path)
    asyncio.run(_look(view))
    if watch:
        asyncio.run(_watch(view, watch_interval or _WATCH_INTERVAL, quiet=json))
    if task is not None:
        _show_task(view, task, json=json)
    elif json:
        print_json(view.as_json())
    else:
        _draw(view, detailed=detailed, whole_errors=show_errors)
    if view.status == "IN PROGRESS" and not (view.is_busy or view.is_foreign):
        warn(
            f"nobody works on this run; continue it with: koderz optimize run --resume-run-id {path.name}"
        )


def _readable(folders: Sequence[Path]) -> Iterator[OptimizerRun]:
    from koderz.systems.optimizers.analysis.runs import shown

    for folder in folders:
        try:
            yield shown(folder)
        except KoderzError as error:
            warn(f"note: {error}")


def _brought(results: Path, name: str) -> Path:
    """The run's folder, made anew if only the engine knows it."""
    from koderz.runs.resume import find_anywhere
    from koderz.systems.optimizers.analysis.runs import found_run

    try:
        return found_run(results, name)
    except KoderzError:
        folder = asyncio.run(find_anywhere(results, name, os.environ))
        return found_run(results, folder.name)


def _choose(folders: Sequence[Path]) -> str | None:
    """The run that the user chooses among the latest ones."""
    if len(folders) < 2:
        return None
    for number, folder in enumerate(folders, 1):
        say(f"{number:3}  {folder.name}")
    chosen: int = typer.prompt("Which run", default=1, type=int)
    if not 1 <= chosen <= len(folders):
        raise KoderzError(f"there is no run {chosen} in the list")
    return folders[chosen - 1].name


async def _look(view: View) -> None:
    await view.look()
    for note in view.notes:
        warn(f"note: {note}")
    view.notes.clear()


async def _watch(view: View, interval: float, *, quiet: bool) -> None:
    """Shows the run until it has ended, or nobody works on it any more."""
    line = ""
    while True:
        done = f"{view.count('Success', 'Failed')} of {len(view.tasks)} tasks completed, {view.count('Failed')} failed"
        if done != line and not quiet:
            if is_live() and sys.stdout.isatty():
                sys.stdout.write("\x1b[2J\x1b[H")
                _draw(view, detailed=False, whole_errors=False)
            else:
                say(f"{datetime.now():%H:%M:%S} {done}")
            line = done
        if view.status != "IN PROGRESS" or not (view.is_busy or view.is_foreign):
            return
        await asyncio.sleep(interval)
        await _look(view)


def _draw(view: View, *, detailed: bool, whole_errors: bool) -> None:
    """Prints the screen. Its lines are never broken; the table folds like others."""
    say(f"Run: {view.document['run_id']} - {view.status}")
    say_all(_configuration(view))
    say_all(_progress(view))
    say("All Tasks")
    for task in view.tasks:
        logs = link("View logs", _address(view.logs(task)))
        state = f"  • {task.get('id')}: {_MARKS[task['status']]} {task['status']}"
        say(f"{state} -" if logs else state, after=logs)
    if detailed:
        say_all(_details(view.tasks))
    _say_rows(view.rows())
    say_all(_errors(view.tasks, whole=whole_errors))


def _address(place: str) -> str:
    """The place of a log, as a terminal opens it."""
    return (
        Path(place).as_uri()
        if place.startswith("/") and is_live() and sys.stdout.isatty()
        else place
    )


def _say_rows(rows: Sequence[GainRow]) -> None:
    from koderz.cli.tables import print_blocks
    from koderz.systems.optimizers.analysis.report import row_blocks

    if rows:
        say()
        print_blocks(row_blocks(rows))


def _configuration(view: View) -> Iterator[str]:
    document = view.document
    generated = " (generated)" if any(record.generated for record in view.datasets.values()) else ""
    simulated = " (SIMULATED)" if document.get("simulated") else ""
    yield "Run Configuration"
    yield f"  Datasets:  {', '.join(document['demo_datasets'])}{generated}"
    yield f"  Optimizers: {', '.join(document['optimizers'])}"
    yield f"  Models:     {', '.join(document['models'])}{simulated}"
    yield f"  Test mode:  {bool(document.get('test_mode'))}"
    if not view.is_foreign:
        yield f"  Max concurrent: {view.plan.config.get('concurrency')}"


def _progress(view: View) -> Iterator[str]:
    total = max(len(view.tasks), len(view.document["tasks"]))
    done, right, failed = (
        view.count("Success", "Failed"),
        view.count("Success"),
        view.count("Failed"),
    )
    yield "Progress Summary"
    yield f"  Total tasks:     {total}"
    yield f"  Completed:       {done} ({100 * done / total if total else 0:.1f}%)"
    yield f"  Pending:         {total - done}"
    yield f"  Success:         {right}"
    yield f"  Failed:          {failed}"
    yield f"  Success rate:    {100 * right / done if done else 0:.1f}%"


def _details(tasks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "Detailed Results"
    for dataset in dict.fromkeys(str(task.get("dataset_name")) for task in tasks):
        yield f"  {dataset}:"
        for task in (task for task in tasks if str(task.get("dataset_name")) == dataset):
            seed = "" if task.get("seed") is None else f" (seed {task['seed']})"
            yield f"    {task.get('optimizer_name')} + {task.get('model_name')}{seed}:"
            yield from _scores(task)


def _scores(task: Mapping[str, Any]) -> Iterator[str]:
    before, after = _measured(task, "initial"), _measured(task, "optimized")
    if not after:
        yield f"      {task['status']}"
    for number, (name, (score, size)) in enumerate(after.items()):
        start = before.get(name, (None, None))[0]
        line = f"      {name}: {score:.3f}"
        if start is not None:
            gain = score - start
            arrow = "="
            if gain > 0:
                arrow = "↑"
            elif gain < 0:
                arrow = "↓"
            share = f" / {100 * gain / start:+.1f}%" if start else ""
            line = f"      {name}: {start:.3f} → {score:.3f} ({arrow} {gain:+.3f}{share})"
        line += f", n = {size}" if size else ""
        interval = task.get("interval")
        if (
            number == 0
            and isinstance(interval, list | tuple)
            and [*map(type, interval)] == [float, float]
        ):
            line += f", 95 % [{interval[0]:+.2f}, {interval[1]:+.2f}]"
        yield line


def _measured(task: Mapping[str, Any], which: str) -> dict[str, tuple[float, Any]]:
    """Scores and sizes by metric, from either format of an evaluation."""
    stage = {"initial": "initial", "optimized": "final"}[which]
    by_split = [_under(task, "evaluations", stage, split, "result", "metrics") for split in _SPLITS]
    candidates = (*by_split, _under(task, f"{which}_evaluation", "metrics"))
    metrics: list[Any] = next(
        (found for found in candidates if found and isinstance(found, list)), []
    )
    return {
        str(metric.get("metric_name")): (float(metric["score"]), metric.get("sample_size"))
        for metric in metrics
        if isinstance(_under(metric, "score"), int | float)
    }


def _under(value: Any, *keys: str) -> Any:
    """The value at a path of keys; None if there is none, since the file may be foreign."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _errors(tasks: Sequence[Mapping[str, Any]], *, whole: bool) -> Iterator[str]:
    failed = [task for task in tasks if task["status"] == "Failed"]
    if failed:
        yield "Failed Tasks"
    for task in failed if whole else failed[:_ERRORS]:
        message = str(task.get("error_message") or "no error is on record").strip()
        yield f"  • {task.get('id')}: {message if whole else message.splitlines()[0]}"
    if len(failed) > _ERRORS and not whole:
        yield f"  and {len(failed) - _ERRORS} more; see all with --show-errors"


def _show_task(view: View, name: str, *, json: bool) -> None:
    """Shows one task with both prompts and the end of its log."""
    found = next((task for task in view.tasks if task.get("id") == name), None)
    if found is None:
        known = ", ".join(str(task.get("id")) for task in view.tasks[:3])
        raise KoderzError(f"{view.document['run_id']} has no task {name!r}; it has {known}, …")
    if json:
        print_json(found)
        return
    from koderz.systems.optimizers.analysis.runs import log_of

    say(f"{name}: {_MARKS[found['status']]} {found['status']}")
    say_all(_scores(found))
    for title, key in (
        ("Initial prompt", "initial_prompt"),
        ("Optimized prompt", "optimized_prompt"),
    ):
        say(title)
        say_all(_prompt(found.get(key)))
    if found.get("error_message"):
        say(f"Error\n  {found['error_message']}")
    log = log_of(view.folder, found)
    if log.exists():
        say(f"Log ({log})")
        say_all(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _prompt(prompt: Any) -> Iterator[str]:
    """The lines of a prompt: its messages, or the texts of an early format."""
    if not isinstance(prompt, Mapping):
        yield "  none on record"
        return
    messages = prompt.get("messages") or [
        {"role": role, "content": prompt[role]} for role in ("system", "user") if prompt.get(role)
    ]
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            text = str(message.get("content")).replace("\n", "\n    ")
            yield f"  {message.get('role')}:\n    {text}"


def _list(found: Sequence[OptimizerRun], folder: Path, *, json: bool) -> None:
    from koderz.analysis.blocks import Table
    from koderz.cli.tables import print_blocks

    if json:
        print_json([asdict(run) for run in found])
    elif found:
        heads = ("RUN ID", "TIMESTAMP", "DATASETS", "OPTIMIZERS", "TOTAL TASKS")
        lines = [
            (
                run.run_id,
                run.timestamp,
                ", ".join(run.datasets),
                ", ".join(run.optimizers),
                str(run.total_tasks),
            )
            for run in found
        ]
        print_blocks([Table(heads, lines, (), ruled=False)])
    else:
        warn(f"{folder} holds no run of optimizers yet; make one with: koderz optimize run")
