"""`koderz doctor`: checks of the installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from koderz.cli.console import counted, print_json, say, warn
from koderz.cli.flags import Json
from koderz.cli.options import with_settings
from koderz.settings.toml import results_folder

_MARKS = {"ok": "ok", "missing": "missing", "broken": "BROKEN"}


@with_settings("results")
def doctor(
    given: dict[str, Any],
    repair: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Copy what can be read of a damaged run into RUN_repaired, and look at nothing else.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look at models, sandbox, results folder and configuration. Exit code 1 if something is broken.

    Examples:
        koderz doctor
        koderz doctor --json
    """
    if repair is not None:
        _repair(results_folder(given.get("results")), repair, json=json)
        return
    import asyncio

    from koderz.analysis.blocks import Table
    from koderz.cli.tables import print_blocks
    from koderz.doctor import diagnose

    findings = asyncio.run(diagnose(given.get("results")))
    if json:
        print_json(findings)
    else:
        rows: list[Sequence[str]] = []
        for finding in findings:
            rows.append((_MARKS[finding.state], finding.what, finding.detail))
            if finding.remedy:
                rows.append(("", "", f"→ {finding.remedy}"))
        print_blocks([Table((), rows, ruled=False)])
    raise typer.Exit(int(any(finding.state == "broken" for finding in findings)))


def _repair(results: Path, name: str, *, json: bool) -> None:
    """Prints the damage line by line, and the folder of the copy without it."""
    from koderz_tracker.merge import repair
    from koderz_tracker.runs import find_run

    folder = find_run(results, name)
    found = repair(folder)
    if json:
        print_json({**asdict(found), "folder": str(found.folder) if found.folder else None})
        return
    for byte, length, problem in found.damaged:
        say(f"byte {byte}: {counted(length, 'byte')} left out: {problem}")
    for byte in found.doubled:
        say(f"byte {byte}: left out: the line stands there twice")
    for problem in found.lost:
        say(f"{problem}; its line is kept")
    if found.folder is None:
        say(f"{folder.name}: nothing to repair in {counted(found.kept, 'line')}")
        return
    say(f"{found.folder}: {counted(found.kept, 'line')} kept; the original is as it was")
    here, aside = quote(str(folder)), quote(f"{folder}_damaged")
    warn(
        f"put it in the run's place with: mv {here} {aside} && mv {quote(str(found.folder))} {here}"
    )
