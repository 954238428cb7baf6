"""`koderz benchmark`: a new run, or one that is picked up again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from koderz.cli.groups import DefaultGroup, PanelCommand
from koderz.cli.options import changeable, with_settings
from koderz.errors import KoderzError

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("koderz.cli.list", "List runs: rates with intervals, costs, times, status."),
    "show": ("koderz.cli.show", "Show a run, its failures, or an experiment from prompt to verdict."),
    "export": ("koderz.cli.export", "Export runs as CSV, Parquet, JSONL or Markdown."),
    "import": ("koderz.cli.imports", "Import samples, judged here, or runs of another machine."),
    "report": ("koderz.cli.report", "Write a report: one self-contained web page."),
    "compare": ("koderz.cli.compare", "Compare runs: is B better than A, and where? With gates for CI."),
    "problems": ("koderz.cli.problems", "Rank problems by difficulty across runs."),
}
"""Command → the module that holds its `app`, loaded when it is run, and its line of help."""


class BenchmarkGroup(DefaultGroup):
    lazy = COMMANDS
    examples = """\
  # ten problems, each asked once and then with feedback of its tests
  koderz benchmark 0 10 --mode comparative
  # all of HumanEval, for two dollars at most
  koderz benchmark 0 164 --model openai/gpt-4o-mini --max-cost 2
  # go on with the latest run where it stopped
  koderz benchmark resume latest
