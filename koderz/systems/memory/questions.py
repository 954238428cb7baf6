"""`koderz memory find`, `best`, … and `claim`: questions of a researcher, and claims, on the memory store alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from koderz.cli.console import print_json, warn
from koderz.cli.flags import AllowSimulated, Json, Results, with_flags
from koderz.errors import KoderzError

_FILTERS = {
    "suite": Annotated[str | None, typer.Option(metavar="NAME", help="Only this suite.")],
    "task": Annotated[
        str | None, typer.Option(metavar="ID", help="Only this task, e.g. HumanEval/3.")
    ],
    "model": Annotated[str | None, typer.Option(metavar="NAME", help="Only this model.")],
    "arm": Annotated[
        str | None, typer.Option(metavar="ARM", help="Only this arm, e.g. iterative.")
    ],
    "solver": Annotated[str | None, typer.Option(metavar="NAME", help="Only this solver.")],
    "tags": Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", metavar="TAG", help="Only with all of these tags; repeatable."),
    ],
    "since": Annotated[
        str | None, typer.Option(metavar="TIME", help="Ended then or later, e.g. 2026-01-31.")
    ],
    "until": Annotated[
        str | None, typer.Option(metavar="TIME", help="Ended earlier, e.g. 2026-02-28.")
    ],
    "run": Annotated[
        str | None, typer.Option(metavar="ID", help="Only this run of the store, or latest.")
    ],
    "allow_simulated": AllowSimulated,
}
_CAUSE = Annotated[
    str | None, typer.Option(metavar="CAUSE", help="Only failed so, e.g. assertion or exception.")
]
_ENDS = {
    "outcome": Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="passed, failed (whatever didn't pass), timeout, error or fault."
        ),
    ],
    "cause": _CAUSE,
}
_Limit = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", help="Maximum number of rows.", min=1)
]
_Measure = Annotated[
    str | None, typer.Option(metavar="NAME", help="What is compared. Default: the system's own.")
]
_ClaimOf = Annotated[str | None, typer.Option(metavar="CLAIM", help="The number of a claim.")]


def _answer(question: str, results: Path, *named: Any, json: bool, **asked: Any) -> None:
    """Asks the store and prints the answer."""
    from koderz.analysis import claims, questions
    from koderz.cli.tables import print_blocks
    from koderz_tracker.memory import store_path
    from koderz_tracker.memory.store import Store

    given = {name: value for name, value in asked.items() if value not in (None, False)}
    with Store(store_path(results), create=False) as store:
        found = getattr(claims if question in ("claim", "claims") else questions, question)(
            store, *named, **given
        )
    print_json(found.document()) if json else print_blocks(found.blocks())
    if not found.rows and not json:
        warn("nothing fits")


@with_flags(_FILTERS | _ENDS)
def find(
    order: Annotated[
        str, typer.Option(metavar="WORD", help="newest, or telling: lessons, then failures.")
    ] = "newest",
    limit: _Limit = 10,
    json: Json = False,
    *,
    results: Results,
    **chosen: Any,
) -> None:
    """Find experiments by suite, task, model, arm, outcome, cause and time.

    Examples:
        koderz memory find --suite humaneval --outcome failed --order telling
    """
    _answer("find", results, json=json, order=order, limit=limit, **chosen)


@with_flags(_FILTERS)
def best(
    by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="success, score, another measure, or cost-per-success."),
    ] = None,
    limit: _Limit = 10,
    json: Json = False,
    *,
    results: Results,
    **chosen: Any,
) -> None:
    """Rank models and arms by all runs in the store, and say which can't be told apart.

    Repeats of a model and arm are taken together, each task counted once for its samples.

    Examples:
        koderz memory best --suite humaneval
        koderz memory best --task HumanEval/3 --by cost-per-success
    """
    _answer("best", results, json=json, by=by, limit=limit, **chosen)


@with_flags({**_FILTERS, "cause": _CAUSE})
def hardest(limit: _Limit = 10, json: Json = False, *, results: Results, **chosen: Any) -> None:
    """Rank tasks by how seldom they pass, in any arm or the one named: how often tried, and why they failed.

    Examples:
        koderz memory hardest --suite humaneval --arm iterative
    """
    _answer("hardest", results, json=json, limit=limit, **chosen)


@with_flags(_FILTERS)
def tried(
    plan: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="What is planned.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--setting", metavar="K=V", help="A setting of the plan; repeatable."),
    ] = None,
    limit: _Limit = 5,
    json: Json = False,
    *,
    results: Results,
    **chosen: Any,
) -> None:
    """Find the earlier arms nearest to a plan: what differed, what they gave, and what they could have shown.

    WORDS name suites, models, solvers, arms and settings in any order; --suite, --model, --solver and --arm, too, say
    what is planned.

    Examples:
        koderz memory tried humaneval iterative temperature 0.8
    """
    pairs = [text.partition("=") for text in setting or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise KoderzError(f"--setting {wrong[0]}: write name=value")
    settings = {name: value for name, _, value in pairs}
    _answer(
        "tried",
        results,
        " ".join(plan or ()),
        json=json,
        settings=settings or None,
        limit=limit,
        **chosen,
    )


@with_flags(_FILTERS)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The baseline: a run, a model or an arm.")],
    b: Annotated[
        str | None,
        typer.Argument(metavar="[B]", help="The candidate. Default: the other arm of A."),
    ] = None,
    measure: _Measure = None,
    json: Json = False,
    *,
    results: Results,
    **chosen: Any,
) -> None:
    """Compare two runs, models or arms, or the arms of one run: the verdict in a sentence, with its interval.

    Examples:
        koderz memory compare zero-shot iterative
        koderz memory compare latest~1 latest
    """
    _answer("compare", results, a, b, json=json, measure=measure, **chosen)


@with_flags({**_FILTERS, "cause": _CAUSE})
def lessons(limit: _Limit = 10, json: Json = False, *, results: Results, **chosen: Any) -> None:
    """List what failed and what passed afterwards, for a task or a cause: what --use-memory shows models.

    Examples:
        koderz memory lessons --cause assertion
    """
    _answer("lessons", results, json=json, limit=limit, **chosen)


def claim(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="What is claimed.")],
    run: Annotated[
        list[str],
        typer.Option(
            "--run", metavar="ID", help="What it rests on: one run, or baseline and candidate."
        ),
    ],
    arm: Annotated[
        str | None, typer.Option(metavar="ARM", help="The arm that it is about.")
    ] = None,
    measure: _Measure = None,
    supersedes: _ClaimOf = None,
    contradicts: _ClaimOf = None,
    by: Annotated[str, typer.Option(metavar="NAME", help="Who claims it.")] = "koderz memory claim",
    json: Json = False,
    *,
    results: Results,
) -> None:
    """Store a claim with what its runs say, and the interval; it is checked again whenever they change.

    About one run it is the success rate in an arm, or how its two arms differ; about two runs, how they differ.

    Examples:
        koderz memory claim "iterating helps" --run latest
    """
    relations = {"supersedes": supersedes, "contradicts": contradicts}
    _answer(
        "claim",
        results,
        sentence,
        run,
        json=json,
        arm=arm,
        measure=measure,
        made_by=by,
        **relations,
    )


def claims(
    fallen: Annotated[bool, typer.Option("--fallen", help="Only those that have fallen.")] = False,
    limit: _Limit = 50,
    json: Json = False,
    *,
    results: Results,
) -> None:
    """List claims as they stand by the evidence of now, newest first, and why one moved or fell.

    Examples:
        koderz memory claims --fallen
    """
    _answer("claims", results, json=json, fallen=fallen, limit=limit)
