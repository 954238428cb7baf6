"""`koderz publish` and `koderz pull`: whole runs to a folder or an address, and back."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from koderz.cli.console import counted, say, warn
from koderz.cli.flags import Quiet, Results, named_runs
from koderz.errors import KoderzError

_NAMED = 10  # places of secrets that are listed


def publish(
    runs: Annotated[list[str], named_runs(metavar="RUN…", help="Which runs.")],
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="A folder, or an hf:// or s3:// address.")],
    redact: Annotated[
        bool, typer.Option("--redact", help="Publish a copy with [redacted] in place of secrets, which says so.")
    ] = False,
    no_replies: Annotated[
        bool, typer.Option("--no-replies", help="Publish figures only: no prompt, reply or program.")
    ] = False,
    quiet: Quiet = False,
    *,
    results: Results,
) -> None:
    """Publish whole runs: summary, journal, blobs and SHA256SUMS.

    Only what is missing there, or has grown, is sent; the summary goes last. If it is broken off, the same command goes
    on. Anything that looks like a secret stops it with exit code 2 before a byte has left.

    Examples:
        koderz publish latest --to shared
    """
    from koderz.analysis.runs import find
    from koderz.analysis.story import journal_folder
    from koderz.runs.redaction import published_copy, secrets_in
    from koderz.runs.share import files_of, place_at
    from koderz.runs.share import publish as send

    folders = list(dict.fromkeys(journal_folder(find(results, name)) for name in runs))
    place = place_at(to)
    tell = (lambda _: None) if quiet else (lambda path: warn(f"sent {path}"))
    with TemporaryDirectory(prefix="koderz-publish-") as temporary:
        copies = [(folder, _summary_of(folder)) for folder in folders]
        if redact or no_replies:
            target = Path(temporary)
            copies = [published_copy(each, target, redact=redact, replies=not no_replies) for each in folders]
        found = [] if redact else [place for copy in copies for place in secrets_in(*copy, os.environ)]
        if found:
            named = "; ".join(map(str, found[:_NAMED]))
            raise KoderzError(f"{named}: looks like a secret. Nothing was sent; --redact publishes a copy without it")
        for folder, copy in zip(folders, copies, strict=True):
            sent = send(folder, place, files_of(*copy), tell)
            say(
                f"{folder.name}: {counted(sent, 'file')} sent to {to}" if sent else f"{folder.name}: is at {to} already"
            )


def pull(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A folder, or an https, hf or s3 address.")],
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN…]", help="Ids of runs. Default: all.")] = None,
    quiet: Quiet = False,
    *,
    results: Results,
) -> None:
    """Pull published runs into the results folder, each file checked by its digest.

    A file of the same name that is another is an error, and never overwritten. `koderz verify RUN` verifies them.

    Examples:
        koderz pull shared
    """
    from koderz.runs.share import place_at, runs_at
    from koderz.runs.share import pull as bring

    place = place_at(source)
    names = runs or runs_at(place)
    if not names:
        raise KoderzError(f"{source} holds no run")
    for name in names:
        tell = (lambda _: None) if quiet else (lambda path: warn(f"pulled {path}"))
        is_new = bring(place, name, results, tell=tell)
        say(f"{name}: {'pulled' if is_new else 'is here already'}")


def _summary_of(folder: Path) -> Path:
    summary = folder.with_suffix(".json")
    if not summary.is_file():
        raise KoderzError(f"{folder.name} has no summary; write it with: koderz benchmark resume {folder.name}")
    return summary
