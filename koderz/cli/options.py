"""The options of a run as flags: a command's signature is made from their dataclasses.

An option's type, default, bounds and help are those of its field; nothing is said twice. No library makes the flags:
by scripts/bench_startup, help of a command of 80 options takes 1.2 times typer's CPU with cyclopts 5.5 and 0.85 times
with pydantic-settings 2.16, which is 3.7 and 2.6 times that of `koderz benchmark --help`; and options that depend on
the suite or solver of the same line would have to be declared while it is parsed with each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer

from koderz.cli.flags import DISPLAY, FIRST, SELDOM, DeclaredCommand, SettingsCommand
from koderz.engines.sources import (
    CHOOSING,
    EVERYTHING,
    REGISTRIES,
    SOLVING,
    Scope,
    schema_here,
    schema_of,
    use_of_flag,
)
from koderz.errors import KoderzError
from koderz.plans.selection import read_problems, split_problems
from koderz.settings.layers import Schema
from koderz.settings.options import Field, fields_of, flag_of
from koderz.settings.schema import Settings
from koderz.settings.systems import names_of
from koderz_tracker.sinks import KNOWN

_SEVERAL = ("local_model",)  # which may be given several times, though it is one


def panels(schema: Schema, *, own_first: bool = False) -> dict[str, list[Field]]:
    """The options that are flags, by their heading in the help; with `own_first` those of suites and solvers lead."""
    found: dict[str, list[Field]] = {}
    for field in schema.fields.values():
        heading = field.about.panel or next(
            (_heading(owner) for owner in schema.owners(field.name)), ""
        )
        if heading:
            found.setdefault(heading, []).append(field)
    leading = {
        _heading(owner)
        for owner in schema.structs
        if own_first and owner.startswith(("suite.", "solver."))
    }
    return dict(sorted(found.items(), key=lambda item: item[0] not in leading))


def changeable(schema: Schema | None = None) -> list[str]:
    """The options that may be changed when a run is resumed."""
    return [
        name for name, field in (schema or schema_of()).fields.items() if field.about.changeable
    ]


def addresses(schema: Schema | None = None) -> list[str]:
    """The addresses that a run's record may lack parts of, so that they can be given when it is resumed."""
    return [
        name for name, field in (schema or schema_of()).fields.items() if field.about.is_address
    ]


def with_settings(
    *names: str,
    scope: Scope = EVERYTHING,
    usual: Mapping[str, Any] = MappingProxyType({}),
    of_run: bool = False,
    told: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[..., Any]], DeclaredCommand]:
    """Gives a command an option for each named setting, or for all of them in `scope`.

    The command takes them as one argument `given`, a dict of those that were really given; a parameter of its own takes
    the place of the setting of its name. One that has all settings has the options of what they, or else `usual`,
    choose, too, see `SettingsCommand`. `of_run`: it takes up a run, and has what may
    differ then of the options of that run, too. `told`: the help of settings that mean something else to it than to
    others.
    """

    def decorate(command: Callable[..., Any], schema: Schema | None = None) -> DeclaredCommand:
        own = [
            p
            for p in inspect.signature(command, eval_str=True).parameters.values()
            if p.name != "given"
        ]
        schema = schema or schema_of()
        fields = schema.fields
        of_its = (*changeable(schema), *addresses(schema)) if of_run else ()
        wanted = {*names, *of_its} or fields.keys() - scope.idle(schema)
        headings = panels(schema, own_first=scope.is_own)
        options = _parameters(
            headings, wanted - {p.name for p in own}, usual, told, has_file=not (names or of_run)
        )

        common, spare = _in_short_help(
            schema, own, [option.name for option in options], scope, usual
        )

        def wrapper(**arguments: Any) -> Any:
            mine = {p.name: arguments.pop(p.name) for p in own}
            given = {name: value for name, value in arguments.items() if value not in (None, [])}
            negated = {name: False for name in given if name in fields and fields[name].is_negated}
            several = {
                name: [
                    part
                    for word in words
                    for part in ([word] if "=" in word else word.split(","))
                    if part
                ]
                for name, words in given.items()
                if name in fields and fields[name].about.listed and isinstance(words, list)
            }
            return command(given=_joined(given) | negated | several, **mine)

        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
        if names and not of_run:
            return DeclaredCommand(wrapper, [*own, *options], common, spare)
        return SettingsCommand(
            wrapper,
            [*own, *options],
            common,
            spare,
            schema_said=schema_of_run if of_run else partial(schema_said, usual=usual, scope=scope),
            with_schema=partial(decorate, command),
            use_of=partial(use_of, scope=scope),
        )

    return decorate


def _in_short_help(
    schema: Schema,
    own: Sequence[inspect.Parameter],
    options: Sequence[str],
    scope: Scope,
    usual: Mapping[str, Any],
) -> tuple[dict[str, bool], list[str]]:
    """The options that short help shows, see `DeclaredCommand`: a command's own, those of what is chosen, common ones.

    Those of the suites and solvers that the command chooses itself may be spared, except for common ones.
    """
    fields = schema.fields
    always = schema_of().structs.keys()
    usable = {owner for owner in always if owner.startswith(("suite.", "solver.")) and scope.is_own}
    idle = (always - usable) | {*schema.idle}
    of_parts = [
        name for name in options if name in fields and not idle.issuperset(schema.owners(name))
    ]
    itself = {*map(str, usual.values()), *(name for _, name in scope.parts)}
    spare = [
        name
        for name in of_parts
        if {owner.partition(".")[2] for owner in schema.owners(name)} <= itself
        and not fields[name].about.common
    ]
    shared = [
        name
        for name in options
        if name in fields and fields[name].about.common and name not in of_parts
    ]
    shared.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    common = {p.name: False for p in own if p.name not in (*SELDOM, *DISPLAY)} | dict.fromkeys(
        of_parts, False
    )
    return common | dict.fromkeys(
        (*shared, *(p.name for p in own if p.name in DISPLAY)), True
    ), spare


