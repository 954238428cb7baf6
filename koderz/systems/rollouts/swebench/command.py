"""`koderz rollouts regrade`: verdicts on anyone's predictions for SWE-bench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import print_json, say, warn, writing
from koderz.cli.flags import SummaryJson
from koderz_tracker.files import write_whole

if TYPE_CHECKING:
    from koderz.systems.rollouts.swebench.judging import Regraded


def regrade(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Rows of SWE-bench (.jsonl), or a task repository.")],
    predictions: Annotated[
        Path, typer.Option("--predictions", metavar="FILE", help="Patches of anyone: lines, a list or an object by id.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="REPORT.json", help="Where the reports go.")],
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs", metavar="DIR", help="Recorded logs, DIR/INSTANCE/test_output.txt. Without, the tests run."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="DIR", envvar="KODERZ_IMAGES", help="A folder of the instances' images."),
    ] = None,
    environments: Annotated[
        Path | None,
        typer.Option("--environments", metavar="FILE", help="[[environments]] of here that stand in for images."),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1, help="Instances at work at once.")] = 1,
    json: SummaryJson = False,
) -> None:
    """Grade predictions for SWE-bench by its rules, from recorded logs or by running the tests.

    Exit code 3 where an instance can't be graded.

    Examples:
        koderz rollouts regrade rows.jsonl --predictions mine.jsonl -o report.json
    """
    import asyncio

    import orjson

    from koderz.systems.rollouts.swebench.judging import regraded

    found: list[Regraded] = []

    def take(each: Regraded) -> None:
        found.append(each)
        if each.fault:
            warn(f"{each.instance} isn't graded: {each.fault}")
        elif not json:
            say(f"{'resolved' if each.report['resolved'] else 'unresolved':10}  {each.instance}")

    total = asyncio.run(
        regraded(rows, predictions, take, logs=logs, images=images, environments=environments, most=parallel)
    )
    reports: dict[str, Any] = {each.instance: each.report for each in sorted(found) if each.report}
    with writing(output):
        write_whole(output, [orjson.dumps(reports, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)])
    resolved = [name for name, report in reports.items() if report["resolved"]]
    ungraded = [each.instance for each in found if each.fault]
    if json:
        about = {"resolved": resolved, "graded": len(found) - len(ungraded), "ungraded": ungraded}
        print_json({**about, "empty": [each.instance for each in found if each.is_empty], "instances": total})
    else:
        say(f"{len(resolved)} of {total} instances resolved{_not_resolved(found, total)}: {output}")
    raise typer.Exit(3 if ungraded else 0)


def _not_resolved(found: Sequence[Regraded], total: int) -> str:
    """The numbers of instances whose patches no test was run on; empty if there are none."""
    counts = {
        "with an empty patch": sum(each.is_empty for each in found),
        "not graded": sum(bool(each.fault) for each in found),
        "without prediction": total - len(found),
    }
    more = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    return f" ({more})" if more else ""
