"""`koderz benchmark`: begins a run, or works on an earlier one again. `koderz run`: one experiment.

`koderz decide`: a benchmark of two models that stops once it is decided.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import OutputOptions
from koderz.cli.flags import JUNIT, LEAST, Quiet, SummaryJson, Trust
from koderz.cli.front import Front, add_resume_commands, exit_code, finish, one, run_options
from koderz.cli.groups import DefaultGroup, PanelCommand, is_help, new_group
from koderz.cli.options import with_settings
from koderz.engines.sources import Scope
from koderz.errors import KoderzError
from koderz.settings.schema import FIRST_ARM, MODEL_DEFAULT, MODEL_HELP, OF_SINKS

if TYPE_CHECKING:
    from typer._click.core import Context
    from typer._click.shell_completion import CompletionItem

    from koderz.runs.session import SessionResult


COMMANDS: dict[str, tuple[str, str]] = {
    "watch": (
        "koderz.cli.watch:watch",
        "Follow a run from another terminal (one on Modal: from any machine) until it ends.",
    ),
    "list": ("koderz.cli.list:list_runs", "List runs: rates with intervals, costs, times, status."),
    "show": (
        "koderz.cli.show:show",
        "Show a run, its failures, or an experiment from prompt to verdict.",
    ),
    "export": ("koderz.cli.export:export", "Export runs as CSV, Parquet, JSONL or Markdown."),
    "import": (
        "koderz.cli.judge:import_runs",
        "Import samples, judged here, or runs of another machine.",
    ),
    "compare": (
        "koderz.cli.compare:compare",
        "Compare runs: is B better than A, and where? With gates for CI.",
    ),
    "leaderboard": (
        "koderz.cli.compare:leaderboard",
        "Rank runs and other tools' logs: tiers, and sets of ranks.",
    ),
    "problems": ("koderz.cli.compare:problems", "Rank tasks by difficulty across runs."),
}
"""Each command's module, which holds its `app` and is loaded when it runs, and its line of help."""


EXIT_NOT_PASSED = 1
_NOT_FOR_ONE = (
    "problems", "limit", "shuffle", "samples", "baseline_model", "concurrency", "judges", "grace", *OF_SINKS,
)  # fmt: skip
# without the model's being repeatable
_HELP_OF_ONE = {"local_model": f"{MODEL_HELP} {MODEL_DEFAULT}"}
_EXAMPLES = """\
  # ten tasks, each asked once and then with feedback of its tests
  koderz benchmark 0 10 --mode comparative
  # all of HumanEval, for two dollars at most
  koderz benchmark 0 164 --model openai/gpt-6-luna --max-cost 2
  # go on with the latest run where it stopped
  koderz benchmark resume latest
"""


