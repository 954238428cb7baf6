"""`koderz benchmark export`: runs as rows, for spreadsheets, data frames and other evaluators."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from koderz.cli.console import counted, data_output, warn
from koderz.cli.front import complete_runs
from koderz.cli.options import with_settings
from koderz.errors import KoderzError, StorageError
from tracker.files import whole_file


@with_settings("results")
def export(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Which runs.", autocompletion=complete_runs)],
    given: dict[str, Any],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="csv, parquet, jsonl or md; or as --output says.")
    ] = None,
    attempts: Annotated[bool, typer.Option("--attempts", help="One row per attempt, with its reply.")] = False,
    arm: Annotated[str | None, typer.Option(metavar="ARM", help="Only this arm, e.g. iterative.")] = None,
    all_arms: Annotated[
        bool, typer.Option("--all-arms", help="Samples of several arms in one file; each row names its arm.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to. Default: standard output.")
    ] = None,
) -> None:
    """Export runs, one row per experiment.

    JSONL has the samples format: HumanEval's and EvalPlus' evaluators, koderz judge and koderz benchmark import read
    it. They take a file for one model's, so --arm chooses among several arms. In CSV, text that a spreadsheet would
    take for a formula has an apostrophe before it.
    """
    from koderz.analysis.export import export as write_rows
    from koderz.analysis.export import format_of
    from koderz.analysis.runs import find
    from koderz.analysis.story import journal_folder
    from koderz.settings.toml import results_folder

    chosen = format_of(output, format_)
    results = results_folder(given.get("results"))
    folders = list(dict.fromkeys(journal_folder(find(results, name)) for name in runs))
    if output is None and chosen == "parquet" and sys.stdout.isatty():
        raise KoderzError("Parquet isn't for terminals: say where to with --output FILE")
    with _opened(output) as file:
        count = write_rows(folders, chosen, file, attempts=attempts, arm=arm, all_arms=all_arms)
    rows = counted(count, "attempt" if attempts else "experiment")
    warn(f"{rows} of {counted(len(folders), 'run')}{f' → {output}' if output else ''}")


@contextmanager
def _opened(output: Path | None) -> Iterator[IO[bytes]]:
    """The file appears whole or not at all."""
    if output is None:
        yield data_output()
        sys.stdout.flush()
        return
    try:
        with whole_file(output, durable=False) as file:
            yield file
    except OSError as error:
        raise StorageError(f"{output} can't be written ({error.strerror})") from None
