"""What MkDocs builds into the documentation: pages that lie elsewhere, and reference made from the code itself.

A page has `<!-- generated: NAME -->` where what `GENERATED[NAME]` yields is put, and `<!-- fields: NAME -->` where the
fields of that class of `koderz` are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import koderz
import koderz.cli
from koderz.engines.owners import schema_of
from koderz.settings.options import Field
from tracker import records, summary

ROOT = Path(__file__).resolve().parent.parent

ELSEWHERE = {"changelog.md": ROOT / "CHANGELOG.md", "reference/results-folder.md": ROOT / "benchmark_results/README.md"}
"""Pages of the site that lie outside of docs/."""

_MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_CLASS = re.compile(r"^<!-- fields: (\w+) -->$", re.MULTILINE)
_FIELD = re.compile(r"^    (\w+): (.+?)(?: = (.+?))?(?:  # (.+))?$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie elsewhere."""
    for uri, path in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its generated parts."""
    markdown = _CLASS.sub(lambda marker: "\n".join(_fields(getattr(koderz, marker[1]))), markdown)
    return _MARKER.sub(lambda marker: "\n".join(GENERATED[marker[1]]()), markdown)


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as the command line itself declares them."""
    root = typer.main.get_command(koderz.cli.app)
    yield from _command(root, root.make_context("koderz", [], resilient_parsing=True))


def _command(command: Any, ctx: Any) -> Iterator[str]:
    """One command, then those of the group."""
    path = ctx.parent.command_path if command.hidden else ctx.command_path  # a hidden one runs by its group's name
    yield from (f"## `{path}{' START END' if command.hidden else ''}`", "", inspect.cleandoc(command.help or ""), "")
    yield from ("```text", " ".join([path, *command.collect_usage_pieces(ctx)]), "```", "")
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if (record := param.get_help_record(ctx)) and "--help" not in param.opts:
            panel = getattr(param, "rich_help_panel", None) or "Options"
            panels.setdefault(panel if param.param_type_name == "option" else "Arguments", []).append(record)
    for panel in sorted(panels, key=lambda name: (name != "Arguments", name == "Options")):
        yield from table((panel, ""), [(f"`{name}`", text) for name, text in panels[panel]])
    for name in getattr(command, "commands", {}):
        _, inner, _ = command.resolve_command(ctx, [name])
        yield from _command(inner, inner.make_context(name, [], parent=ctx, resilient_parsing=True))


def settings() -> Iterator[str]:
    """Every setting: its flag, variable and key, what it may be, and what it is by default."""
    root = typer.main.get_command(koderz.cli.app)
    ctx = root.make_context("koderz", [], resilient_parsing=True)
    _, group, _ = root.resolve_command(ctx, ["benchmark"])  # type: ignore[attr-defined]
    inner = group.make_context("benchmark", [], parent=ctx, resilient_parsing=True)
    fields = schema_of().fields
    panels: dict[str, list[Sequence[str]]] = {}
    for param in group.commands["run"].get_params(inner):
        if param.name in fields:
            record = param.get_help_record(inner)
            panels.setdefault(param.rich_help_panel, []).append(_setting(fields[param.name], record))
    for panel, rows in panels.items():
        yield from (f"## {panel}", "")
        yield from table(("flag", "variable", "koderz.toml", "meaning"), rows)


def _setting(field: Field, record: tuple[str, str]) -> Sequence[str]:
    flag, text = record
    key, variable = field.name.replace("_", "-"), f"KODERZ_{field.name.upper()}"
    if bounds := field.about.bounds:
        text += " From {} to {}.".format(*(f"{end:,.0f}" if float(end).is_integer() else f"{end:g}" for end in bounds))
    if words := field.choices:
        text += f" One of {', '.join(f'`{word}`' for word in words)}."
    return f"`{flag}`", f"`{variable}`", f"`{key}`", text


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
        "Each of `results`": summary.Result,
        "Each `summary`": summary.Figures,
        "`comparison`": summary.Comparison,
    }
    for title, part in parts.items():
        yield from (f"## {title}", "", inspect.getdoc(part) or "", "", *_fields(part))


def _fields(kind: type, names: set[str] | None = None) -> Iterator[str]:
    """The fields of a class with their types, defaults and comments, as its source has them."""
    found = [match for match in _FIELD.finditer(inspect.getsource(kind)) if names is None or match[1] in names]
    rows = [(f"`{name}`", f"`{annotation}`", text or "") for name, annotation, _, text in (m.groups() for m in found)]
    yield from table(("field", "type", "meaning"), rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
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


GENERATED: Mapping[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "settings": settings,
    "journal": journal,
    "summary": summary_fields,
}
