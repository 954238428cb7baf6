"""`koderz benchmark compare`: is B better than A, and where; and the gates of a CI job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from koderz.cli.console import print_json, say_all, warn
from koderz.cli.flags import AllowSimulated, Arm, ByMeasure, Json, Results, named_runs, with_flags

EXIT_GATE = 1
_GATES = "Gates (exit code 1)"

_FLAGS = {
    "fail_on_regression": Annotated[
        bool, typer.Option("--fail-on-regression", help="B is significantly worse than A.", rich_help_panel=_GATES)
    ],
    "max_drop": Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="B is worse by more than this; of another --measure, in its unit.",
            min=0,
            rich_help_panel=_GATES,
        ),
    ],
    "min_success_rate": Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="B passes less than this.", min=0, max=100, rich_help_panel=_GATES),
    ],
    "max_cost": Annotated[
        float | None, typer.Option(metavar="USD", help="B's run cost more than this.", min=0, rich_help_panel=_GATES)
    ],
    "min_gain": Annotated[
        float | None,
        typer.Option(
            metavar="X", help="An optimizer of B gains less than this, a fraction such as 0.05.", rich_help_panel=_GATES
        ),
    ],
    "least": Annotated[
        list[str] | None,
        typer.Option("--min", metavar="MEASURE=VALUE", help="B's average is below it.", rich_help_panel=_GATES),
    ],
    "most": Annotated[
        list[str] | None,
        typer.Option("--max", metavar="MEASURE=VALUE", help="B's average is above it.", rich_help_panel=_GATES),
    ],
    "allow_incomplete": Annotated[
        bool,
        typer.Option(
            "--allow-incomplete",
            help="Judge B although it is still going or was cut short; a warning says so.",
            rich_help_panel=_GATES,
        ),
    ],
}


@with_flags(_FLAGS)
def compare(
    runs: Annotated[
        list[str] | None,
        named_runs(metavar="[A] [B] …", help="Ids, beginnings of ids, summary files, latest, latest~1."),
    ] = None,
    arm: Arm = None,
    measure: ByMeasure = "success",
    alpha: Annotated[
        float, typer.Option(metavar="P", help="How probable a false claim may be.", min=1e-6, max=0.5)
    ] = 0.05,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a CI job's summary page.")] = False,
    allow_simulated: AllowSimulated = False,
    *,
    results: Results,
    **gates: Any,
) -> None:
    """Compare B, the candidate, with A, the baseline. More than two runs make a leaderboard.

    Without names: the last two runs that share tasks. One comparative run alone: its arms, paired.
    Gates judge B, or the only run that is named; one that is still going, or was cut short, is exit code 2.
    """
    from koderz.analysis.compare import compare_runs
    from koderz.analysis.gates import Gates, limits
    from koderz.cli.tables import print_blocks

    gates |= {name: limits(gates[name] or ()) for name in ("least", "most")}
    outcome = compare_runs(
        runs or [],
        results,
        arm=arm,
        measure=measure,
        alpha=alpha,
        allow_simulated=allow_simulated,
        gates=Gates(**gates),
    )
    if json:
        print_json(outcome.document())
    else:
        say_all(outcome.markdown()) if markdown else print_blocks(outcome.blocks())
    if outcome.caution:
        warn(f"warning: {outcome.caution}")
    if outcome.shut:
        warn(f"gate failed: {'; '.join(outcome.shut)}")
        raise typer.Exit(EXIT_GATE)
