"""`koderz memory`: searches and manages the lessons and results in the memory store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import orjson
import typer

from koderz.analysis.blocks import Table
from koderz.cli.console import print_json, say, shortened, warn
from koderz.cli.flags import Json
from koderz.cli.groups import LazyGroup, PanelCommand, new_group
from koderz.cli.tables import print_blocks
from koderz.errors import KoderzError
from koderz.streams import leave_at_once
from koderz_tracker.files import MB, read_all, write_whole
from koderz_tracker.memory import CATEGORIES, TYPES, Cortex, open_cortex, store_path
from koderz_tracker.memory.cortex import OUTCOMES
from koderz_tracker.memory.detail import Detail, lesson_of, outcome_of, shown
from koderz_tracker.memory.memories import InvalidMemory, choose, drafts_of
from koderz_tracker.memory.store import BATCH
from koderz_tracker.memory.vectors import embedder_for

if TYPE_CHECKING:
    from mcp.server import Server

_QUESTIONS = {
    "find": "Find experiments by suite, task, model, arm, outcome, cause and time.",
    "best": "Rank models and arms by all runs in the store.",
    "hardest": "Rank tasks by how seldom they pass.",
    "tried": "Find the earlier arms nearest to a plan.",
    "compare": "Compare two runs, models or arms.",
    "lessons": "List what failed and what passed afterwards.",
    "claim": "Store a claim with what its runs say.",
    "claims": "List claims as they stand by the evidence of now.",
}


class MemoryGroup(LazyGroup):
    """The group `memory`, whose questions are loaded when they are asked."""

    lazy = {  # noqa: RUF012
        name: (f"koderz.systems.memory.questions:{name}", text) for name, text in _QUESTIONS.items()
    }


app = new_group(
    "Search memories, ask what they say, make claims, export, import, forget and serve.",
    MemoryGroup,
    examples=["koderz memory recall sorting", "koderz memory export -o memories.json"],
)

_TITLE, _GLIMPSE = 48, 100  # characters of a title and of a lesson in a table
_LARGEST = 1024 * MB  # of a file of memories

Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", "-t", metavar="TAG", help="Only memories with all of these tags; repeatable."
    ),
]
Category = Annotated[
    str | None, typer.Option(metavar="WORD", help=f"One of {', '.join(CATEGORIES)}.")
]
Project = Annotated[str | None, typer.Option(metavar="NAME", help="Only memories of this project.")]
Results = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The results folder, which holds memory.db.")
]
Http = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Over HTTP, e.g. 127.0.0.1:8765, instead of stdin and stdout."
    ),
]
TokenEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The variable that holds the token for HTTP. Default: a new one."
    ),
]
Embeddings = Annotated[
    str | None,
    typer.Option(
        metavar="URL|none",
        envvar="KODERZ_EMBEDDINGS",
        help="What recall also compares by meaning with: a model of a server, such as http://127.0.0.1:11434/v1#MODEL. "
        "Default: the extra koderz[recall], if it is installed.",
    ),
]


@app.command(cls=PanelCommand)
def recall(
    query: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="What to look for.")
    ] = None,
    tag: Tags = None,
    category: Category = None,
    type: Annotated[  # noqa: A002
        str | None, typer.Option(metavar="WORD", help=f"One of {', '.join(TYPES)}.")
    ] = None,
    project: Project = None,
    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only memories of this suite.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="ID", help="Only memories of this task.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only memories of this model.")
    ] = None,
    arm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only memories of arms of this name.")
    ] = None,
    solver: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only memories of this solver.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(metavar="WORD", help=f"One of {', '.join(OUTCOMES)}.")
    ] = None,
    cause: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="Only experiments that ended by this cause, e.g. assertion."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="Only memories of this run.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stored then or later, e.g. 2026-01-31.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stored earlier than then.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", help="Maximum number of hits.", min=1)
    ] = 10,
    mode: Annotated[
        str, typer.Option(metavar="WORD", help="search, recent or important.")
    ] = "search",
    detail: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="line, lesson or full, in place of a table.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say why each hit stands where it does.")
    ] = False,
    embeddings: Embeddings = None,
    results: Results = None,
    json: Json = False,
) -> None:
    """Search memories by words, best match first; without words list the most recent ones.

    What is found are tasks, runs and notes. However often a task was tried, it is one hit: the newest memory that fits.

    Examples:
        koderz memory recall sorting
        koderz memory recall palindrome --outcome failed --detail lesson
        koderz memory recall --tag result --json
    """
    if detail is not None:
        choose("detail", detail, get_args(Detail))
    filters: dict[str, Any] = {
        "tags": tag or (),
        "category": category,
        "type": type,
        "project": project,
    }
    filters |= {
        "suite": suite,
        "task": task,
        "model": model,
        "arm": arm,
        "solver": solver,
        "outcome": outcome,
    }
    filters |= {
        "cause": cause,
        "run": run,
        "since": since,
        "until": until,
        "limit": limit,
        "mode": mode,
    }
    words = " ".join(query or ()) or None

    async def recalled(cortex: Cortex) -> tuple[list[dict[str, Any]], str | None]:
        return await cortex.recall(words, explain=explain, **filters), cortex.trouble

    memories, trouble = _asked(recalled, results, embeddings=embeddings)
    told = [shown(memory, cast(Detail, detail)) for memory in memories] if detail else memories
    if json:
        return print_json(told)
    if detail:
        say("\n\n".join(hit["content" if detail == "full" else "text"] for hit in told))
    elif memories:
        print_blocks([_table(memories)])
    return _warn_of(memories, trouble)


@app.command(cls=PanelCommand)
def show(
    which: Annotated[
        str,
        typer.Argument(
            metavar="MEMORY",
            help="The number of a memory, or its key: an experiment's or a run's id.",
        ),
    ],
    results: Results = None,
    json: Json = False,
) -> None:
    """Show one memory in full.

    Examples:
        koderz memory show 1
    """
    memory = _asked(
        lambda cortex: cortex.get_memory(int(which) if which.isdecimal() else which), results
    )
    if memory is None:
        raise KoderzError(f"there is no memory {which}; find one with: koderz memory recall WORDS")
    if json:
        return print_json(memory)
    say(f"{memory['title']}  ({memory['category']}, {memory['type']}, {memory['importance']})")
    say(f"tags: {', '.join(memory['tags']) or 'none'}")
    say(
        f"project: {memory['project'] or 'none'}; stored {memory['created_at']}; read {memory['access_count']} times"
    )
    say()
    say(memory["content"])
    say()
    for number, event in enumerate(memory.get("claim", {}).get("history", ()), 1):
        say(f"{number}. {event['state']}: {event['reason']}")
    say(orjson.dumps(memory["metadata"], option=orjson.OPT_INDENT_2).decode())
    return None


@app.command(cls=PanelCommand)
def export(
    tag: Tags = None,
    category: Category = None,
    project: Project = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stored then or later, e.g. 2026-01-31.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", help="Maximum number of memories.", min=1),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead.")
    ] = None,
    results: Results = None,
    json: Json = False,  # noqa: ARG001 an export is JSON anyway
) -> None:
    """Export matching memories as a JSON array, oldest first.

    Examples:
        koderz memory export -o memories.json
    """
    filters: dict[str, Any] = {
        "category": category,
        "project": project,
        "since": since,
        "limit": limit,
    }
    memories = _asked(lambda cortex: cortex.export_memories(tag or (), **filters), results)
    if output is None:
        return print_json(memories)
    try:
        write_whole(
            output, [orjson.dumps(memories, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)]
        )
    except OSError as error:
        raise KoderzError(f"{output} can't be written ({error.strerror})") from None
    warn(f"{len(memories)} memories written to {output}")
    return None


@app.command(name="import", cls=PanelCommand)
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A JSON export of koderz or Cortex; - reads standard input."
        ),
    ],
    results: Results = None,
    json: Json = False,
) -> None:
    """Import an export; memories that are there already are left alone.

    Examples:
        koderz memory import memories.json
    """
    try:
        data = read_all(sys.stdin.buffer if str(file) == "-" else file, _LARGEST, "standard input")
    except OSError as error:
        raise KoderzError(f"{file} can't be read ({error.strerror})") from None
    try:
        drafts_of(data)  # before a store is made
        new = _asked(lambda cortex: cortex.import_memories(data), results, create=True)
    except InvalidMemory as error:
        raise KoderzError(f"{file}: {error}") from None
    print_json({"imported": new}) if json else say(f"{new} new memories")
    from koderz.cli.sync import settle_claims
    from koderz.settings.layers import results_folder

    settle_claims(results_folder(results), None)


@app.command(cls=PanelCommand)
def stats(project: Project = None, results: Results = None, json: Json = False) -> None:
    """Count memories by category and type.

    Examples:
        koderz memory stats
    """
    found = _asked(lambda cortex: cortex.memory_stats(project), results)
    if json:
        return print_json(found)
    say(
        f"{found['path']}: {found['total']} memories, {found['bytes'] / 1e6:.1f} MB, schema {found['schema']}"
    )
    for name in ("category", "type", "importance", "project"):
        counts = ", ".join(f"{n} {word or 'none'}" for word, n in found[f"by_{name}"].items())
        say(f"{name + ':':<12}{counts or 'none'}")
    say(
        f"{'tags:':<12}{found['tags']}, most often {', '.join(list(found['common_tags'])[:5]) or 'none'}"
    )
    say(f"{'stored:':<12}{found['oldest'] or '-'} to {found['newest'] or '-'}")
    return None


@app.command(cls=PanelCommand)
def forget(
    memory: Annotated[
        int | None,
        typer.Argument(
            metavar="ID", help="The number of one memory.", show_default=False, min=0, max=2**63 - 1
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Only memories with all of these words.")
    ] = None,
    tag: Tags = None,
    category: Category = None,
    project: Project = None,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", help="Only memories stored longer ago than this.", min=0),
    ] = None,
    below_salience: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Only memories of less salience, 0 to 1, after decay.", min=0, max=1
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="With --yes: also where these are all memories.")
    ] = False,
    results: Results = None,
    json: Json = False,
) -> None:
    """Forget the memories that match all conditions: they are shown, then deleted once confirmed (--yes).

    Critical memories, runs and their experiments are never forgotten.

    Examples:
        koderz memory forget 1
        koderz memory forget --older-than 90 --below-salience 0.2
    """
    filters: dict[str, Any] = {
        "query": query,
        "tags": tag or (),
        "category": category,
        "project": project,
    }
    filters |= {"older_than": older_than, "below_salience": below_salience}
    answer = _asked(lambda cortex: cortex.forget(id=memory, **filters, dry_run=True), results)
    if not json:
        _tell_forgetting(answer)
    if answer["would_forget"] and (yes or (not json and _confirmed(answer["would_forget"]))):
        everything = all_ or (
            answer["everything"]
            and not yes
            and typer.confirm(
                "These are all memories that may be forgotten. Forget every one of them?", err=True
            )
        )
        answer = _asked(
            lambda cortex: cortex.forget(
                id=memory, **filters, dry_run=False, everything=everything
            ),
            results,
        )
        if not json:
            say(f"{answer['forgotten']} forgotten")
    if json:
        print_json(answer)


@app.command(cls=PanelCommand)
def serve(
    http: Http = None,
    token_env: TokenEnv = None,
    embeddings: Embeddings = None,
    results: Results = None,
) -> None:
    """Serve the memory store to Claude Code, Cursor and others as an MCP server, until the client disconnects.

    Its tools have the names and arguments of Cortex' own. docs/how-to/memory.md says how to configure clients.

    Examples:
        koderz memory serve
    """
    # whatever was stored is durable, and a thread that reads standard input can't be cancelled
    leave_at_once()
    serve_store(http, token_env, results, "the memory store is", embeddings=embeddings)


def serve_store(
    http: str | None,
    token_env: str | None,
    results: Path | None,
    what: str,
    make: Callable[[Cortex], Server[Any]] | None = None,
    *,
    embeddings: str | None,
) -> None:
    """Serves the memory store by MCP, over standard input and output or over HTTP; `make` makes a server of it."""
    from koderz.systems.memory.server import make_server, serve_http, serve_stdio, token_from

    embedder_for(embeddings)  # which refuses what is no address
    made = make or make_server
    if http is None:
        _asked(
            lambda cortex: serve_stdio(cortex, made), results, create=True, embeddings=embeddings
        )
        return
    host, _, number = http.rpartition(":")
    host = host.strip("[]")
    if not host or not number.isdecimal() or int(number) > 65535:
        raise KoderzError(f"--http {http}: write HOST:PORT, e.g. 127.0.0.1:8765")
    token = token_from(os.environ, token_env)

    def ready(url: str) -> None:
        warn(f"{what} served at {url}")
        warn(f"token: {token}" if token_env is None else f"token: that of {token_env}")

    _asked(
        lambda cortex: serve_http(cortex, host, int(number), token, ready=ready, make=made),
        results,
        create=True,
        embeddings=embeddings,
    )


def _asked(
    work: Callable[[Cortex], Awaitable[Any]],
    results: Path | None,
    *,
    create: bool = False,
    embeddings: str | None = None,
) -> Any:
    """The result of `work` on the store. With `create`, a missing store is created."""
    from koderz.settings.layers import results_folder

    path = store_path(results_folder(results))

    async def worked() -> Any:
        opening = open_cortex(path, create=create, progress=_tell_progress, embeddings=embeddings)
        async with opening as cortex:
            return await work(cortex)

    return asyncio.run(worked())


def _tell_progress(done: int, of: int) -> None:
    """Says, ten times or less, how far a store of an older version is taken over."""
    if not done or done * 10 // of > max(0, done - BATCH) * 10 // of:
        warn(f"the memory store is brought up to date, once: {done:,} of {of:,} memories")


def _warn_of(memories: Sequence[dict[str, Any]], trouble: str | None) -> None:
    """Says that nothing was found, or with which reserve."""
    if not memories:
        warn("no matching memories")
    if note := memories[0].get("note") if memories else trouble:
        warn(f"note: {note}")
    if memories and memories[0]["ranking"] == "newest":
        warn(
            "note: these words are very common, so only the newest memories that hold them were ranked"
        )


def _table(memories: Sequence[dict[str, Any]]) -> Table:
    """Hits as a table of those columns that any of them fills."""
    rows = [_row(memory) for memory in memories]
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    optional = [head for head in ("Tried", "Model", "Arm", "When") if head in heads]
    return Table(heads, [[row[head] for head in heads] for row in rows], optional=optional)


def _row(memory: dict[str, Any]) -> dict[str, str]:
    """A hit as the cells of a table by their heads."""
    told = memory["metadata"]
    is_result = "result" in memory["tags"] and bool(told.get("problem_id"))
    (lesson,) = lesson_of(memory).split("\n")[1:2] or [""]
    why = memory.get("why") or {}
    places = [
        f"{word} in {' and '.join(where)}" for word, where in why.get("words", {}).items() if where
    ]
    if why:
        places += [f"rank {rank} by {name}" for name, rank in why.get("ranks", {}).items() if rank]
        places.append(f"relevance {why['relevance']:.2f}, salience {why['salience']:.2f}")
    return {
        "#": str(memory["id"]),
        "About": str(told["problem_id"]) if is_result else shortened(memory["title"], _TITLE),
        "Arm": str(told.get("arm") or told.get("solver") or told.get("mode") or ""),
        "Model": str(told.get("model") or ""),
        "Outcome": outcome_of(told) if is_result else str(told.get("status") or ""),
        "Tried": f"{memory['tried']}, {memory['passed']} passed"
        if is_result and memory.get("tried")
        else "",
        "When": memory["created_at"][:16].replace("T", " "),
        "Lesson": shortened(" ".join(lesson.split()), _GLIMPSE),
        "Why": "; ".join(places),
    }


def _tell_forgetting(told: dict[str, Any]) -> None:
    rows = [
        [str(memory["id"]), memory["title"], f"({memory['category']})"]
        for memory in told["memories"]
    ]
    print_blocks([Table((), rows, ruled=False)])
    if more := told["would_forget"] - len(told["memories"]):
        say(f"… and {more} more")
    if told["protected"]:
        warn(
            f"{told['protected']} that fit are kept: critical memories, runs and experiments are never forgotten"
        )
    if not told["would_forget"]:
        warn("nothing to forget")


def _confirmed(number: int) -> bool:
    if not sys.stdin.isatty():
        warn("nothing is forgotten yet; say --yes to forget these")
        return False
    return typer.confirm(f"Forget {number} memories for good?", err=True)
