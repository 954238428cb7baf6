"""`koderz benchmark import`: judges samples into a run, or copies runs of another machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from koderz.cli.console import OutputOptions, print_json, say, warn
from koderz.cli.flags import Quiet, Trust, Wait
from koderz.cli.options import with_settings
from koderz.cli.session import SessionScreen
from koderz.errors import KoderzError
from koderz.settings.options import fields_of
from koderz.settings.schema import OF_JUDGING, OF_SINKS, Settings
from koderz_tracker.sinks import JSON, KNOWN

EXIT_MALFORMED, EXIT_FAULTS = 2, 3

_NAMES = (*OF_JUDGING, "tags", "results", *OF_SINKS)
_CHANGED = ("judged", "added", "extended")


@with_settings(*_NAMES)
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
    wait: Wait = False,
    trust_config: Trust = False,
) -> None:
    """Import samples or runs.

    A samples file (HumanEval's or EvalPlus' format, or what export wrote) is judged here, as koderz judge does, and
    becomes a run of its own; samples of a task whose reference fails here are faults, and the exit code is 3.
    The runs in a results folder are copied as they are: one that is here already stays, a longer journal of the same
    run replaces the shorter one, and two that went different ways are left alone, with exit code 2. The sinks
    catch up with what was imported, in a terminal in the background; one that stays behind is left to koderz sync.

    Examples:
        koderz benchmark import samples.jsonl --model openai/gpt-4o-mini
    """
    from koderz.cli.sync import catch_up_runs
    from koderz.engines.owners import schema_here
    from koderz.settings.toml import read_sources

    if model is not None and (not model.strip() or not model.isprintable() or len(model) > 200):
        raise KoderzError("--model: a name has 1 to 200 printable characters")
    here = read_sources(given, names=_NAMES, schema=schema_here(given), trust_config=trust_config).settings
    chosen = {name: getattr(here, name) for name in _NAMES if name in fields_of(Settings)}
    settings = Settings(**chosen, local_model=model, own=here.own)
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
    catch_up_runs(importing.changed, settings, quiet=quiet, wait=wait)
    if failed:
        raise failed
    raise typer.Exit(EXIT_MALFORMED if importing.problems else EXIT_FAULTS if importing.faults else 0)


class _Importing:
    """The imports so far, and the problems with the rest."""

    def __init__(self, settings: Settings, *, quiet: bool, json: bool, chooses_sinks: bool) -> None:
        self._settings = settings
        self._json = json
        self._quiet = quiet or json
        self._chooses_sinks = chooses_sinks
        self._done: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.faults: list[str] = []

    @property
    def changed(self) -> list[Path]:
        """The folders of runs that are new or longer than before."""
        return [self._settings.results / entry["run_id"] for entry in self._done if entry["what"] in _CHANGED]

    def take(self, source: Path) -> None:
        """Imports a source. Raises KoderzError if it is no samples file, or can't be judged."""
        if not source.is_dir():
            self._judge(source)
            return
        from koderz_tracker.merge import foreign_runs, merge_run

        for folder in foreign_runs(source):
            try:
                merged = merge_run(folder, self._settings.results, summary=JSON in self._settings.chosen_sinks)
            except KoderzError as error:  # which doesn't keep the others out
                self.problems.append(str(error))
            else:
                self._took(merged.run_id, merged.what)

    def _judge(self, source: Path) -> None:
        from koderz.cli.judge import Tally
        from koderz.runs.imports import import_samples

        if source.suffix == ".json":
            raise KoderzError(
                f"{source} is no samples file; a bare summary needs no import: koderz benchmark compare {source} RUN"
            )
        tell = Tally(quiet=self._quiet)
        session, samples = asyncio.run(import_samples(source, self._settings, tell=tell))
        SessionScreen(OutputOptions(quiet=True, json=self._quiet)).results(session)
        self.problems += samples.malformed
        self.faults += dict.fromkeys(f"{fault['problem_id']}: {fault['reason']}" for fault in session.summary.faults)
        self._took(session.folder.name, "judged")

    def _took(self, run_id: str, what: str) -> None:
        from koderz_tracker.sinks.standing import choose_sinks

        self._done.append({"run_id": run_id, "what": what})
        if what in _CHANGED and self._chooses_sinks:  # else koderz sync may choose others
            choose_sinks(self._settings.results / run_id, self._settings.chosen_sinks, KNOWN)

    def tell(self) -> None:
        """Prints the result of each import."""
        if self._json:
            print_json(self._done)
        else:
            for entry in self._done:
                say(f"{entry['run_id']}: {entry['what']}")
        for problem in (*self.problems, *self.faults):
            warn(f"koderz: {problem}")
