"""`koderz benchmark problems`: which tasks are hard, and for whom."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from koderz.cli.compare import AllowSimulated, ByMeasure
from koderz.cli.console import print_json, warn
from koderz.cli.front import complete_runs
from koderz.cli.groups import Json
from koderz.cli.options import with_settings

_SHOWN = 20  # problems, unless --limit says otherwise


@with_settings("results")
def problems(
    given: dict[str, Any],
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN] …", help="Which runs. Default: all.", autocompletion=complete_runs),
    ] = None,
    arm: Annotated[str | None, typer.Option(metavar="ARM", help="Only this arm, e.g. iterative.")] = None,
    measure: ByMeasure = "success",
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of problems. Default: 20; all with --json.", min=1)
    ] = None,
    json: Json = False,
    allow_simulated: AllowSimulated = False,
) -> None:
    """Rank problems by difficulty across runs, with the disagreement of samples and the models that solve them."""
    from koderz.analysis.difficulty import difficulty, difficulty_blocks
    from koderz.analysis.measures import measure_named
    from koderz.analysis.pairs import chosen_sides
    from koderz.cli.tables import print_blocks
    from koderz.settings.toml import results_folder

    folder = results_folder(given.get("results"))
    sides, notes = chosen_sides(runs or [], folder, arm=arm, allow_simulated=allow_simulated)
    by = measure_named(measure, [side.run for side in sides])
    found = difficulty(sides, by)
    if json:
        print_json(found[:limit])
        return
    print_blocks(difficulty_blocks(found, limit or _SHOWN, by))
    for note in notes:
        warn(f"note: {note}")
