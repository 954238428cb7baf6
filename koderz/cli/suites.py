"""`koderz suites`: lists and shows suites, tells where their files are, registers those, and exports rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import print_json, say, warn
from koderz.cli.flags import SummaryJson, Trust
from koderz.cli.groups import PanelCommand, new_group
from koderz.cli.options import with_settings
from koderz.engines.sources import Scope, schema_of
from koderz.errors import KoderzError
from koderz.settings.systems import names_of, required

if TYPE_CHECKING:
    from typer._click.core import Context

    from koderz.settings.schema import Settings

app = new_group(
    "List suites, add their datasets, and write their rows.",
    examples=["koderz suites list", "koderz suites show humaneval"],
)

_OF_A_SUITE = ("suite", "dataset", "seed")


class OfSuite(PanelCommand):
    """A command with the options of the suite that its first argument names."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, ["--suite", *args] if args and not args[0].startswith("-") else args
        )


@app.command(name="list", cls=PanelCommand)
def list_suites(json: SummaryJson = False) -> None:
    """List the suites that there are, and the datasets that were added for them.

    Examples:
        koderz suites list
    """
    from koderz.suites import SUITES, added_dataset

    found: list[dict[str, Any]] = []
    for name in SUITES.names():
        suite = SUITES.load(name)
        if not suite.listed:  # nobody can choose it
            continue
        about = (suite.__doc__ or "").partition("\n")[0]
        found.append({"name": name, "about": about, "dataset": added_dataset(name)})
        parts = {part: added_dataset(part) for part in suite.named_datasets}
        found += [
            {"name": part, "about": f"of {name}", "dataset": path}
            for part, path in parts.items()
            if path
        ]
    if json:
        print_json(
            [{**each, "dataset": each["dataset"] and str(each["dataset"])} for each in found]
        )
        return
    width = max(len(each["name"]) for each in found)
    for each in found:
        say(f"{each['name']:{width}}  {each['about']}")
        if each["dataset"]:
            say(f"{'':{width}}  dataset: {each['dataset']}")


@app.command(cls=PanelCommand)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which suite.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Its dataset: a file or a folder.")],
) -> None:
    """Have a suite read its tasks from PATH wherever no --dataset is given. The data stays where it is.

    Examples:
        koderz suites add humaneval HumanEval.jsonl
    """
    from koderz.suites import add_dataset

    suite = add_dataset(name, path)
    say(f"{name}: {len(suite.tasks):,} tasks of {path.resolve()}")


_SCOPE = Scope(without={name: "" for name in schema_of().fields if name not in _OF_A_SUITE})


@app.command(cls=OfSuite)
@with_settings(scope=_SCOPE)
def show(given: dict[str, Any], trust_config: Trust = False, json: SummaryJson = False) -> None:
    """Show a suite's tasks, licence and needs, and whether the file here is the published one.

    Examples:
        koderz suites show humaneval
    """
    from koderz.suites import about_suite

    found = about_suite(_settings_of(given, trust_config=trust_config))
    if json:
        print_json(found)
        return
    say(f"{found['name']}: {found['about']}")
    shown = {
        "Tasks": "not loaded" if found["tasks"] is None else f"{found['tasks']:,}",
        "Dataset": found["dataset"],
        "File here": _FILES[found["file"]],
        "Licence": found["licence"],
        "Published": found["place"],
        "Fetch with": found["get"],
        "Needs": ""
        if found["tasks"] is None
        else ", ".join(found["needs"]) or "nothing but a model",
        "Rule": found["rule"],
    }
    for name, value in shown.items():
        if value:
            say(f"{name + ':':11} {value}")
    if found["problem"]:
        warn(f"note: {found['problem']}")


_FILES = {
    "published": "published, by the digest of its rows",
    "other": "other than the published one, by the digest of its rows",
    "unknown": "unknown: no digest of the published file is known",
    "none": "",
}


@app.command(cls=PanelCommand)
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which suite, or dataset of one.")],
) -> None:
    """Print the command that fetches a suite's published file; nothing is downloaded.

    Examples:
        koderz suites get humaneval
    """
    from koderz.suites import SUITES

    parts: dict[str, Any] = {}
    if name not in SUITES:
        for suite in map(SUITES.load, SUITES):
            parts |= suite.named_datasets if isinstance(suite.named_datasets, Mapping) else {}
    published = parts.get(name) or SUITES.load(name).publication
    if published is None or not published.command:
        where = f"; see {published.place}" if published else ""
        if names := SUITES.load(name).named_datasets:
            where = f" as a whole; name one of its datasets: {', '.join(names)}"
        raise KoderzError(f"there is no file to fetch for the suite {name}{where}")
    say(published.command)
    then = f"then: koderz suites add {name} FILE, or --dataset FILE "
    if name in parts:
        then = f"then: koderz suites add {name} {name}, or --dataset {name}={name} "
    if published.command.startswith("pip "):  # what is installed is found without
        then = ""
    elif published.command.startswith("hf "):
        then = f"hf is of the package huggingface_hub; {then}"
    warn(f"{then}(licence: {published.licence})")


@app.command(cls=OfSuite)
@with_settings(scope=_SCOPE)
def export(
    given: dict[str, Any],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the files are written.")
    ],
    format: Annotated[  # noqa: A002 - the option's name
        str,
        typer.Option(
            metavar="WORD",
            help="rows, or verifiers: a package whose rewards koderz judge serve gives.",
        ),
    ] = "rows",
    trust_config: Trust = False,
) -> None:
    """Write the rows of a suite that makes them up, or a package of any suite for a trainer.

    Examples:
        koderz suites export ruler --output ruler
        koderz suites export humaneval --format verifiers --output environment
    """
    from koderz.suites import load_suite

    settings = _settings_of(given, trust_config=trust_config)
    suite = load_suite(settings.suite, settings.dataset, settings)
    if format != "rows":
        if format not in (known := names_of("tasksets")):
            raise KoderzError(f"--format {format}: choose {' or '.join(('rows', *known))}")
        for path, number in required("tasksets", format)(suite, output):
            say(f"{path}: {number} tasks")
        return
    for path, rows in suite.export(output):
        say(f"{path}: {rows} rows")


def _settings_of(given: dict[str, Any], *, trust_config: bool) -> Settings:
    """The settings of the suite that is named first. Raises KoderzError if none is."""
    from koderz.engines.sources import read_sources
    from koderz.settings.options import fields_of
    from koderz.suites import SUITES

    if "suite" not in given:
        raise KoderzError(
            "say which suite, such as: koderz suites show ruler; all: koderz suites list"
        )
    struct = SUITES.options_of(given["suite"])
    names = (*_OF_A_SUITE, *(fields_of(struct) if struct else ()))
    return read_sources(given, names=names, schema=None, trust_config=trust_config).settings
