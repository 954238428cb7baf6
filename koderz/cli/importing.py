"""`koderz benchmark import`: samples judged into a run, or runs of another machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from koderz.cli.benchmark import Quiet
from koderz.cli.console import Console, print_json, say, warn
from koderz.cli.groups import PanelCommand
from koderz.cli.options import with_settings
from koderz.errors import KoderzError
from koderz.settings import OF_SINKS, Settings, from_flags, layered
from tracker.sinks import JSON, KNOWN

app = typer.Typer(rich_markup_mode=None)

EXIT_MALFORMED = 2

_CHANGED = ("judged", "added", "extended")

_OF_SAMPLES = ("suite", "dataset", "test_timeout", "test_memory", "judges", "sandbox", "tags")


@app.command(name="import", cls=PanelCommand)
@with_settings(*_OF_SAMPLES, "results", *OF_SINKS)
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
    run replaces the shorter one, and two that went different ways are left alone, with exit code 2. At the end the
    sinks catch up with what was imported; one that stays behind is a warning, and left to koderz sync.
    """
    from koderz.cli.catching_up import catch_up_runs

    settings = _settings(given, model)
    for source in sources:
        if not source.exists():
            raise KoderzError(f"there is no {source}")
    importing = _Importing(settings, quiet=quiet, json=json, chooses_sinks=bool({"sinks", "no_sinks"} & given.keys()))
    failed: KoderzError | None = None
    try:
        for source in sources:
            importing.take(source)
    except KoderzError as error:  # what was imported before is whole, and belongs into the sinks
        failed = error
    importing.tell()
    catch_up_runs(importing.changed, settings, quiet=quiet)
    if failed:
        raise failed
    raise typer.Exit(EXIT_MALFORMED if importing.problems else 0)


def _settings(given: dict[str, Any], model: str | None) -> Settings:
    """What the flags say of samples; for results and sinks, what holds in this folder."""
    from koderz.config import settings_here

    if model is not None and (not model.strip() or not model.isprintable() or len(model) > 200):
        raise KoderzError("--model: a name has 1 to 200 printable characters")
    here = settings_here(given)
    return layered(
        {name: getattr(here, name) for name in ("results", *OF_SINKS)}, from_flags(given), {"local_model": model}
    )


class _Importing:
    """What was imported so far, and what is wrong with the rest."""

    def __init__(self, settings: Settings, *, quiet: bool, json: bool, chooses_sinks: bool) -> None:
        self._settings = settings
        self._json = json
        self._teller = _Teller(quiet=quiet or json)
        self._chooses_sinks = chooses_sinks
        self._done: list[dict[str, Any]] = []
        self.problems: list[str] = []

    @property
    def changed(self) -> list[Path]:
        """The folders of the runs that are here as they were not before."""
        return [self._settings.results / entry["run_id"] for entry in self._done if entry["what"] in _CHANGED]

    def take(self, source: Path) -> None:
        """Raises KoderzError for what is no samples file, or can't be judged."""
        if source.is_dir():
            self._merge(source)
        else:
            self._judge(source)

    def _merge(self, source: Path) -> None:
        """A run that can't be taken doesn't keep the others out."""
        from tracker.merging import foreign_runs, merge_run

        for folder in foreign_runs(source):
            try:
                merged = merge_run(folder, self._settings.results, summary=JSON in self._settings.chosen_sinks)
            except KoderzError as error:
                self.problems.append(str(error))
            else:
                self._took(merged.run_id, merged.what)

    def _judge(self, source: Path) -> None:
        from koderz.analysis.samples import import_samples

        if source.suffix == ".json":
            raise KoderzError(
                f"{source} is no samples file; a bare summary needs no import: koderz benchmark compare {source} RUN"
            )
        session, malformed = asyncio.run(import_samples(source, self._settings, tell=self._teller))
        Console(quiet=True, json=self._teller.quiet).results(session)
        self.problems += malformed
        self._took(session.folder.name, "judged")

    def _took(self, run_id: str, what: str) -> None:
        from tracker.sinks.standing import choose_sinks

        self._done.append({"run_id": run_id, "what": what})
        if what in _CHANGED and self._chooses_sinks:  # else koderz sync may choose others
            choose_sinks(self._settings.results / run_id, self._settings.chosen_sinks, KNOWN)

    def tell(self) -> None:
        """Prints what became of each."""
        if self._json:
            print_json(self._done)
        else:
            for entry in self._done:
                say(f"{entry['run_id']}: {entry['what']}")
        for problem in self.problems:
            warn(f"koderz: {problem}")


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
