"""Commands on whole runs: `koderz publish`, `pull` and `verify`, and `koderz benchmark calibrate` for their judges."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import LINE_EVERY, counted, print_json, say, say_all, warn, writing
from koderz.cli.flags import Quiet, Results, Run, Trust, named_runs
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.systems.publishing.labels import JudgedRun
    from koderz.systems.publishing.verify import Verification


_NAMED = 10  # places of secrets that are listed


def publish(
    runs: Annotated[list[str], named_runs(metavar="RUN…", help="Which runs.")],
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="A folder, or an hf:// or s3:// address.")
    ],
    redact: Annotated[
        bool,
        typer.Option(
            "--redact", help="Publish a copy with [redacted] in place of secrets, which says so."
        ),
    ] = False,
    no_replies: Annotated[
        bool,
        typer.Option("--no-replies", help="Publish figures only: no prompt, reply or program."),
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
    from koderz.systems.publishing.share import files_of, place_at, published_copy, secrets_in
    from koderz.systems.publishing.share import publish as send

    folders = list(dict.fromkeys(journal_folder(find(results, name)) for name in runs))
    place = place_at(to)
    tell = (lambda _: None) if quiet else (lambda path: warn(f"sent {path}"))
    with TemporaryDirectory(prefix="koderz-publish-") as temporary:
        copies = [(folder, _summary_of(folder)) for folder in folders]
        if redact or no_replies:
            target = Path(temporary)
            copies = [
                published_copy(each, target, redact=redact, replies=not no_replies)
                for each in folders
            ]
        found = (
            [] if redact else [place for copy in copies for place in secrets_in(*copy, os.environ)]
        )
        if found:
            named = "; ".join(map(str, found[:_NAMED]))
            raise KoderzError(
                f"{named}: looks like a secret. Nothing was sent; --redact publishes a copy without it"
            )
        for folder, copy in zip(folders, copies, strict=True):
            sent = send(folder, place, files_of(*copy), tell)
            say(
                f"{folder.name}: {counted(sent, 'file')} sent to {to}"
                if sent
                else f"{folder.name}: is at {to} already"
            )


def pull(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A folder, or an https, hf or s3 address.")
    ],
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN…]", help="Ids of runs. Default: all.")
    ] = None,
    max_size: Annotated[
        int, typer.Option(metavar="MB", help="The most that a run may hold.", min=1)
    ] = 2048,
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
        raise KoderzError(
            f"{folder.name} has no summary; write it with: koderz benchmark resume {folder.name}"
        )
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
        typer.Option(
            metavar="FILE", help="The tasks of a run that had a --dataset of its own.", exists=True
        ),
    ] = None,
    max_size: Annotated[
        int, typer.Option(metavar="MB", help="The most that an archive may unpack to.", min=1)
    ] = 2048,
    json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")
    ] = False,
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
    from koderz.systems.publishing.verify.verification import found_run

    if is_board(Path(run)):
        differing = verify_board(Path(run), results)
        print_json({"verified": not differing, "differences": differing}) if json else say_all(
            differing or ["VERIFIED: its inputs give this leaderboard"]
        )
        raise typer.Exit(EXIT_DIFFERS if differing else 0)
    with found_run(run, results, max_size=max_size << 20) as (folder, summary):
        progress = _DoneLines(quiet=quiet or json)
        verification = asyncio.run(
            verify_run(folder, summary=summary, dataset=dataset, tell=progress)
        )
        own = folder.name if folder.parent.resolve() == results.resolve() else ""
    if json:
        print_json(verification.document())
    else:
        _show(verification)
    if own:
        from koderz.cli.sync import settle_claims

        settle_claims(
            results, [own], findings=[f"{each.kind} {each.where}" for each in verification.findings]
        )
    if not verification.verified:
        raise typer.Exit(EXIT_DIFFERS)
    raise typer.Exit(0 if verification.is_whole else EXIT_NOT_ALL)


def _show(found: Verification) -> None:
    unsteady = f", {len(found.unsteady)} unsteady" if found.unsteady else ""
    total = found.judged + found.unjudged
    _line(
        "verdicts",
        f"{found.same} of {total} as recorded{unsteady} (judged here in {found.seconds:.1f} s)",
    )
    if found.prompts:
        _line(
            "prompts",
            f"{found.prompts - found.found['prompt']} of {found.prompts} as the suite asks them",
        )
    wrong = found.found["figure"]
    if found.figures:
        _line(
            "figures",
            f"{wrong} differ of {found.figures}" if wrong else f"all {found.figures} as recorded",
        )
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
            say(
                f"DIFFERS    {kind}: {finding.where}: recorded {finding.recorded!r}, derived {finding.derived!r}"
            )
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


EXIT_STOPPED = 3


def calibrate(
    run: Run,
    draw: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Draw N judged items at random, to be labelled by people.", min=1
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The drawn file, with pass or fail in its column label."),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Ask the judge N times more about the drawn items.", min=1, max=100
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the draw goes: .csv or .jsonl."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the draw.")] = 0,
    max_cost: Annotated[
        float | None, typer.Option(metavar="USD", help="The most that --repeat may cost.", min=0)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")
    ] = False,
    trust_config: Trust = False,
    *,
    results: Results,
) -> None:
    """Calibrate the judge of a run whose verdicts a model made, by labels of people.

    First --draw N -o labels.csv: items at random, without the judge's verdict. Then, filled in by people,
    --labels labels.csv: agreement, kappa, sensitivity, specificity, and the rate corrected for the judge's errors.
    These go into the run's summary, and compare uses them. --repeat N asks the judge again, and says how many verdicts
    flip.

    Examples:
        koderz benchmark calibrate latest --draw 50 -o labels.csv
        koderz benchmark calibrate latest --labels labels.csv
    """
    from koderz.analysis.runs import find
    from koderz.analysis.story import journal_folder
    from koderz.systems.publishing.labels import JudgedRun

    if sum(each is not None for each in (draw, labels, repeat)) == 0:
        raise KoderzError(
            "nothing to do: draw items with --draw N -o FILE, or read their labels with --labels FILE"
        )
    judged = JudgedRun(journal_folder(find(results, run)))
    if draw is not None:
        _draw(judged, draw, seed, output)
    if labels is not None:
        _labels(judged, labels, json=json)
    if repeat is not None:
        _repeat(judged, repeat, max_cost, json=json, trust_config=trust_config)


def _draw(judged: JudgedRun, count: int, seed: int, output: Path | None) -> None:
    from koderz.systems.publishing.labels import write_rows

    if output is None or output.suffix not in (".csv", ".jsonl"):
        raise KoderzError("--draw writes a file: say which with --output labels.csv, or .jsonl")
    drawn = judged.draw(count, seed)
    with writing(output):
        rows = write_rows(output, judged.rows(drawn))
    judged.keep(drawn)
    warn(
        f"{counted(rows, 'item')} of {len(judged.outcomes)} drawn → {output}; write pass or fail into the column label"
    )


def _labels(judged: JudgedRun, path: Path, *, json: bool) -> None:
    from koderz.systems.publishing.calibration import record_calibration
    from koderz.systems.publishing.labels import read_labels

    found, digest = read_labels(path, judged.outcomes)
    figures = judged.calibration(found, digest)
    record_calibration(judged.folder, digest, figures.arms, found)
    if json:
        print_json({"digest": digest, "arms": figures.arms, "notes": figures.notes})
        return
    for arm, each in figures.arms.items():
        for line in calibration_lines(arm, each):
            say(line)
    for note in figures.notes:
        say(f"Note: {note}")


def calibration_lines(arm: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """The figures of an arm's judge as text for people."""
    labellers = counted(figures["labellers"], "labeller")
    clusters = f" in {counted(figures['clusters'], 'cluster')}" if figures["clusters"] else ""
    yield f"Judge {figures['judge']}, arm {arm}: {counted(figures['items'], 'item')}{clusters}, {labellers}."
    people = (
        f"; among people {_kappa(figures, 'among_people')}"
        if figures["among_people"] is not None
        else ""
    )
    kappa = f", kappa {_kappa(figures, 'kappa')}" if figures["kappa"] is not None else ""
    yield f"Agreement {100 * figures['agreement']:.1f} %{kappa}{people}."
    shares = [(name, figures[name]) for name in ("sensitivity", "specificity") if figures[name]]
    if shares:
        yield f"{', '.join(f'{name} {_share(each)}' for name, each in shares).capitalize()}."
    found = figures["corrected"]
    raw = f"Rate: {100 * figures['rate']:.1f} % as the judge has it"
    if found["rate"] is None:
        yield f"{raw}; no correction: {found['reason']}."
        return
    basis = "labels drawn at random from this run" if figures["drawn"] else found["assumption"]
    yield f"{raw}; corrected {100 * found['rate']:.1f} %{_interval(found['interval'], 100, '.1f')}."
    yield f"By {found['method']}: {basis}."
    if found["interval"] and found["interval_method"]:
        yield f"Interval: {found['interval_method']}."
    if why := figures.get("interval_method"):
        yield f"No intervals: {why.removeprefix('none: ')}."
    if found["reason"]:
        yield f"Not to be used: {found['reason']}."


