"""`koderz benchmark compare`: is B better than A, and where; and the gates of a CI job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import print_json, say_all, warn
from koderz.cli.front import complete_runs
from koderz.cli.groups import Json
from koderz.cli.options import with_settings

if TYPE_CHECKING:
    from koderz.analysis.compare import Compared

EXIT_GATE = 1
_GATES = "Gates (exit code 1)"

AllowSimulated = Annotated[
    bool, typer.Option("--allow-simulated", help="Put runs of the simulated model beside real ones.")
]

ByMeasure = Annotated[
    str,
    typer.Option("--measure", metavar="NAME", help="success, score, cost, tokens, iterations, latency or a metric."),
]


Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[A] [B] …",
        help="Ids, beginnings of ids, summary files, latest, latest~1.",
        autocompletion=complete_runs,
    ),
]
Arm = Annotated[str | None, typer.Option(metavar="ARM", help="Only this arm, e.g. iterative.")]
Alpha = Annotated[float, typer.Option(metavar="P", help="How probable a false claim may be.", min=1e-6, max=0.5)]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a CI job's summary page.")]
FailOnRegression = Annotated[
    bool, typer.Option("--fail-on-regression", help="B is significantly worse than A.", rich_help_panel=_GATES)
]
MaxDrop = Annotated[
    float | None,
    typer.Option(
        metavar="POINTS",
        help="B is worse by more than this; of another --measure, in its unit.",
        min=0,
        rich_help_panel=_GATES,
    ),
]
MinSuccessRate = Annotated[
    float | None,
    typer.Option(metavar="PERCENT", help="B passes less than this.", min=0, max=100, rich_help_panel=_GATES),
]
MaxCost = Annotated[
    float | None, typer.Option(metavar="USD", help="B's run cost more than this.", min=0, rich_help_panel=_GATES)
]
MinGain = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="An optimizer of B gains less than this, a fraction such as 0.05.", rich_help_panel=_GATES
    ),
]
Least = Annotated[
    list[str] | None,
    typer.Option("--min", metavar="MEASURE=VALUE", help="B's average is below it.", rich_help_panel=_GATES),
]
Most = Annotated[
    list[str] | None,
    typer.Option("--max", metavar="MEASURE=VALUE", help="B's average is above it.", rich_help_panel=_GATES),
]
AllowIncomplete = Annotated[
    bool,
    typer.Option(
        "--allow-incomplete",
        help="Judge B although it is still going or was cut short; a warning says so.",
        rich_help_panel=_GATES,
    ),
]


@with_settings("results")
def compare(
    given: dict[str, Any],
    runs: Runs = None,
    arm: Arm = None,
    measure: ByMeasure = "success",
    alpha: Alpha = 0.05,
    json: Json = False,
    markdown: Markdown = False,
    allow_simulated: AllowSimulated = False,
    fail_on_regression: FailOnRegression = False,
    max_drop: MaxDrop = None,
    min_success_rate: MinSuccessRate = None,
    max_cost: MaxCost = None,
    min_gain: MinGain = None,
    least: Least = None,
    most: Most = None,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Compare B, the candidate, with A, the baseline. More than two runs make a leaderboard.

    Without names: the last two runs that share tasks. One comparative run alone: its arms, paired.
    Gates judge B, or the only run that is named; one that is still going, or was cut short, is exit code 2.
    """
    from koderz.analysis.compare import compare_runs
    from koderz.analysis.gates import Gates, limits
    from koderz.cli.tables import print_blocks
    from koderz.settings.toml import results_folder

    gates = Gates(
        fail_on_regression=fail_on_regression,
        max_drop=max_drop,
        min_success_rate=min_success_rate,
        max_cost=max_cost,
        min_gain=min_gain,
        least=limits(least or ()),
        most=limits(most or ()),
        allow_incomplete=allow_incomplete,
    )
    folder = results_folder(given.get("results"))
    outcome = compare_runs(
        runs or [], folder, arm=arm, measure=measure, alpha=alpha, allow_simulated=allow_simulated, gates=gates
    )
    if json:
        print_json(outcome.document())
    else:
        say_all(outcome.markdown()) if markdown else print_blocks(outcome.blocks())
    _judge(outcome)


def _judge(outcome: Compared) -> None:
    """What the gates say, on standard error."""
    if outcome.caution:
        warn(f"warning: {outcome.caution}")
    if outcome.shut:
        warn(f"gate failed: {'; '.join(outcome.shut)}")
        raise typer.Exit(EXIT_GATE)
