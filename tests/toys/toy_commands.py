"""The command group `koderz toys`, how its runs are presented, and the toys' check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from koderz.cli.front import Front, run_options
from koderz.cli.groups import PanelCommand, new_group
from koderz.cli.session import Account
from koderz.runs.sinks import documented
from koderz.types import Finding
from koderz_tracker.records import Experiment, Record

app = new_group("Words to be said backwards.")


@app.callback()
def group() -> None:
    """Keep the name of the command, although there is one alone."""


@app.command(cls=PanelCommand)
@run_options(suite="toy", solver="toy-aloud", local_model="simulated")
def play(front: Front, book: Annotated[Path, typer.Option(metavar="DIR", help="Where the book goes.")]) -> None:
    """Have a model say all words backwards, and write a book of it."""
    about = {"output": str(book), "files": ["book.txt"]}
    front.run(complete=lambda plan: documented(plan, "toy-book", about))


class AloudAccount(Account):
    """How runs of the solver `toy-aloud` are presented."""

    def line_of(self, record: Record) -> str:
        return f"{record.problem_id} was said" if isinstance(record, Experiment) else ""

    def results(self, folder: Path) -> None:
        typer.echo(f"All was said in {folder.name}")


async def check(environ: Mapping[str, str]) -> list[Finding]:
    """Whether the toys are there."""
    if environ.get("TOY_CLOSED") == "broken":
        raise OSError("the box is stuck")
    return [Finding("toys", "ok", "six words")]
