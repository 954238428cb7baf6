"""`koderz benchmark import`: samples judged into a run, or runs of another machine."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from koderz.cli.benchmark import Quiet
from koderz.cli.console import Console, say, warn
from koderz.cli.groups import PanelCommand
from koderz.cli.options import with_settings
from koderz.errors import KoderzError
from koderz.settings import Settings, checked, flag_of, layered

app = typer.Typer(rich_markup_mode=None)

EXIT_MALFORMED = 2


@app.command(name="import", cls=PanelCommand)
@with_settings("suite", "dataset", "test_timeout", "test_memory", "judges", "sandbox", "results", "tags")
def import_runs(
    sources: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR…", help="Samples in JSONL, results folders, or runs' folders.")
    ],
    given: dict[str, Any],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who wrote the samples, where the file doesn't say.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what became of each as a JSON list.")] = False,
    quiet: Quiet = False,
) -> None:
    """Import samples or runs.

    A samples file (HumanEval's or EvalPlus' format, or what export wrote) is judged here and becomes a run of its own.
    The runs in a results folder are copied as they are: one that is here already stays, a longer journal of the same
    run replaces the shorter one, and two that went different ways are left alone, with exit code 2.
    """
    from koderz.config import results_folder

    settings = _settings(given, model, results_folder(given.get("results")))
    for source in sources:
        if not source.exists():
            raise KoderzError(f"there is no {source}")
    teller = _Teller(quiet=quiet or json)
    done: list[dict[str, Any]] = []
    problems: list[str] = []
    for source in sources:
        if source.is_dir():
            _merge(source, settings.results, done, problems)
        else:
            _judge(source, settings, teller, done, problems)
    if json:
        import orjson

        sys.stdout.buffer.write(orjson.dumps(done, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        for entry in done:
            say(f"{entry['run_id']}: {entry['what']}")
    for problem in problems:
        warn(f"koderz: {problem}")
    raise typer.Exit(EXIT_MALFORMED if problems else 0)


def _settings(given: dict[str, Any], model: str | None, results: Path) -> Settings:
    if model is not None and (not model.strip() or not model.isprintable() or len(model) > 200):
        raise KoderzError("--model: a name has 1 to 200 printable characters")
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    values = {name: checked(name, value, flag_of(name)) for name, value in plain.items()}
    return layered(values | {"local_model": model, "results": results})


def _merge(source: Path, results: Path, done: list[dict[str, Any]], problems: list[str]) -> None:
    """A run that can't be taken doesn't keep the others out."""
    from tracker.merging import foreign_runs, merge_run

    for folder in foreign_runs(source):
        try:
            done.append(asdict(merge_run(folder, results)))
        except KoderzError as error:
            problems.append(str(error))


def _judge(source: Path, settings: Settings, teller: _Teller, done: list[dict[str, Any]], problems: list[str]) -> None:
    from koderz.analysis.samples import import_samples

    if source.suffix == ".json":
        raise KoderzError(
            f"{source} is no samples file; a bare summary needs no import: koderz benchmark compare {source} RUN"
        )
    session, malformed = asyncio.run(import_samples(source, settings, tell=teller))
    Console(quiet=True, json=teller.quiet).results(session)
    done.append({"run_id": session.summary.run_id, "what": "judged"})
    problems += malformed


class _Teller:
    """Says now and then how many are judged."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self._last = quiet, 0.0

    def __call__(self, judged: int) -> None:
        import time

        self._last = self._last or time.monotonic()
        if not self.quiet and time.monotonic() - self._last > 5.0:
            self._last = time.monotonic()
            warn(f"{judged} judged")
