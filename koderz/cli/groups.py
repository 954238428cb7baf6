"""Command groups that load a command's module only when the command runs."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer._click.exceptions import NoSuchOption, UsageError
from typer._click.parser import _OptionParser
from typer.core import TyperCommand, TyperGroup, TyperOption

from koderz.cli.flags import DeclaredCommand, SettingsCommand
from koderz.errors import KoderzError
from koderz_tracker.registry import names_of_others

if TYPE_CHECKING:
    from typer._click.core import Command, Context, Parameter
    from typer._click.formatting import HelpFormatter


Homes = Mapping[str, tuple[str, str]]
"""Where each command is, and its line of help.

It is a module's Typer `app`, a Typer or function (`module:name`), or a command of a Typer (`module:name command`).
"""


HELP_ALL = "--help-all"
_LINES = 60  # of help at most, where there is more to show
_EXAMPLES = "\n\nExamples:\n"  # what a command's docstring has before its last section


def _show_all(ctx: Context, _: Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        typer.echo(ctx.get_help())
        ctx.exit()


def _with_help_all(params: list[Parameter], *, hidden: bool = False) -> list[Parameter]:
    """The parameters of a command, and the option that shows all of them; `hidden` where help shows all anyhow."""
    option = TyperOption(
        param_decls=[HELP_ALL],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show every option, and exit.",
        hidden=hidden,
    )
    return [*params, option]


def is_help(ctx: Context, word: str) -> bool:
    """Whether a word of a command line asks for help."""
    return word == HELP_ALL or word in ctx.help_option_names


class _StrictParser(_OptionParser):
    """A parser that refuses an option given twice where one value counts. Click takes the last without a word."""

    def parse_args(self, args: list[str]) -> tuple[dict[str, Any], list[str], list[Any]]:
        options, rest, order = super().parse_args(args)
        for place, param in enumerate(order):
            is_single = isinstance(param, TyperOption) and not (
                param.multiple or param.count or param.is_eager
            )
            if (
                is_single
                and param in order[:place]
                and not (self.ctx and self.ctx.resilient_parsing)
            ):
                raise UsageError(
                    f"{max(param.opts, key=len)} is given twice; it can be given once", ctx=self.ctx
                )
        return options, rest, order


def _strict_parser(params: Iterable[Parameter], ctx: Context) -> _OptionParser:
    parser = _StrictParser(ctx)
    for param in params:
        param.add_to_parser(parser, ctx)
    return parser


def examples_in(text: str | None) -> tuple[str, list[str]]:
    """A command's help without its examples, and these, a line each."""
    about, _, found = inspect.cleandoc(text or "").partition(_EXAMPLES)
    return about, [line.strip() for line in found.splitlines() if line.strip()]


def write_examples(text: str | None, formatter: HelpFormatter) -> None:
    """Writes the examples of a command's help, its last section."""
    if examples := examples_in(text)[1]:
        formatter.write("\n".join(("\nExamples:", *(f"  {line}" for line in examples), "")))


