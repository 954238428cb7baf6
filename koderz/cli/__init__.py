"""The command line: parse, call, print. One module a command group."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from koderz.cli.console import warn, while_read
from koderz.cli.groups import LazyGroup
from koderz.errors import KoderzError
from koderz.settings.systems import own_systems
from koderz.streams import EXIT_INTERRUPTED, plain
from koderz_tracker.registry import systems_of_others

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter
    from typer._click.shell_completion import CompletionItem

_OF_RUNS = {
    "benchmark": (
        "koderz.cli.benchmark",
        "Run a benchmark; resume, watch, compare and report runs.",
    ),
    "decide": ("koderz.cli.benchmark:decide", "Compare two models, and stop once it is decided."),
    "run": ("koderz.cli.benchmark:run_task", "Run one experiment and show it as it happens."),
}
_OF_THE_REST = {
    "judge": (
        "koderz.cli.judge",
        "Judge a program or a samples file, or serve a judge for training.",
    ),
    "suites": ("koderz.cli.suites", "List suites, add their datasets, and write their rows."),
    "ui": ("koderz.cli.ui:ui", "Serve MLflow's UI for this project's runs."),
    "sync": ("koderz.cli.sync:sync", "Bring the sinks up to date from the journals."),
    "doctor": ("koderz.cli.doctor:doctor", "Check models, sandbox and sinks on this machine."),
}
COMMANDS = {
    **_OF_RUNS,
    **{name: command for system in own_systems() for name, command in system.commands.items()},
    **_OF_THE_REST,
}
"""Each command's module, which holds its `app`, and its line in `koderz --help`."""

_REPORT = ["report"] if "benchmark report" in COMMANDS else []
ALIASES = (
    "list",
    "show",
    "compare",
    "leaderboard",
    *_REPORT,
    "resume",
    "retry",
    "watch",
    "export",
    "problems",
)
"""The commands of `koderz benchmark` that may be called without its name, too."""


class Root(LazyGroup):
    """The commands of koderz, and those of other packages' systems where all are listed or none of ours is named."""

    lazy = COMMANDS | {
        name: COMMANDS.get(f"benchmark {name}", (f"koderz.cli.benchmark:app {name}", ""))
        for name in ALIASES
    }

    def list_commands(self, ctx: Context) -> list[str]:
        self._add_others()
        return [name for name in super().list_commands(ctx) if name not in ALIASES]

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Short for koderz benchmark …: {', '.join(ALIASES)}.")

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Completions: commands, and the aliases among them."""
        from typer._click.shell_completion import CompletionItem

        aliases = [CompletionItem(name) for name in ALIASES if name.startswith(incomplete)]
        return super().shell_complete(ctx, incomplete) + aliases

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        if args and args[0] not in self.commands:
            self._add_others()
        return super().resolve_command(ctx, args)

    def _add_others(self) -> None:
        for system in systems_of_others():
            self.add_lazily(system.commands)

    def invoke(self, ctx: Context) -> Any:
        try:
            if any(name.startswith("KODERZ") for name in os.environ):
                from koderz.engines.sources import schema_of

                for name, meant in schema_of().misspelt(os.environ).items():
                    warn(f"warning: the variable {name} sets nothing; did you mean {meant}?")
            with while_read():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # which typer would make an exit code without a word
            raise typer.Abort from None


_HELP = """\
Measure how well language models solve tasks, and never lose a result.

Examples:
    koderz benchmark 0 10 --mode comparative
    koderz compare latest
"""

app = typer.Typer(
    cls=Root,
    name="koderz",
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from koderz._version import __version__

        typer.echo(f"koderz {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(  # noqa: ARG001 its callback does it
        False,
        "--version",
        help="Print the version and exit.",
        is_eager=True,
        callback=_tell_version,
    ),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with an error."),
) -> None:
    """Options that come before the command."""
    if debug:
        os.environ["KODERZ_DEBUG"] = "1"


def main() -> int:
    """Runs the command line; returns the exit code. An error of the user's is one message, no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal of few letters is no reason to stop
            stream.reconfigure(errors="backslashreplace")
    try:
        os.getcwd()  # noqa: PTH109 before anything else needs it
    except OSError as error:
        return _fail(
            f"the working folder can't be used ({error.strerror}); change to another and run it again",
            2,
        )
    try:
        return int(app(prog_name="koderz", standalone_mode=False) or 0)
    except typer.TyperException as error:
        return _fail(error.format_message(), 2)
    except KoderzError as error:
        if os.environ.get("KODERZ_DEBUG"):
            raise
        return _fail(str(error), error.exit_code)
    except typer.Abort:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        from koderz.settings.installation import dependency_command, is_dependency

        if os.environ.get("KODERZ_DEBUG") or not is_dependency(error.name or ""):
            raise
        return _fail(
            f"this needs {error.name}, which isn't installed; run: {dependency_command(error.name or '')}",
            4,
        )


def _fail(message: str, code: int) -> int:
    # a group that is named alone says what it has
    about = "" if message.startswith("Usage: ") else "koderz: "
    sys.stderr.write(f"{about}{plain(message)}\n")
    return code
