"""`koderz perf`: whether patches make repositories faster, measured so that the answer holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from koderz.cli.console import print_json, say
from koderz.cli.groups import Json, LazyGroup, PanelCommand

COMMANDS = {
    "serve-bench": ("koderz.cli.serve_bench:serve_bench", "Put a server of completions under load, and time it."),
}
"""Command → the module that holds it, loaded when it is run, and its line of help."""

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