class LazyGroup(TyperGroup):
    """A group whose commands are loaded when used: those of `lazy`, and those that are added."""

    lazy: Mapping[str, tuple[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._homes: dict[str, str] = {}
        self._inner: dict[str, Homes] = {}
        self.add_lazily(self.lazy)

    def add_lazily(self, found: Homes) -> None:
        """Add commands whose modules are loaded when they are run; one that is there stays.

        `GROUP NAME` is a command of a group, which is made if there is none.
        """
        for name, (home, help_line) in found.items():
            name, _, inner = name.partition(" ")
            if inner:
                self._inner[name] = {**self._inner.get(name, {}), inner: (home, help_line)}
                home, help_line = "", f"Commands: {', '.join(self._inner[name])}."
            if name not in self.commands or (home and self._homes.get(name) == ""):
                self.commands[name] = TyperCommand(name, help=help_line)
                self._homes[name] = home

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _with_help_all(super().get_params(ctx), hidden=True)

    def make_parser(self, ctx: Context) -> _OptionParser:
        return _strict_parser(self.get_params(ctx), ctx)

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:  # noqa: ARG002 as click has it
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(examples_in(self.help)[0])

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:  # noqa: ARG002 as click has it
        write_examples(self.help, formatter)

    def loaded(self, name: str) -> Command:
        """One of the commands, loaded."""
        if name in self._homes:
            found = self.commands[name] = _load(
                name, self._homes.pop(name), self.commands[name].help or ""
            )
            if isinstance(found, LazyGroup):
                found.add_lazily(self._inner.get(name, {}))
        return self.commands[name]

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        if args and args[0] in self.commands:
            self.loaded(args[0])
        return super().resolve_command(ctx, args)


def new_group(
    text: str, cls: type[TyperGroup] = LazyGroup, examples: Sequence[str] = ()
) -> typer.Typer:
    """A group without commands. Its name alone prints its help, which ends with the examples."""
    text += _EXAMPLES + "\n".join(examples) if examples else ""
    return typer.Typer(
        cls=cls, help=text, no_args_is_help=True, rich_markup_mode=None, add_completion=False
    )


MAY_STAND_ALONE: Mapping[str, tuple[str, ...]] = {
    "--use-memory": ("other-tasks", "same-task", "off"),
    "--until-decided": ("first", "zero-shot", "iterative", "direct", "rlm", "compaction"),
    "--min-point": ("",),
}
"""Options whose value may be left out, with the values that may follow; the first is the default.

`first` is `koderz.settings.schema.FIRST_ARM`, which no help needs to load.
"""
_TAKES_LIMIT = "--min-point"  # which may be followed by any MEASURE=VALUE
# may be followed by anything where a command's own arguments are numbers
_TAKES_NAMES = "--until-decided"


class DefaultGroup(LazyGroup):
    """A group whose hidden command `run` is what its name alone does."""

    alone = "run"

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The help of the hidden command, with the group's commands before its examples."""
        command = self.commands[self.alone]
        assert isinstance(command, PanelCommand)
        inner = type(ctx)(command, info_name="", parent=ctx)
        inner.info_name = None
        command.write_help(inner, formatter, most=_LINES - len(self.commands) - 3)
        formatter.write_paragraph()
        formatter.write_text(self.help or "")
        self.format_commands(ctx, formatter)
        write_examples(command.help, formatter)


class PanelCommand(TyperCommand):
    """A command whose help lists its options by panel, without loading what draws boxes around them."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        function = inspect.unwrap(self.callback) if self.callback else None
        command = function if isinstance(function, SettingsCommand) else None
        chosen = self
        if command:
            lenient = ctx.resilient_parsing or any(is_help(ctx, word) for word in args)
            ctx.command = chosen = self._with_options(command, args, lenient=lenient)
        try:
            rest = TyperCommand.parse_args(chosen, ctx, _spelled_out(args, chosen.params))
        except NoSuchOption as error:
            if command and (use := command.use_of(_hyphenated(error.option_name))):
                error.message = f"{error.option_name} has no effect here: {use}"
                error.possibilities = None
            raise
        for name, value in ctx.params.items():
            # nan lies within any bounds that are compared with it
            if isinstance(value, float) and math.isnan(value):
                raise typer.BadParameter(
                    "nan is not a number.", param_hint=f"'--{name.replace('_', '-')}'"
                )
        return rest

    def invoke(self, ctx: Context) -> Any:
        assert isinstance(ctx.command, TyperCommand)
        return TyperCommand.invoke(ctx.command, ctx)

    def _with_options(
        self, command: SettingsCommand, args: list[str], *, lenient: bool
    ) -> PanelCommand:
        """The command with the options of the suites, solvers, … that the arguments choose, or of the run they name.

        It is another object, since a process may call a command more than once. `lenient`: for help, whatever is wrong
        with the choice.
        """
        from koderz.engines.sources import schema_of

        try:
            schema = command.schema_said([_hyphenated(word) for word in args])
        except KoderzError:
            if lenient:
                return self
            raise
        if schema.structs.keys() == schema_of().structs.keys():
            return self
        app = typer.Typer(add_completion=False)
        app.command()(command.with_schema(schema))
        remade, chosen = typer.main.get_command(app), copy.copy(self)
        chosen.params, chosen.callback = remade.params, remade.callback
        return chosen

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _with_help_all(super().get_params(ctx))

    def make_parser(self, ctx: Context) -> _OptionParser:
        return _strict_parser(self.get_params(ctx), ctx)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The help: every option where that takes few lines or was asked for, else its own and common ones."""
        self.write_help(ctx, formatter)
        write_examples(self.help, formatter)

    def write_help(self, ctx: Context, formatter: HelpFormatter, most: int = _LINES) -> None:
        """The help without its examples: whole where it was asked for, or takes fewer than `most` lines with them."""
        self._write(ctx, formatter, self._panels(ctx))
        if ctx.meta.get(HELP_ALL) or not (command := self._declared()) or command.common is None:
            return
        most -= len(examples_in(self.help)[1]) + 2
        for spared in ((), command.spare):
            if formatter.getvalue().count("\n") > most:
                formatter.buffer.clear()
                shown = {
                    name: shared for name, shared in command.common.items() if name not in spared
                }
                self._write(ctx, formatter, self._brief(ctx, shown), is_brief=True)

    def _declared(self) -> DeclaredCommand | None:
        function = inspect.unwrap(self.callback) if self.callback else None
        return function if isinstance(function, DeclaredCommand) else None

    def _write(
        self,
        ctx: Context,
        formatter: HelpFormatter,
        panels: Mapping[str, list[tuple[str, str]]],
        *,
        is_brief: bool = False,
    ) -> None:
        about, _ = examples_in(self.help)
        formatter.write_usage(ctx.command_path.rstrip(), " ".join(self.collect_usage_pieces(ctx)))
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(about)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if not is_brief:
            self.format_epilog(ctx, formatter)
        else:
            formatter.write(f"\nAll options: {ctx.command_path.rstrip()} {HELP_ALL}\n")

    def _panels(self, ctx: Context) -> dict[str, list[tuple[str, str]]]:
        """Every argument and option, by the heading in the help."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for title, _, record in self._records(ctx):
            panels.setdefault(title, []).append(record)
        return {title: records for title, records in panels.items() if records}

    def _brief(self, ctx: Context, common: Mapping[str, bool]) -> dict[str, list[tuple[str, str]]]:
        """Arguments and the command's own options, then those that most commands share and most people need."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        shared: dict[str, tuple[str, str]] = {}
        for title, name, (names, text) in self._records(ctx):
            record = _first_names(names), _first_sentence(text)
            if common.get(name):
                shared[name] = record
            elif title == "Arguments" or name in common:
                panels.setdefault(title, []).append(record)
        panels["Common options"] = [shared[name] for name in common if name in shared]
        return {title: records for title, records in panels.items() if records}

    def _records(self, ctx: Context) -> Iterator[tuple[str, str, tuple[str, str]]]:
        """The heading, name and help of each argument and option that isn't hidden."""
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                if param.name == "local_model":
                    names = ", ".join(
                        f"{name}/…" for name in sorted(names_of_others("koderz.models"))
                    )
                    record = (
                        record[0],
                        record[1] + (f" Also, by installed packages: {names}" if names else ""),
                    )
                panel = getattr(param, "rich_help_panel", None) or "Options"
                yield (
                    (panel if param.param_type_name == "option" else "Arguments"),
                    param.name or "",
                    record,
                )


def _first_names(names: str) -> str:
    """An option's letter and first name, of several: `-m, --model MODEL`."""
    words = names.split(", ")
    long = [word for word in words if word.startswith("--")]
    if len(long) < 2:
        return names
    metavar = long[-1].partition(" ")[2]
    return ", ".join(
        (*(word for word in words if not word.startswith("--")), f"{long[0]} {metavar}".strip())
    )


def _first_sentence(text: str) -> str:
    """The first sentence of an option's help, and its default."""
    first = re.match(r".*?\.(?=\s+[A-Z\[]|\s*$)", text)
    if not first:
        return text
    default = re.search(r"(Default: .*?\.|\[default: .*?\])(?=\s|$)", text[first.end() :])
    return " ".join(filter(None, (first[0], default and default[0])))


def _spelled_out(args: list[str], params: Sequence[Any]) -> list[str]:
    """The arguments in the form that each option accepts by itself.

    `--option=value` for one that may stand alone, so that it takes no other word; `--option a --option b` for
    `--option a b` of one that takes several; hyphens for underscores where that makes an option's name.
    """
    flags = {flag: param for param in params for flag in param.opts}
    listed = {
        flag
        for flag, param in flags.items()
        if getattr(param, "metavar", None) and param.metavar.endswith("…")
    }
    arguments = [param for param in params if param.param_type_name == "argument"]
    takes_names = all(param.type.name.startswith("int") for param in arguments)
    spelled: list[str] = []
    before = ""  # the option that the words since it may belong to
    for position, argument in enumerate(args):
        if argument == "--":
            return [*spelled, *args[position:]]
        word = (
            hyphenated
            if (hyphenated := _hyphenated(argument)).partition("=")[0] in flags
            else argument
        )
        is_name = (
            takes_names
            and before == _TAKES_NAMES
            and not (word.startswith("-") or word.isdecimal())
        )
        is_limit = before == _TAKES_LIMIT and "=" in argument and not argument.startswith("-")
        if is_name or is_limit or word in MAY_STAND_ALONE.get(before, ()):
            spelled[-1] = f"{before}={word}"
        elif before in listed and not word.startswith("-"):
            spelled += [word] if spelled[-1] == before else [before, word]
            continue
        else:
            spelled.append(
                f"{word}={MAY_STAND_ALONE[word][0]}" if word in MAY_STAND_ALONE else word
            )
        before = word
    return spelled


def _hyphenated(word: str) -> str:
    """The word with hyphens in its option's name: `--max-cost=2` for `--max_cost=2`."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else word


def _load(name: str, home: str, help_line: str = "") -> Command:
    module, _, attribute = home.partition(":")
    attribute, _, inner = attribute.partition(" ")
    if module:
        found = getattr(importlib.import_module(module), attribute or "app")
    else:
        found = new_group(help_line)
        found.callback()(lambda: None)
    if not isinstance(found, typer.Typer):
        found, command = typer.Typer(rich_markup_mode=None, add_completion=False), found
        found.command(cls=PanelCommand)(command)
    loaded = typer.main.get_command(found)
    if inner:
        assert isinstance(loaded, LazyGroup)
        return loaded.loaded(inner)
    loaded.name = name
    return loaded
