"""`koderz publish`, `koderz pull` and `koderz verify`: whole runs for others, back, and redone offline."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import LINE_EVERY, counted, print_json, say, say_all, warn
from koderz.cli.flags import Quiet, Results, named_runs
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.systems.publishing.verify import Verification


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
    from koderz.systems.publishing.redaction import published_copy, secrets_in
    from koderz.systems.publishing.share import files_of, place_at
    from koderz.systems.publishing.share import publish as send

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
    max_size: Annotated[int, typer.Option(metavar="MB", help="The most that a run may hold.", min=1)] = 2048,
    quiet: Quiet = False,
    *,
    results: Results,
) -> None:
    """Pull published runs into the results folder, each file checked by its digest.

    A file of the same name that is another is an error, and never overwritten. `koderz verify RUN` verifies them.

    Examples:
        koderz pull shared
    """
    from koderz.systems.publishing.share import place_at, runs_at
    from koderz.systems.publishing.share import pull as bring

    place = place_at(source)
    names = runs or runs_at(place)
    if not names:
        raise KoderzError(f"{source} holds no run")
    for name in names:
        tell = (lambda _: None) if quiet else (lambda path: warn(f"pulled {path}"))
        is_new = bring(place, name, results, max_size=max_size << 20, tell=tell)
        say(f"{name}: {'pulled' if is_new else 'is here already'}")


def _summary_of(folder: Path) -> Path:
    summary = folder.with_suffix(".json")
    if not summary.is_file():
        raise KoderzError(f"{folder.name} has no summary; write it with: koderz benchmark resume {folder.name}")
    return summary


EXIT_DIFFERS, EXIT_NOT_ALL = 1, 3
_SHOWN = 10  # findings of each kind


def verify(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER|FILE|URL",
            help="A run, its folder, summary or archive, an https, hf, s3 or file address, or a leaderboard.",
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
    done anew here, or experiments are missing from its figures.

    Examples:
        koderz verify latest
    """
    from koderz.analysis.boards import is_board, verify_board
    from koderz.systems.publishing.verify import verify_run
    from koderz.systems.publishing.verify.sources import found_run

    if is_board(Path(run)):
        differing = verify_board(Path(run), results)
        print_json({"verified": not differing, "differences": differing}) if json else say_all(
            differing or ["VERIFIED: its inputs give this leaderboard"]
        )
        raise typer.Exit(EXIT_DIFFERS if differing else 0)
    with found_run(run, results, max_size=max_size << 20) as (folder, summary):
        progress = _DoneLines(quiet=quiet or json)
        verification = asyncio.run(verify_run(folder, summary=summary, dataset=dataset, tell=progress))
        own = folder.name if folder.parent.resolve() == results.resolve() else ""
    if json:
        print_json(verification.document())
    else:
        _show(verification)
    if own:
        from koderz.cli.sync import settle_claims

        settle_claims(results, [own], findings=[f"{each.kind} {each.where}" for each in verification.findings])
    if not verification.verified:
        raise typer.Exit(EXIT_DIFFERS)
    raise typer.Exit(0 if verification.is_whole else EXIT_NOT_ALL)


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
    for text in found.gaps:
        _line("missing", text)
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
        but = [*found.gaps, *(["what is not redone"] if found.not_derived else [])]
        chosen = f". It is about {found.chosen}" if found.chosen else ""
        say(f"VERIFIED{', but for: ' if but else ''}{'; '.join(but)}{chosen}")


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
