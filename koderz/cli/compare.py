"""`koderz benchmark compare`, `leaderboard` and `problems`: compares and ranks runs, and ranks tasks by difficulty."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import print_json, say, say_all, warn, writing
from koderz.cli.flags import (
    LEAST,
    AllowSimulated,
    Arm,
    ByMeasure,
    Cluster,
    Faults,
    Json,
    JUnit,
    Results,
    TaskThreshold,
    gate,
    named_runs,
    with_flags,
)
from koderz.cli.gates import save_junit, told_code
from koderz.errors import KoderzError
from koderz.settings.options import without_effect

if TYPE_CHECKING:
    from koderz.analysis.gates import Gates

_SHOWN = 20  # problems, unless --limit says otherwise

_GATES = {
    "fail_on_regression": Annotated[
        bool, gate("--fail-on-regression", help="B is significantly worse than A.")
    ],
    "max_drop": Annotated[
        float | None,
        gate(
            metavar="POINTS",
            help="B is worse by more than this; of another --measure, in its unit.",
            min=0,
        ),
    ],
    "confidence": Annotated[
        float | None,
        gate(
            metavar="P",
            help="Shut --max-drop only where the drop is larger with this confidence.",
            min=0.5,
            max=0.9999,
        ),
    ],
    "min_success_rate": Annotated[
        float | None, gate(metavar="PERCENT", help="B passes less than this.", min=0, max=100)
    ],
    "max_cost": Annotated[
        float | None, gate(metavar="USD", help="B's run cost more than this.", min=0)
    ],
    "min_gain": Annotated[
        float | None,
        gate(metavar="X", help="An optimizer of B gains less than this, a fraction such as 0.05."),
    ],
    **LEAST,
    "task_threshold": TaskThreshold,
    "most": Annotated[
        list[str] | None, gate("--max", metavar="MEASURE=VALUE", help="B's average is above it.")
    ],
    "allow_incomplete": Annotated[
        bool,
        gate(
            "--allow-incomplete",
            help="Judge B although it is still going or was cut short; a warning says so.",
        ),
    ],
}


_Alpha = Annotated[
    float,
    typer.Option(
        metavar="P", help="How probable a false claim may be, 0 to 0.5.", min=1e-6, max=0.5
    ),
]
_Sequential = Annotated[
    bool,
    typer.Option(
        "--sequential",
        help="Look at complete runs as if they had been stopped once decided: where, and what it saves.",
    ),
]


_Details = Annotated[
    bool,
    typer.Option(
        "--details", help="Print methods, causes of failures, environments and all notes, too."
    ),
]
_UnequalResources = Annotated[
    bool,
    typer.Option(
        "--unequal-resources", help="Compare arms that had different resources on the same tasks."
    ),
]


_Remember = Annotated[
    str | None,
    typer.Option(metavar="SENTENCE", help="Keep the verdict as a claim, checked as runs change."),
]


@with_flags(
    _GATES,
    seldom=(
        "alpha",
        "exact",
        "sequential",
        "remember",
        "unequal_resources",
        "least_points",
        "cluster",
    ),
)
def compare(
    runs: Annotated[
        list[str] | None,
        named_runs(
            metavar="[A] [B] …", help="Ids, beginnings of ids, summary files, latest, latest~1."
        ),
    ] = None,
    arm: Arm = None,
    measure: ByMeasure = None,
    alpha: _Alpha = 0.05,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Test rates by McNemar's exact test, which shows less than his score test.",
        ),
    ] = False,
    details: _Details = False,
    json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a CI job's summary page.")
    ] = False,
    allow_simulated: AllowSimulated = False,
    unequal_resources: _UnequalResources = False,
    sequential: _Sequential = False,
    faults: Faults = None,
    cluster: Cluster = None,
    remember: _Remember = None,
    junit: JUnit = None,
    *,
    results: Results,
    **gates: Any,
) -> None:
    """Compare B, the candidate, with A, the baseline. More than two runs make a leaderboard.

    Without names: the last two runs that share tasks. One comparative run alone: its arms, paired.
    Gates judge B, or the only run that is named; one that is still going, or was cut short, is exit code 2.
    So are arms whose tasks had different resources, unless --unequal-resources says that they are to be compared.
    A gate whose answer hangs on faults neither passes nor shuts: exit code 3.

    Examples:
        koderz benchmark compare latest
        koderz benchmark compare latest~1 latest --fail-on-regression
    """
    from koderz.analysis.compare import compare_as_if_stopped, compare_runs
    from koderz.analysis.gates import Gates, least_of, limits
    from koderz.cli.tables import print_blocks

    gates |= {
        "most": limits(gates["most"] or ()),
        **least_of(gates["least"], gates.pop("least_points")),
    }
    asked = Gates(**gates)
    _require_together(
        asked,
        alpha,
        exact=exact,
        sequential=sequential,
        faults=faults,
        cluster=cluster,
        remember=remember,
    )
    same: dict[str, Any] = {
        "arm": arm,
        "measure": measure,
        "alpha": alpha,
        "allow_simulated": allow_simulated,
    }
    same |= {"cluster": cluster}
    run = partial(
        compare_runs, exact=exact, gates=asked, unequal_resources=unequal_resources, faults=faults
    )
    outcome = (compare_as_if_stopped if sequential else run)(runs or [], results, **same)
    if junit:
        save_junit(junit, outcome.cases(asked.task_threshold))
    if json:
        print_json(outcome.document())
    else:
        say_all(outcome.markdown(details=details)) if markdown else print_blocks(
            outcome.blocks(details=details)
        )
    if remember is not None:
        _remember(remember, runs or [], results, arm, measure, allow_simulated=allow_simulated)
    if code := told_code(outcome, outcome.caution):
        raise typer.Exit(code)


def _require_together(
    gates: Gates,
    alpha: float,
    *,
    exact: bool,
    sequential: bool,
    faults: str | None,
    cluster: str | None,
    remember: str | None,
) -> None:
    """Raises KoderzError for options that don't go together."""
    from koderz.analysis.statistics import ALPHA

    if remember is not None and (exact or sequential or faults or cluster or alpha != ALPHA):
        raise KoderzError(
            "--remember keeps the plain comparison: without --alpha, --exact, --faults, --cluster and --sequential"
        )
    if sequential and (gates.are_asked or exact):
        raise KoderzError(
            "--sequential says where a comparison would have ended, and takes neither gates nor --exact"
        )
    if sequential and faults:
        raise without_effect("--faults", "a comparison without --sequential")


