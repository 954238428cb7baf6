"""`koderz doctor`: what works here."""

from __future__ import annotations

from typing import Annotated

import typer

from koderz.cli.groups import PanelCommand

app = typer.Typer(help="What works here, and what to do about what does not.", rich_markup_mode=None)

_MARKS = {"ok": "ok     ", "missing": "missing", "broken": "BROKEN "}


@app.command(cls=PanelCommand)
def doctor(
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list of what was found, and nothing else.")
    ] = False,
) -> None:
    """Look at models, sandbox, results folder and configuration. Exit code 1 if something is broken."""
    import asyncio

    from koderz.cli.console import print_json, say
    from koderz.doctor import diagnose

    findings = asyncio.run(diagnose())
    if json:
        print_json(findings)
    else:
        for finding in findings:
            say(f"{_MARKS[finding.state]}  {finding.what:<12} {finding.detail}")
            if finding.remedy:
                say(f"{'':22}→ {finding.remedy}")
    raise typer.Exit(int(any(finding.state == "broken" for finding in findings)))
