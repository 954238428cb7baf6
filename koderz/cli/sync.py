"""`koderz sync`: brings sinks up to date from the journals."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from koderz.cli.console import print_json, say, warn
from koderz.cli.flags import named_runs
from koderz.cli.front import Json, Quiet, Trust
from koderz.cli.options import with_settings
from koderz.errors import KoderzError
from koderz.settings.schema import OF_SINKS

EXIT_BEHIND = 3


@with_settings("results", *OF_SINKS)
def sync(
    given: dict[str, Any],
    runs: Annotated[
        list[str] | None,
        named_runs(metavar="[RUN]...", help="Which runs. Default: all that lack something."),
    ] = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="All runs that lack something, which is the default.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="From the beginning; without RUN, what a sink holds is made anew first.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Bring the sinks of runs up to date: MLflow, the memory store, the summary file.

    What a sink has is left as it is, so it does no harm to repeat this. A sink that was turned off for a run
    stays off unless --sink names it. Exit code 3 if a sink stays behind.
    """
    from koderz.cli.sink_progress import showing
    from koderz.runs.sinks import Choice, choose_work, sync_runs
    from koderz.settings.toml import read_sources

    if all_runs and runs:
        raise KoderzError("name runs, or say --all")
    settings = read_sources(given, names=("results", *OF_SINKS), trust_config=trust_config).settings
    refused = given.get("no_sinks", ())
    choice = Choice(settings, runs=runs or (), named="sinks" in given, refused=refused, rebuild=rebuild)
    found = []
    for synced in sync_runs(choose_work(choice), choice, lambda run: showing(quiet=quiet, title=lambda: run)):
        found.append(synced)
        if not json:
            say(f"{synced.run_id}  {synced.sink:<8} {synced.state}{f': {synced.reason}' if synced.reason else ''}")
    if json:
        print_json(found)
    elif not found:
        warn("nothing to do: no sink that is on lacks anything")
    raise typer.Exit(EXIT_BEHIND if any(synced.state == "behind" for synced in found) else 0)