"""


app = typer.Typer(
    cls=BenchmarkGroup,
    help="Work with recorded runs. A run is named by its id, a unique prefix, a summary file, latest or latest~1.",
    rich_markup_mode=None,
)

EXIT_CODES = {"complete": 0, "incomplete": 3, "stopped": 3, "detached": 0, "failed": 4, "interrupted": 130}

Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else, on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", help="With --engine modal: return once everything is submitted; collect results with resume."
    ),
]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Also in a terminal, return only once the sinks are up to date. Elsewhere it does."),
]
Trust = Annotated[
    bool, typer.Option("--trust-config", help="Trust what koderz.toml, or the run's plan, may send or execute.")
]
AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Continue even if the suite, prompts or solver have changed.")
]
AcceptDivergence = Annotated[
    bool, typer.Option("--accept-divergence", help="Continue even if the solver's calls diverge from the recording.")
]


def complete_runs(incomplete: str) -> list[str]:
    """The names of runs that a shell may offer, the latest first."""
    from koderz.settings.toml import results_folder
    from tracker.runs import run_folders

    try:
        names = [path.name for path in reversed(run_folders(results_folder()))]
    except KoderzError:  # whoever types is not to be disturbed
        names = []
    return [name for name in ["latest", *names[:50]] if name.startswith(incomplete)]


Run = Annotated[str, typer.Argument(metavar="RUN", help="Which run.", autocompletion=complete_runs)]


@app.command(name="run", cls=PanelCommand, hidden=True)
@with_settings()
def benchmark(
    given: dict[str, Any],
    start: Annotated[int | None, typer.Argument(help="The first problem's index, from 0.", show_default=False)] = None,
    end: Annotated[
        int | None, typer.Argument(help="The index after the last: 0 10 is ten.", show_default=False)
    ] = None,
    solver_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A parameter of --solver; repeatable.", rich_help_panel="Solver"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its estimated cost, then exit.")
    ] = False,
    detach: Detach = False,
    json: Json = False,
    quiet: Quiet = False,
    wait: Wait = False,
    trust_config: Trust = False,
) -> None:
    """Run a benchmark on the problems from START up to, but not including, END.

    With --problems as well, those of both. Any option can be set as KODERZ_OPTION_NAME, or as option-name
    in koderz.toml.
    """
    import asyncio

    from koderz.cli.console import Console
    from koderz.runs.prepare import prepare

    console = Console(quiet=quiet, json=json)
    span = _span(start, end, given)
    arguments = dict(_split_argument(text) for text in solver_arg or ())
    prepared = prepare(given, span, solver_arguments=arguments, trust_config=trust_config, observer=console)
    plan = asyncio.run(prepared)
    if dry_run:
        from koderz.cli.dryrun import show_plan

        show_plan(plan, json=json)
        return
    from koderz.runs.session import begin

    _finish(begin(plan, console, detach=detach), console, json=json, quiet=quiet, wait=wait)


def _picking_up(how: Literal["resume", "retry"]) -> Callable[..., None]:
    @with_settings(*changeable(), "results")
    def command(
        run: Run,
        given: dict[str, Any],
        detach: Detach = False,
        json: Json = False,
        quiet: Quiet = False,
        wait: Wait = False,
        accept_changes: AcceptChanges = False,
        accept_divergence: AcceptDivergence = False,
        trust_config: Trust = False,
    ) -> None:
        way = {"accept_divergence": accept_divergence, "accept_changes": accept_changes, "trust_config": trust_config}
        _resume(run, {"how": how, "detach": detach, **way}, given, json=json, quiet=quiet, wait=wait)

    return command


for _how, _text in (
    ("resume", "Resume a run where it stopped. Nothing recorded is asked, judged or paid for again."),
    ("retry", "Run the experiments that ended in a fault again, from what they have on record."),
):
    app.command(name=_how, cls=PanelCommand, help=_text)(_picking_up(cast("Literal['resume', 'retry']", _how)))


@app.command(cls=PanelCommand)
@with_settings(*changeable(), "results")
def rescore(
    run: Run,
    given: dict[str, Any],
    json: Json = False,
    quiet: Quiet = False,
    wait: Wait = False,
    calls: Annotated[
        bool,
        typer.Option(
            "--continue", help="Make the calls that new verdicts lead to; otherwise those experiments end as faults."
        ),
    ] = False,
    accept_changes: AcceptChanges = False,
    accept_divergence: AcceptDivergence = False,
    trust_config: Trust = False,
) -> None:
    """Run the solvers again over the recorded replies with new verdicts. No call is made unless --continue."""
    way = {"accept_divergence": accept_divergence, "accept_changes": accept_changes, "trust_config": trust_config}
    _resume(run, {"how": "rescore", "calls": calls, **way}, given, json=json, quiet=quiet, wait=wait)


@app.command(cls=PanelCommand)
@with_settings("results")
def watch(
    run: Run,
    given: dict[str, Any],
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Time between updates. Default: 1; without a terminal 5; on Modal 30.", min=0.1
        ),
    ] = None,
    detailed: Annotated[
        bool, typer.Option("--detailed", help="One line per attempt and outcome; on Modal with a link to its logs.")
    ] = False,
) -> None:
    """Follow a run from another terminal (one on Modal: from any machine) until it ends."""
    import asyncio

    from koderz.cli.watch import watch_run
    from koderz.settings.toml import results_folder

    asyncio.run(watch_run(results_folder(given.get("results")), run, every, detailed=detailed))


def _resume(run: str, way: dict[str, Any], given: dict[str, Any], *, json: bool, quiet: bool, wait: bool) -> None:
    from koderz.cli.console import Console
    from koderz.runs.resume import ResumeOptions, resume_run

    console = Console(quiet=quiet, json=json)
    results: Path | None = given.pop("results", None)
    session = resume_run(run, ResumeOptions(**way), results=results, changes=given, observer=console)
    _finish(session, console, json=json, quiet=quiet, wait=wait)


def _finish(session: Coroutine[Any, Any, Any], console: Any, *, json: bool, quiet: bool, wait: bool) -> None:
    """Sees a session through, prints its results, leaves or waits for its sinks, and ends with its exit code."""
    import asyncio

    from koderz.cli.catching_up import catch_up_session

    with _interruptible():
        done = asyncio.run(session)
    console.results(done)
    if json:
        from koderz.cli.console import data_output
        from koderz.cli.pipe import while_read
        from tracker.sinks.json import encode_summary

        with while_read():
            data_output().writelines(encode_summary(done.summary))
    catch_up_session(done, quiet=quiet, wait=wait or json)
    raise typer.Exit(EXIT_CODES.get(done.ended.status, 3))


@contextmanager
def _interruptible() -> Iterator[None]:
    """An asyncio run that was cancelled at once by a second Ctrl-C is an interruption, not a crash."""
    import asyncio

    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _span(start: int | None, end: int | None, given: dict[str, Any]) -> range | None:
    if start is None and end is None:
        if not {"problems", "limit"} & set(given):
            raise KoderzError("say which problems: START END (0 10 is the first ten), --problems IDS or --limit N")
        return None
    if start is None or end is None:
        raise KoderzError("a range takes both START and END: 0 10 is the first ten problems")
    return range(start, end)


def _split_argument(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise KoderzError(f"--solver-arg {text}: write name=value")
    return key, value
