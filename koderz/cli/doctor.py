"""`koderz doctor`: what works here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.groups import PanelCommand

if TYPE_CHECKING:
    from koderz.doctor import Finding

app = typer.Typer(help="What works here, and what to do about what does not.", rich_markup_mode=None)

_MARKS = {"ok": "ok", "missing": "missing", "broken": "BROKEN"}


@app.command(cls=PanelCommand)
def doctor(
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list of what was found, and nothing else.")
    ] = False,
) -> None:
    """Look at models, sandbox, results folder and configuration. Exit code 1 if something is broken."""
    import asyncio

    from koderz.analysis.blocks import Table
    from koderz.cli.console import print_json
    from koderz.cli.tables import print_blocks
    from koderz.doctor import diagnose

    findings = asyncio.run(diagnose())
    if json:
        print_json(findings)
    else:
        print_blocks([Table((), [row for finding in findings for row in _rows(finding)], ruled=False)])
    raise typer.Exit(int(any(finding.state == "broken" for finding in findings)))


def _rows(finding: Finding) -> Iterator[Sequence[str]]:
    yield _MARKS[finding.state], finding.what, finding.detail
    if finding.remedy:
        yield "", "", f"→ {finding.remedy}"
