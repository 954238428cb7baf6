"""Writes the parts of the documentation that are made from the code itself: commands, settings, fields of records.

python scripts/reference.py           # brings the pages up to date
python scripts/reference.py --check   # names the pages that are stale

A page has `<!-- begin: commands -->` and `<!-- end: commands -->` around such a part. `fields NAME` stands for the
fields of that class of `koderz`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
import typer

import koderz
import koderz.cli
from koderz.cli.groups import HELP_ALL, examples_in
from koderz.cli.options import panels
from koderz.engines.sources import REGISTRIES, schema_of
from koderz.settings.options import Field, plain
from koderz_tracker import records, results, summary

ROOT = Path(__file__).resolve().parent.parent

_PLAIN = {r"Annotated\[(\w+), .+\]": r"\1", r"\bAmount\b": "float", r"\bCount\b": "int", r" \| UnsetType": ""}
_FIELD = re.compile(r"((?:^    # .+\n)*)^    (\w+): (.+?)(?: = (.+?))?(?:  # (.+))?$", re.MULTILINE)


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as the command line itself declares them."""
    root = typer.main.get_command(koderz.cli.app)
    yield from _command(root.make_context("koderz", [], resilient_parsing=True))


def _command(ctx: Any) -> Iterator[str]:
    """One command, with the options of the suites and solvers that it chooses itself, then those of the group."""
    command = ctx.command
    path = ctx.parent.command_path if command.hidden else ctx.command_path  # a hidden one runs by its group's name
    about, examples = examples_in(command.help)
    yield from (f"## `{path}{' START END' if command.hidden else ''}`", "", about, "")
    yield from ("```text", " ".join([path, *command.collect_usage_pieces(ctx)]), "```", "")
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if (record := param.get_help_record(ctx)) and {"--help", HELP_ALL}.isdisjoint(param.opts):
            panel = getattr(param, "rich_help_panel", None) or "Options"
            panels.setdefault(panel if param.param_type_name == "option" else "Arguments", []).append(record)
    for panel in sorted(panels, key=lambda name: (name != "Arguments", name == "Options")):
        yield from table((panel, "meaning"), [(f"`{name}`", text) for name, text in panels[panel]])
    if examples:
        yield from ("```sh", *examples, "```", "")
    for name in getattr(command, "commands", {}):
        if ctx.parent is None and name in koderz.cli.ALIASES:
            continue
        _, inner, _ = command.resolve_command(ctx, [name])
        yield from _command(inner.make_context(name, [], parent=ctx, resilient_parsing=True))


def settings() -> Iterator[str]:
    """Every setting: its flag, variable and key, what it may be, and what it is by default."""
    for panel in _panels():
        yield from (f"## {panel}", "", *_panel(panel))


def _panels() -> dict[str, tuple[Sequence[str], Sequence[Field]]]:
    """By heading of the help: the tables of koderz.toml that its settings may stand in, and the settings."""
    found: dict[str, tuple[Sequence[str], Sequence[Field]]] = {}
    for owner in [(kind, name) for kind, registry in REGISTRIES.items() for name in registry.options]:
        schema = schema_of(owner)  # two suites may have options of one name
        for panel, fields in panels(schema).items():
            found.setdefault(panel, (list(schema.owners(fields[0].name)), fields))
    return found


def _panel(panel: str) -> Iterator[str]:
    tables, fields = _panels()[panel]
    for name in tables:
        yield from (f"Also in the table `[{name}]` of koderz.toml.", "")
    yield from table(("flag", "variable", "koderz.toml", "default", "meaning"), map(_setting, fields))


def _setting(field: Field) -> Sequence[str]:
    flag = f"{', '.join(field.flags)} {field.about.metavar or ''}".strip()
    is_set = field.default is not None and field.default is not False and field.default != ()
    default = f"`{orjson.dumps(plain(field.default)).decode()}`" if is_set else ""
    text = field.about.help
    if bounds := field.about.bounds:
        text += " From {} to {}.".format(*(f"{end:,.0f}" if float(end).is_integer() else f"{end:g}" for end in bounds))
    if field.choices:
        text += f" One of {', '.join(f'`{word}`' for word in field.choices)}."
    return f"`{flag}`", f"`KODERZ_{field.name.upper()}`", f"`{field.flag[2:]}`", default, text


def journal() -> Iterator[str]:
    """The fields of every kind of line."""
    yield from ("## Kinds of lines", "")
    for kind, record in records.KINDS.items():
        yield from (f"### `{kind}`", "", inspect.getdoc(record) or "", "")
        names = {field.name for field in msgspec.structs.fields(record)}
        yield from _fields(record, names)
    yield from ("### Parts", "", "The plan's `arms` and `cells`, and the stand-in for a text in `blobs/`:", "")
    for part in (records.Arm, records.Cell, records.Blob):
        yield from (f"#### {part.__name__}", "", inspect.getdoc(part) or "", "", *_fields(part))


def summary_fields() -> Iterator[str]:
    """The fields of a summary and its parts."""
    parts: Mapping[str, type] = {
        "The run": summary.Summary,
        "Each of `results`": results.Result,
        "Each `summary`": summary.Figures,
        "`comparison`": summary.Comparison,
    }
    for title, part in parts.items():
        yield from (f"## {title}", "", inspect.getdoc(part) or "", "", *_fields(part))


def _fields(kind: type, names: set[str] | None = None) -> Iterator[str]:
    """The fields of a class with their types, defaults and comments, as its source has them."""
    found = [match for match in _FIELD.finditer(inspect.getsource(kind)) if names is None or match[2] in names]
    rows = [(f"`{m[2]}`", f"`{_type(m[3])}`", m[5] or m[1].replace("#", "").strip()) for m in found]
    yield from table(("field", "type", "meaning"), rows)


def _type(annotation: str) -> str:
    """An annotation as readers need it: without bounds, and with aliases replaced."""
    for pattern, plain_type in _PLAIN.items():
        annotation = re.sub(pattern, plain_type, annotation)
    return annotation


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table, with an empty line after it."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _cell(text: str) -> str:
    """The text in one line, with what Markdown would take for its own made plain, but for what stands in backticks."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [part.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*") for part in parts[::2]]
    return "`".join(parts)


PARTS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "commands": lambda _: commands(),
    "settings": lambda _: settings(),
    "journal": lambda _: journal(),
    "summary": lambda _: summary_fields(),
    "fields": lambda name: _fields(getattr(koderz, name)),
}
"""By the first word behind `begin:`, what stands between the marks; the other words are handed to it."""

MARKED = re.compile(rf"<!-- begin: (({'|'.join(PARTS)})\b ?(.*?)) -->\n.*?<!-- end: \1 -->", re.DOTALL)
"""A part of a page that is made by this script."""


def main() -> int:
    """Brings the pages up to date, or says which are not."""
    stale = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        made = MARKED.sub(_made, text)
        if made != text and sys.argv[1:] == ["--check"]:
            print(f"{page.relative_to(ROOT)} is stale; bring it up to date with: scripts/reference.py")
            stale = 1
        elif made != text:
            page.write_text(made, encoding="utf-8")
    return stale


def _made(part: re.Match[str]) -> str:
    lines = "\n".join(PARTS[part[2]](part[3])).strip("\n")
    return f"<!-- begin: {part[1]} -->\n\n{lines}\n\n<!-- end: {part[1]} -->"


if __name__ == "__main__":
    sys.exit(main())
