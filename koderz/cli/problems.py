"""`koderz benchmark problems`: which tasks are hard, and for whom."""

from __future__ import annotations

from typing import Annotated

import typer

from koderz.cli.console import print_json, warn
from koderz.cli.flags import AllowSimulated, Arm, ByMeasure, Json, Results, named_runs

_SHOWN = 20  # problems, unless --limit says otherwise


def problems(
    runs: Annotated[
        list[str] | None,
        named_runs(metavar="[RUN] …", help="Which runs. Default: all."),
    ] = None,
    arm: Arm = None,
    measure: ByMeasure = "success",
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of problems. Default: 20; all with --json.", min=1)
    ] = None,
    json: Json = False,
    allow_simulated: AllowSimulated = False,
    *,
    results: Results,
) -> None:
    """Rank problems by difficulty across runs, with the disagreement of samples and the models that solve them."""
    from koderz.analysis.difficulty import difficulty, difficulty_blocks
    from koderz.analysis.measures import measure_named
    from koderz.analysis.pairs import chosen_sides
    from koderz.cli.tables import print_blocks

    sides, notes = chosen_sides(runs or [], results, arm=arm, allow_simulated=allow_simulated)
    by = measure_named(measure, [side.run for side in sides])
    found = difficulty(sides, by)
    if json:
        print_json(found[:limit])
        return
    print_blocks(difficulty_blocks(found, limit or _SHOWN, by))
    for note in notes:
        warn(f"note: {note}")
