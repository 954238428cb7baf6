"""`koderz benchmark export`: runs as rows, or in the format of another tool."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated

import typer

from koderz.analysis.export import (
    Extent,
    Format,
    OwnFormat,
    Publication,
    RegistryFormat,
    Relationship,
    format_of,
    own_format,
    write_own,
)
from koderz.analysis.export import export as write_rows
from koderz.cli.console import counted, data_output, warn, writing
from koderz.cli.flags import Arm, Faults, Results, named_runs
from koderz.errors import KoderzError
from koderz.settings.options import flag_of, without_effect
from koderz_tracker.files import whole_file

_Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="csv, parquet, jsonl, md, md-wide, eee, hf, inspect or a suite's; or as --output says.",
    ),
]

_Artifact = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="With this artifact of the last attempt, such as a diff, in each row."
    ),
]
_AllArms = Annotated[
    bool,
    typer.Option("--all-arms", help="Samples of several arms in one file; each row names its arm."),
]
_Incomplete = Annotated[
    bool,
    typer.Option(
        "--incomplete", help="Of eee and hf: an incomplete run, with what was planned and faults."
    ),
]


def export(
    runs: Annotated[list[str], named_runs(metavar="RUN…", help="Which runs.")],
    format_: _Format = None,
    attempts: Annotated[
        bool, typer.Option("--attempts", help="One row per attempt, with its reply.")
    ] = False,
    arm: Arm = None,
    artifact: _Artifact = None,
    all_arms: _AllArms = False,
    organization: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of eee: who publishes the result.")
    ] = None,
    relationship: Annotated[
        Relationship | None,
        typer.Option(metavar="WORD", help="Of eee: what they are to the model."),
    ] = None,
    model_id: Annotated[
        str | None,
        typer.Option(
            metavar="DEVELOPER/NAME", help="Of eee: the model's id. Default: its name here."
        ),
    ] = None,
    source_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Of eee and hf: the published run.")
    ] = None,
    hf_dataset: Annotated[
        str | None, typer.Option(metavar="ID", help="Of hf: the dataset on the Hub.")
    ] = None,
    hf_task: Annotated[
        str | None, typer.Option(metavar="ID", help="Of hf: the task of its leaderboard.")
    ] = None,
    incomplete: _Incomplete = False,
    faults: Faults = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to. Default: standard output."),
    ] = None,
    *,
    results: Results,
) -> None:
    """Export runs, one row per experiment.

    JSONL has the samples format: HumanEval's and EvalPlus' evaluators, koderz judge and koderz benchmark import read
    it. They take a file for one model's, so --arm chooses among several arms. In CSV, text that a spreadsheet would
    take for a formula has an apostrophe before it.

    Examples:
        koderz benchmark export latest --format csv -o run.csv
        koderz benchmark export latest --format jsonl --arm iterative -o samples.jsonl
    """
    from koderz.analysis.runs import find
    from koderz.analysis.story import journal_folder

    about = Publication(organization, relationship, model_id, source_url, hf_dataset, hf_task)
    own = own_format(format_)
    is_samples = own is None and format_of(output, format_) == "jsonl"
    _require_read(about, own, arm, all_arms=all_arms, is_samples=is_samples, incomplete=incomplete)
    if faults and (attempts or isinstance(own, Format)):
        raise without_effect("--faults", "an export of one row per experiment")
    folders = list(dict.fromkeys(journal_folder(find(results, name)) for name in runs))
    if own:
        if isinstance(own, Format) and (attempts or artifact):
            raise KoderzError(
                f"--format {format_} says itself what it holds: leave --attempts and --artifact out"
            )
        count = _write_own(own, folders, format_, output, about, Extent(arm, faults, incomplete))
        if count is not None:
            _tell(count, folders, output, "experiment" if isinstance(own, Format) else "sample")
    else:
        table = format_of(output, format_)
        with _opened(output, table) as file:
            count = write_rows(
                folders,
                table,
                file,
                attempts=attempts,
                arm=arm,
                all_arms=all_arms,
                artifact=artifact,
                faults=faults,
            )
        _tell(count, folders, output, "attempt" if attempts else "experiment")
    if is_samples and not attempts and not faults:
        _tell_left_out(folders, arm)


def _tell_left_out(folders: Sequence[Path], arm: str | None) -> None:
    """Says how many faults a file of samples lacks, since whoever judges it would take its rate for the run's."""
    from koderz.analysis.runs import load_run

    left = sum(len(run.missing_of(arm) if arm else run.faults) for run in map(load_run, folders))
    if left:
        warn(
            f"note: {counted(left, 'fault')} left out: the rate of these samples isn't the run's; --faults fail "
            "writes each as an empty answer"
        )


def _require_read(
    about: Publication,
    own: OwnFormat | None,
    arm: str | None,
    *,
    all_arms: bool,
    is_samples: bool,
    incomplete: bool,
) -> None:
    """Raises KoderzError for an option that the chosen format doesn't read."""
    unread = [name for name, value in asdict(about).items() if value is not None]
    if unread and not isinstance(own, RegistryFormat):
        raise KoderzError(
            f"{flag_of(unread[0])} has no effect here: only --format eee and hf read it"
        )
    if incomplete and not isinstance(own, RegistryFormat):
        raise without_effect("--incomplete", "--format eee and hf")
    if all_arms and (arm or not is_samples):
        raise without_effect("--all-arms", "an export of every arm" if arm else "--format jsonl")


def _tell(
    count: int, folders: Sequence[Path], output: Path | None, what: str = "experiment"
) -> None:
    warn(
        f"{counted(count, what)} of {counted(len(folders), 'run')}{f' → {output}' if output else ''}"
    )


def _write_own(
    own: OwnFormat,
    folders: Sequence[Path],
    name: str | None,
    output: Path | None,
    about: Publication,
    extent: Extent,
) -> int | None:
    """Writes runs in an own format, into a file or a folder. Returns the number of experiments that it counts."""
    if not own.is_folder:
        with _opened(output) as file:
            return write_own(own, folders, file, about, extent)
    if output is None:
        raise KoderzError(f"--format {name} writes a folder: say which with --output DIR")
    with writing(output):
        return write_own(own, folders, output, about, extent)


@contextmanager
def _opened(output: Path | None, table: str = "") -> Iterator[IO[bytes]]:
    """Opens a file that appears whole or not at all; standard output for None, unless the table is no text."""
    if output is None:
        if table == "parquet" and sys.stdout.isatty():
            raise KoderzError("Parquet isn't for terminals: say where to with --output FILE")
        yield data_output()
        sys.stdout.flush()
        return
    with writing(output), whole_file(output, durable=False) as file:
        yield file