def _kappa(figures: Mapping[str, Any], name: str) -> str:
    return f"{figures[name]:.2f}{_interval(figures[f'{name}_interval'], 1, '.2f')}"


def _share(share: Mapping[str, Any]) -> str:
    of_items = f"{100 * share['share']:.1f} % of {share['items']}"
    return f"{of_items}{_interval(share['interval'], 100, '.1f')}"


def _interval(interval: Sequence[float] | None, scale: int, form: str) -> str:
    """An interval in brackets; empty for none."""
    if interval is None:
        return ""
    low, high = (scale * limit for limit in interval)
    return f" (95 % interval {low:{form}} to {high:{form}})"


def _repeat(
    judged: JudgedRun, rounds: int, max_cost: float | None, *, json: bool, trust_config: bool
) -> None:
    from koderz.systems.publishing.calibration import ask_again

    draws = judged.drawn()
    if not draws:
        raise KoderzError(
            "--repeat asks about the items that were drawn: draw some with --draw N -o FILE"
        )
    drawn = draws[-1].experiments
    price = judged.price_of_judging(drawn)
    about = "an unknown price" if price is None else f"about ${rounds * price:.4f}"
    warn(f"{len(drawn)} items, {counted(rounds, 'round')}: {about}")
    found = asyncio.run(
        ask_again(judged.folder, drawn, rounds, max_cost=max_cost, trust_config=trust_config)
    )
    if json:
        print_json(found._asdict())
    elif found.agreement is not None:
        say(
            f"The judge agrees with itself in {100 * found.agreement:.1f} % of pairs of verdicts; {found.flipped} of "
            f"{counted(found.items, 'verdict')} flip. Cost: ${found.cost:.4f}."
        )
    if found.stopped:
        warn(f"stopped: {found.stopped}")
        raise typer.Exit(EXIT_STOPPED)