def schema_of_run(words: Sequence[str]) -> Schema:
    """The options of the run that a command line names; the default ones if it names none that exists."""
    from koderz.engines.sources import schema_of_plan
    from koderz.settings.layers import results_folder
    from koderz_tracker.runs import find_run, read_plan

    places = [value for word, value in pairwise((*words, "")) if word == "--results"]
    for name in (word for word in words if not word.startswith("-")):
        with suppress(KoderzError):  # which is told when the run is looked for in earnest
            return schema_of_plan(
                read_plan(find_run(results_folder(Path(places[-1]) if places else None), name))
            )
    return schema_of()


def schema_said(words: Sequence[str], usual: Mapping[str, Any], scope: Scope) -> Schema:
    """The options of what a command line or else `usual` chooses, with variables and koderz.toml."""
    fields = schema_of().fields
    flags = {
        flag: name for name in CHOOSING if name not in scope.without for flag in fields[name].flags
    }
    found: dict[str, Any] = {}
    for place, argument in enumerate(words):
        word, equals, value = argument.partition("=")
        if name := flags.get(word):
            several = fields[name].about.listed or name in (*_SEVERAL, "roles")
            following = takewhile(lambda word: not word.startswith("-"), words[place + 1 :])
            most = None if fields[name].about.listed else 1
            values = [value] if equals else [*islice(following, most)]
            found[name] = [*found.get(name, ()), *values] if several else "".join(values)
    defaults = {
        name: value
        for name, value in usual.items()
        if name != "solver" or found.keys().isdisjoint(SOLVING)
    }
    return schema_here(defaults | found, scope=scope)


def use_of(flag: str, scope: Scope) -> str:
    """A hint on a flag without effect in this scope: its use or its replacement; empty for an unknown flag."""
    general = {each: name for name, field in fields_of(Settings).items() for each in field.flags}
    general |= {
        flag_of(name): name
        for name in ("problems_file", *scope.without)
        if name not in general.values()
    }
    if name := general.get(flag):
        instead = scope.without.get(name)
        return f"use {instead}" if instead else "it is for koderz benchmark"
    return use_of_flag(flag)


def _parameters(
    headings: Mapping[str, Sequence[Field]],
    names: Collection[str],
    usual: Mapping[str, Any],
    told: Mapping[str, str],
    *,
    has_file: bool,
) -> list[inspect.Parameter]:
    parameters = [
        _parameter(
            field,
            heading,
            told.get(field.name) or _help(field, usual.get(field.name, field.default)),
        )
        for heading, fields in headings.items()
        for field in fields
        if field.name in names
    ]
    if has_file and "problems" in names:
        text = "Only the tasks in this file, one per line."
        option = typer.Option(None, metavar="FILE", help=text, rich_help_panel="Tasks")
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter("problems_file", kind, default=option, annotation=Path | None)
        )
    return parameters


def _heading(owner: str) -> str:
    kind, _, name = owner.partition(".")
    return f"{kind.capitalize()} {name}"


def _parameter(field: Field, panel: str, text: str) -> inspect.Parameter:
    def offered(incomplete: str) -> list[str]:
        words: Sequence[str] = field.choices
        if registry := REGISTRIES.get(field.name):
            words = registry.names()
        elif field.name in ("sinks", "no_sinks"):
            words = (*KNOWN, *names_of("sinks"))
        return [word for word in words if word.startswith(incomplete)]

    option = typer.Option(
        None,
        *field.flags,
        help=text,
        metavar=f"{field.about.metavar} …" if field.about.listed else field.about.metavar,
        show_default=False,
        rich_help_panel=panel,
        autocompletion=offered
        if field.name in (*REGISTRIES, "sinks", "no_sinks") or field.choices
        else None,
    )
    kind: Any = field.plain_type if field.plain_type in (int, float, bool, Path) else str
    item = str if field.name in _SEVERAL else field.item_type
    if item and field.name != "problems":  # which are separated by commas
        kind = list[item if item in (int, float) else str]  # type: ignore[misc]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None
    )


def _help(field: Field, default: Any) -> str:
    """The option's help, with the command's default if it differs from the option's own."""
    text = (
        field.about.help
        if default == field.default
        else field.about.help.partition(" Default: ")[0]
    )
    if default is None or default is False or field.is_negated or default == ():
        return text
    if isinstance(default, tuple):
        return f"{text} Default: {', '.join(map(str, default))}."
    return (
        f"{text} Default: {default:g}."
        if isinstance(default, float)
        else f"{text} Default: {default}."
    )


def _joined(given: dict[str, Any]) -> dict[str, Any]:
    """The options as `koderz.settings` expects them: ids split, negative flags inverted."""
    if isinstance(models := given.get("local_model"), list):
        given["local_model"] = models[0]
        if len(models) > 1:
            given["models"] = models
    if "problems" in given:
        given["problems"] = split_problems(given["problems"])
    if "problems_file" in given:
        given["problems"] = (*given.get("problems", ()), *read_problems(given.pop("problems_file")))
    if "sinks" in given:  # which says it all, whatever else is set to be left out
        given.setdefault("no_sinks", [])
    if not given.get("problems", True):
        raise KoderzError(
            "--problems and --problems-file name no task; leave both out to run START END"
        )
    return given