class BenchmarkGroup(DefaultGroup):
    """The group `benchmark`. A number or option in place of a command is passed to a hidden command."""

    lazy = COMMANDS

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(self._brief(ctx), err=True)
            raise typer.Exit(2)
        if (
            args
            and not is_help(ctx, args[0])
            and (args[0].startswith("-") or args[0].lstrip("+").isdigit())
        ):
            args = [self.alone, *args]
        return super().parse_args(ctx, args)

    def _brief(self, ctx: Context) -> str:
        """A short usage text for the group's name alone."""
        commands = textwrap.wrap(
            ", ".join(name for name, command in self.commands.items() if not command.hidden), 68
        )
        return (
            f"Usage: {ctx.command_path} [OPTIONS] START END\n"
            f"       {ctx.command_path} COMMAND [ARGS]...\n\n"
            f"Examples:\n{_EXAMPLES}\n"
            f"Commands: {(chr(10) + ' ' * 10).join(commands)}\n\n"
            f"All options: {ctx.command_path} --help"
        )

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Completions: commands, and the options of the hidden command."""
        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            offered += self.commands[self.alone].shell_complete(ctx, incomplete)
        return list({item.value: item for item in offered}.values())


app = new_group(
    "Work with recorded runs. A run is named by its id, a unique prefix, a summary file, latest or latest~1.",
    BenchmarkGroup,
)


@app.command(name=BenchmarkGroup.alone, cls=PanelCommand, hidden=True)
@run_options(flags=JUNIT | LEAST)
def benchmark(
    front: Front,
    start: Annotated[
        int | None, typer.Argument(help="The first task's index, from 0.", show_default=False)
    ] = None,
    end: Annotated[
        int | None,
        typer.Argument(help="The index after the last: 0 10 is ten.", show_default=False),
    ] = None,
    solver_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V", help="A parameter of --solver; repeatable.", rich_help_panel="Solver"
        ),
    ] = None,
) -> None:
    """Run a benchmark on the tasks from START up to, but not including, END.

    With --problems as well, those of both. Any option can be set as KODERZ_OPTION_NAME, or as option-name
    in koderz.toml.

    Examples:
        koderz benchmark 0 10 --mode comparative
        koderz benchmark 0 164 --model openai/gpt-6-luna --max-cost 2
        koderz benchmark resume latest
    """
    arguments = {}
    for text in solver_arg or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise KoderzError(f"--solver-arg {text}: write name=value")
        arguments[key] = value
    if start is None and end is None:
        if not ({"problems", "limit", "dataset"} & set(front.values) or _has_own_tasks(front)):
            raise KoderzError(
                "say which tasks: START END (0 10 is the first ten), --problems IDS or --limit N"
            )
        span = None
    elif start is None or end is None:
        raise KoderzError("a range takes both START and END: 0 10 is the first ten tasks")
    else:
        span = range(start, end)
    front.run(span, solver_arguments=arguments)


add_resume_commands(app)


@with_settings(
    scope=Scope(without=dict.fromkeys(_NOT_FOR_ONE, "")),
    told={"local_model": f"{MODEL_HELP} {MODEL_DEFAULT}"},
)
def run_task(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Which one: HumanEval/3, or 3.")],
    given: dict[str, Any],
    json: SummaryJson = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Run one experiment: each reply, its program and its verdict are shown as they come.

    Its journal is kept under the results folder, by its own id. Exit code 0 if it passed, 1 if not.

    Examples:
        koderz run HumanEval/3
        koderz run 3 --model openai/gpt-6-luna --mode zero-shot
    """
    import asyncio

    from koderz.cli.show import StoryPrinter
    from koderz.engines.sources import require_effect
    from koderz.runs.prepare import prepare
    from koderz.runs.session import begin

    printer = StoryPrinter(quiet=quiet or json)
    named = [*given]
    given |= {"problems": (task,)}
    plan = asyncio.run(
        prepare(given, None, single=True, trust_config=trust_config, observer=printer)
    )
    require_effect([plan], named)

    def code(session: SessionResult) -> int:
        return exit_code(session) or (0 if session.summary.summary.successes else EXIT_NOT_PASSED)

    finish(
        one(begin(plan, printer)),
        OutputOptions(json=json, quiet=quiet),
        tell=lambda _: None,
        code=code,
    )


def _has_own_tasks(front: Front) -> bool:
    """Whether the tasks are of the user's own file, of which all are meant, or are selected by more than flags."""
    from koderz.engines.sources import read_sources
    from koderz.suites import SUITES, added_dataset

    names = ("suite", "dataset", "problems", "limit")
    given = {name: front.values[name] for name in names if name in front.values}
    settings = read_sources(given, names=names, trust_config=front.trust_config).settings
    is_own = settings.dataset or SUITES.is_file(settings.suite) or added_dataset(settings.suite)
    return bool(is_own or settings.problems or settings.limit)


@run_options(
    without={"local_model": "the arguments A and B"}, mode="zero-shot", until_decided=FIRST_ARM
)
def decide(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="The model that B is compared with.", show_default=False),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other model.", show_default=False)],
    front: Front,
) -> None:
    """Compare model B with model A, and stop once it is decided which is better, or that the rest can't tell.

    It is koderz benchmark --model A --model B --until-decided with mode zero-shot, and takes all of its options.
    Without --problems and --limit it is about all tasks. Exit code 0 once it is decided, 3 at the cost cap, 1 with
    --fail-on-regression where B is shown to be worse.

    Examples:
        koderz decide openai/gpt-6-luna openai/gpt-6.1-terra --max-cost 2
    """
    if a == b:
        raise KoderzError(f"A and B are both {a}; name two models")
    replace(front, values={**front.values, "local_model": a, "models": (a, b)}).run()
