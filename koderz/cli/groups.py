"""Command groups that load a command's module only when the command runs."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer._click.exceptions import NoSuchOption
from typer.core import TyperCommand, TyperGroup

from koderz.cli.flags import SettingsCommand
from koderz.errors import KoderzError
from koderz_tracker.registry import names_of_others

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter


Homes = Mapping[str, tuple[str, str]]
"""Where each command is, and its line of help. It is a module's Typer `app`, or a Typer or function: `module:name`."""


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

    def loaded(self, name: str) -> Command:
        """One of the commands, loaded."""
        if name in self._homes:
            found = self.commands[name] = _load(name, self._homes.pop(name), self.commands[name].help or "")
            if isinstance(found, LazyGroup):
                found.add_lazily(self._inner.get(name, {}))
        return self.commands[name]

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        if args and args[0] in self.commands:
            self.loaded(args[0])
        return super().resolve_command(ctx, args)


def new_group(text: str, cls: type[TyperGroup] = LazyGroup) -> typer.Typer:
    """A group without commands. Its name alone prints its help."""
    return typer.Typer(cls=cls, help=text, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


MAY_STAND_ALONE: Mapping[str, tuple[str, ...]] = {
    "--use-memory": ("other-tasks", "same-task", "off"),
    "--until-decided": ("first", "zero-shot", "iterative", "direct", "rlm", "compaction"),
}
"""Options whose value may be left out, with the values that may follow; the first is the default.

`first` is `koderz.settings.schema.FIRST_ARM`, which no help needs to load.
"""
_TAKES_NAMES = "--until-decided"  # which may name anything where a command's own arguments are numbers


class PanelCommand(TyperCommand):
    """A command whose help lists its options by panel, without loading what draws boxes around them."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if command := self._of_settings():
            lenient = ctx.resilient_parsing or not {*args}.isdisjoint(ctx.help_option_names)
            self._take_options(command, args, lenient=lenient)
        try:
            rest = super().parse_args(ctx, _spelled_out(args, self.params))
        except NoSuchOption as error:
            if command and (use := command.use_of(_hyphenated(error.option_name))):
                error.message = f"{error.option_name} has no effect here: {use}"
                error.possibilities = None
            raise
        for name, value in ctx.params.items():
            if isinstance(value, float) and math.isnan(value):  # which lies within any bounds that are compared with it
                raise typer.BadParameter("nan is not a number.", param_hint=f"'--{name.replace('_', '-')}'")
        return rest

    def _of_settings(self) -> SettingsCommand | None:
        """The command's function, if it has options that depend on its arguments."""
        function = inspect.unwrap(self.callback) if self.callback else None
        return function if isinstance(function, SettingsCommand) else None

    def _take_options(self, command: SettingsCommand, args: list[str], *, lenient: bool) -> None:
        """Adds the options of the suites, solvers, … that the arguments choose, or of the run that they name.

        `lenient`: for help, whatever is wrong with the choice.
        """
        from koderz.engines.owners import schema_of

        try:
            schema = command.schema_said([_hyphenated(word) for word in args])
        except KoderzError:
            if lenient:
                return
            raise
        if schema.structs.keys() != schema_of().structs.keys():
            app = typer.Typer(add_completion=False)
            app.command()(command.with_schema(schema))
            remade = typer.main.get_command(app)
            self.params, self.callback = remade.params, remade.callback

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                if param.name == "local_model":
                    record = record[0], record[1] + _other_providers()
                is_option = param.param_type_name == "option"
                panel = getattr(param, "rich_help_panel", None) or "Options"
                panels.setdefault(panel if is_option else "Arguments", []).append(record)
        for title in sorted(panels, key=lambda title: title == "Options"):
            if panels[title]:
                with formatter.section(title):
                    formatter.write_dl(panels[title])


def _other_providers() -> str:
    """The models that installed packages add, for the help of what names one; empty for none."""
    names = ", ".join(f"{name}/…" for name in sorted(names_of_others("koderz.models")))
    return f" Also, by installed packages: {names}" if names else ""


def _spelled_out(args: list[str], params: Sequence[Any]) -> list[str]:
    """The arguments in the form that each option accepts by itself.

    `--option=value` for one that may stand alone, so that it takes no other word; `--option a --option b` for
    `--option a b` of one that takes several; hyphens for underscores where that makes an option's name.
    """
    flags = {flag: param for param in params for flag in param.opts}
    listed = {flag for flag, param in flags.items() if getattr(param, "metavar", None) and param.metavar.endswith("…")}
    arguments = [param for param in params if param.param_type_name == "argument"]
    takes_names = all(param.type.name.startswith("int") for param in arguments)
    spelled: list[str] = []
    before = ""  # the option that the words since it may belong to
    for position, argument in enumerate(args):
        if argument == "--":
            return [*spelled, *args[position:]]
        word = hyphenated if (hyphenated := _hyphenated(argument)).partition("=")[0] in flags else argument
        is_name = takes_names and before == _TAKES_NAMES and not (word.startswith("-") or word.isdecimal())
        if is_name or word in MAY_STAND_ALONE.get(before, ()):
            spelled[-1] = f"{before}={word}"
        elif before in listed and not word.startswith("-"):
            spelled += [word] if spelled[-1] == before else [before, word]
            continue
        else:
            spelled.append(f"{word}={MAY_STAND_ALONE[word][0]}" if word in MAY_STAND_ALONE else word)
        before = word
    return spelled


def _hyphenated(word: str) -> str:
    """The word with hyphens in its option's name: `--max-cost=2` for `--max_cost=2`."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else word


def _load(name: str, home: str, help_line: str = "") -> Command:
    module, _, attribute = home.partition(":")
    if module:
        found = getattr(importlib.import_module(module), attribute or "app")
    else:
        found = new_group(help_line)
        found.callback()(lambda: None)
    if not isinstance(found, typer.Typer):
        found, command = typer.Typer(rich_markup_mode=None, add_completion=False), found
        found.command(cls=PanelCommand)(command)
    loaded = typer.main.get_command(found)
    loaded.name = name
    return loaded