def _remember(
    claimed: str,
    names: list[str],
    results: Path,
    arm: str | None,
    measure: str | None,
    *,
    allow_simulated: bool,
) -> None:
    """Stores the comparison of these runs as a claim."""
    from koderz.analysis.claims import claim
    from koderz.analysis.compare import runs_to_compare
    from koderz_tracker.memory import store_path
    from koderz_tracker.memory.store import Store

    runs = runs_to_compare(names, results, allow_simulated=allow_simulated)
    asked: dict[str, Any] = {
        "arm": arm,
        "measure": measure,
        "is_difference": True,
        "made_by": "koderz benchmark compare",
    }
    with Store(store_path(results), create=False) as store:
        (row,) = claim(store, claimed, [run.name for run in runs], **asked).rows
    warn(f"claim {row['id']} is stored: {row['sentence']} ({row['says']})")


def problems(
    runs: Annotated[
        list[str] | None,
        named_runs(metavar="[RUN] …", help="Which runs. Default: all."),
    ] = None,
    arm: Arm = None,
    measure: ByMeasure = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum number of tasks. Default: 20; all with --json.", min=1
        ),
    ] = None,
    json: Json = False,
    allow_simulated: AllowSimulated = False,
    *,
    results: Results,
) -> None:
    """Rank tasks by difficulty across runs, with the disagreement of samples and the models that solve them.

    Each suite has a table of its own.

    Examples:
        koderz benchmark problems
        koderz benchmark problems latest --arm iterative
    """
    from koderz.analysis.difficulty import ranking_blocks, rankings
    from koderz.analysis.pairs import chosen_sides
    from koderz.cli.tables import print_blocks

    sides, notes = chosen_sides(runs or [], results, arm=arm, allow_simulated=allow_simulated)
    found = rankings(sides, measure)
    if json:
        print_json([problem for ranking in found for problem in ranking.problems[:limit]])
        return
    print_blocks(ranking_blocks(found, limit or _SHOWN))
    for note in notes:
        warn(f"note: {note}")


_OPTIONS = {
    "exact": Annotated[bool, typer.Option("--exact", help="Test rates by McNemar's exact test.")],
    "unequal_resources": Annotated[
        bool,
        typer.Option(
            "--unequal-resources", help="Rank arms that had different resources on the same tasks."
        ),
    ],
    "allow_simulated": AllowSimulated,
    "cluster": Cluster,
}


@with_flags(_OPTIONS)
def leaderboard(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|FILE|DIR] …",
            help="Runs, other tools' logs, or folders of such. Default: all runs.",
        ),
    ] = None,
    arm: Arm = None,
    measure: ByMeasure = None,
    alpha: Annotated[
        float,
        typer.Option(
            metavar="P", help="How probable any false claim may be, 0 to 0.5.", min=1e-6, max=0.5
        ),
    ] = 0.05,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it to .html, .md or .json."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    json: Json = False,
    *,
    results: Results,
    **options: Any,
) -> None:
    """Rank runs and logs: sets of ranks, tiers of what can't be told apart, and intervals that hold together.

    Also: how many tasks would part the first two, tasks that nobody or everybody passes, and pairs that pass different
    ones. A page or JSON names the digest of each input, and koderz verify makes it anew from them.

    Examples:
        koderz benchmark leaderboard -o board.html
    """
    from koderz.analysis.blocks import as_markdown
    from koderz.analysis.boards import make_board
    from koderz.cli.tables import print_blocks
    from koderz_tracker.files import write_whole

    suffix = "" if output is None else output.suffix
    if output is not None and suffix not in (".html", ".md", ".json"):
        raise KoderzError(f"--output {output}: a leaderboard is written to .html, .md or .json")
    found = make_board(runs or [], results, arm=arm, measure=measure, alpha=alpha, **options)
    if output is not None:
        pages = {
            ".html": lambda: found.page().encode(),
            ".md": lambda: "\n".join(as_markdown(found.blocks())).encode(),
            ".json": found.encoded,
        }
        with writing(output):
            write_whole(output, [pages[suffix]()])
        say(f"{output}: {len(found.board.standings)} arms of {len(found.inputs)} files")
    elif json:
        print_json(found.document())
    elif markdown:
        say_all(as_markdown(found.blocks()))
    else:
        print_blocks(found.blocks())
    for note in found.left_out if output is not None or json else ():
        warn(f"note: {note}")
