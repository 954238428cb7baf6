"""Command groups that load a command's module only when the command runs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer._click.exceptions import NoSuchOption
from typer.core import TyperCommand, TyperGroup

from koderz.errors import KoderzError
from tracker.registry import names_of_others

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter


class LazyGroup(TyperGroup):
    """A group whose commands are loaded when used; `lazy` has each command's module and line of help.

    The module has the command as its Typer `app`, or `module:name` names it: a Typer, or a function.
    """

    lazy: Mapping[str, tuple[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.add_lazily(self.lazy)

    def add_lazily(self, found: Mapping[str, tuple[str, str]]) -> None:
        """Add commands whose modules are loaded when they are run."""
        self.lazy = {**self.lazy, **found}
        for name, (_, help_line) in found.items():
            self.commands[name] = TyperCommand(name, help=help_line)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        if args and args[0] in self.lazy:
            self.commands[args[0]] = _load(args[0], self.lazy[args[0]][0])
        return super().resolve_command(ctx, args)


def new_group(text: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A group without commands. Its name alone prints its help."""
    return typer.Typer(cls=cls, help=text, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


MAY_STAND_ALONE: Mapping[str, tuple[str, ...]] = {"--use-memory": ("other-tasks", "same-task", "off")}
"""Options whose value may be left out, with their possible values; the first is the default."""


class PanelCommand(TyperCommand):
    """A command whose help lists its options by panel, without loading what draws boxes around them."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if hasattr(self.callback, "with_schema"):
            self._take_options(args, lenient=ctx.resilient_parsing or not {*args}.isdisjoint(ctx.help_option_names))
        try:
            rest = super().parse_args(ctx, _spelled_out(args, self.params))
        except NoSuchOption as error:
            if use := getattr(self.callback, "use_of", lambda _: "")(_hyphenated(error.option_name)):
                error.message = f"{error.option_name} has no effect here; {use}"
                error.possibilities = None
            raise
        for name, value in ctx.params.items():
            if isinstance(value, float) and math.isnan(value):  # which lies within any bounds that are compared with it
                raise typer.BadParameter("nan is not a number.", param_hint=f"'--{name.replace('_', '-')}'")
        return rest

    def _take_options(self, args: list[str], *, lenient: bool) -> None:
        """Adds the options of the suites, solvers, … that the arguments choose, or of the run that they name.

        `lenient`: for help, whatever is wrong with the choice.
        """
        from koderz.engines.owners import schema_of

        try:
            schema = self.callback.schema_said([_hyphenated(word) for word in args])  # type: ignore[union-attr]
        except KoderzError:
            if lenient:
                return
            raise
        if schema.structs.keys() != schema_of().structs.keys():
            app = typer.Typer(add_completion=False)
            app.command()(self.callback.with_schema(schema))  # type: ignore[union-attr]
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
    spelled: list[str] = []
    before = ""  # the option that the words since it may belong to
    for position, given in enumerate(args):
        if given == "--":
            return [*spelled, *args[position:]]
        word = hyphenated if (hyphenated := _hyphenated(given)).partition("=")[0] in flags else given
        if word in MAY_STAND_ALONE.get(before, ()):
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


def _load(name: str, home: str) -> Command:
    module, _, attribute = home.partition(":")
    found = getattr(importlib.import_module(module), attribute or "app")
    if not isinstance(found, typer.Typer):
        found, command = typer.Typer(rich_markup_mode=None, add_completion=False), found
        found.command(cls=PanelCommand)(command)
    loaded = typer.main.get_command(found)
    loaded.name = name
    return loaded
