"""`koderz verify`: redoes a run offline and compares it with its record."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import LINE_EVERY, print_json, say, warn
from koderz.cli.flags import Quiet, Results

if TYPE_CHECKING:
    from koderz.runs.verify import Verification

EXIT_DIFFERS, EXIT_NOT_ALL = 1, 3
_SHOWN = 10  # findings of each kind


def verify(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER|FILE|URL",
            help="A run, its folder or summary, a .zip or .tar.gz of it, or an https, hf, s3 or file address.",
        ),
    ],
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The tasks of a run that had a --dataset of its own.", exists=True),
    ] = None,
    max_size: Annotated[int, typer.Option(metavar="MB", help="The most that an archive may unpack to.", min=1)] = 2048,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")] = False,
    quiet: Quiet = False,
    *,
    results: Results,
) -> None:
    """Verify a run of anyone's: judge every program again, run every solver again over the recorded replies, compute
    the whole summary again, and compare all of it with the record.

    Needs no key and makes no call. Nothing that the run names is imported or opened, and its programs run contained.
    Exit code 0: nothing differs; 1: something does; 2: there is no run; 3: nothing differs, but not all of it could be
    done anew here.

    Examples:
        koderz verify latest
    """
    from koderz.runs.verify import verify_run
    from koderz.runs.verify.sources import found_run

    with found_run(run, results, max_size=max_size << 20) as (folder, summary):
        progress = _DoneLines(quiet=quiet or json)
        verification = asyncio.run(verify_run(folder, summary=summary, dataset=dataset, tell=progress))
    if json:
        print_json(verification.document())
    else:
        _show(verification)
    if not verification.verified:
        raise typer.Exit(EXIT_DIFFERS)
    raise typer.Exit(EXIT_NOT_ALL if verification.not_derived else 0)


def _show(found: Verification) -> None:
    unsteady = f", {len(found.unsteady)} unsteady" if found.unsteady else ""
    total = found.judged + found.unjudged
    _line("verdicts", f"{found.same} of {total} as recorded{unsteady} (judged here in {found.seconds:.1f} s)")
    if found.prompts:
        _line("prompts", f"{found.prompts - found.found['prompt']} of {found.prompts} as the suite asks them")
    wrong = found.found["figure"]
    if found.figures:
        _line("figures", f"{wrong} differ of {found.figures}" if wrong else f"all {found.figures} as recorded")
    for name, text in found.lines.items():
        _line(name, text)
    for where in found.unsteady[:_SHOWN]:
        _line("unsteady", where)
    for text in found.notes:
        _line("note", text)
    for text in found.not_derived:
        _line("not redone", text)
    _line("on trust", "; ".join(found.on_trust))
    for kind, count in found.found.items():
        own = [finding for finding in found.findings if finding.kind == kind]
        for finding in own[:_SHOWN]:
            say(f"DIFFERS    {kind}: {finding.where}: recorded {finding.recorded!r}, derived {finding.derived!r}")
        if count > len(own[:_SHOWN]):
            say(f"DIFFERS    {kind}: {count - len(own[:_SHOWN])} more; --json lists them")
    if not found.verified:
        say(f"NOT VERIFIED: {found.found.total()} differences")
    else:
        say("VERIFIED, but for what is not redone" if found.not_derived else "VERIFIED")


def _line(name: str, text: str) -> None:
    say(f"{name:<10} {text}")


class _DoneLines:
    """Prints now and then how many experiments are done."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._last = quiet, time.monotonic()

    def __call__(self, done: int, planned: int) -> None:
        if not self._quiet and time.monotonic() - self._last > LINE_EVERY:
            self._last = time.monotonic()
            warn(f"{done} of {planned} experiments verified")
