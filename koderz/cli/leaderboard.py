"""`koderz leaderboard`: ranks, tiers and intervals of runs and of other tools' logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from koderz.cli.console import print_json, say, say_all, warn, writing
from koderz.cli.flags import AllowSimulated, Arm, ByMeasure, Cluster, Json, Results, with_flags
from koderz.errors import KoderzError

_OPTIONS = {
    "exact": Annotated[bool, typer.Option("--exact", help="Test rates by McNemar's exact test.")],
    "unequal_resources": Annotated[
        bool, typer.Option("--unequal-resources", help="Rank arms that had different resources on the same tasks.")
    ],
    "allow_simulated": AllowSimulated,
    "cluster": Cluster,
}


@with_flags(_OPTIONS)
def leaderboard(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|FILE|DIR] …", help="Runs, other tools' logs, or folders of such. Default: all runs."
        ),
    ] = None,
    arm: Arm = None,
    measure: ByMeasure = None,
    alpha: Annotated[
        float, typer.Option(metavar="P", help="How probable any false claim may be, 0 to 0.5.", min=1e-6, max=0.5)
    ] = 0.05,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to .html, .md or .json.")
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
