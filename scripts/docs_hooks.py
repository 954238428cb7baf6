"""Hooks of MkDocs for the documentation: pages that lie elsewhere, and reference made from the code itself.

A page has `<!-- generated: NAME -->` where what `GENERATED[NAME]` yields is put, and `<!-- fields: NAME -->` where the
fields of that class of `koderz` are, and `<!-- settings: PANEL -->` where the options under that heading of the help
are. Addresses that pages had before lead to where their content is now.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import koderz
import koderz.cli
from koderz.cli.groups import HELP_ALL, examples_in
from koderz.cli.options import panels
from koderz.engines.owners import REGISTRIES, schema_of
from koderz.settings.options import Field, plain
from koderz_tracker import records, results, summary

ROOT = Path(__file__).resolve().parent.parent

ELSEWHERE = {"changelog.md": ROOT / "CHANGELOG.md", "reference/results-folder.md": ROOT / "benchmark_results/README.md"}
"""Pages of the site that lie outside of docs/."""

MOVED = {
    "how-to/fresh-code.html": "code/guide.html",
    "long_context.html": "long-context/index.html",
    "optimizers.html": "optimizers/index.html",
    "performance.html": "performance/index.html",
    "rollouts.html": "rollouts/index.html",
}
"""Addresses that were pages, and the pages that took their place."""

_STUB = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<link rel="canonical" href="{0}">
<meta http-equiv="refresh" content="0; url={0}">
</head>
<body><p>This page has moved: <a href="{0}">{0}</a></p></body>
</html>
"""

_MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_CLASS = re.compile(r"^<!-- fields: (\w+) -->$", re.MULTILINE)
_PANEL = re.compile(r"^<!-- settings: (.+) -->$", re.MULTILINE)
_PLAIN = {r"Annotated\[(\w+), .+\]": r"\1", r"\bAmount\b": "float", r"\bCount\b": "int", r" \| UnsetType": ""}
_FIELD = re.compile(r"^    (\w+): (.+?)(?: = (.+?))?(?:  # (.+))?$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie elsewhere."""
    for uri, path in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The page with its generated parts, and links into docs/ as they are on the site."""
    if page.file.src_uri in ELSEWHERE:
        markdown = markdown.replace("](docs/", f"]({'../' * page.file.src_uri.count('/')}")
    markdown = _PANEL.sub(lambda marker: "\n".join(_panel(marker[1])), markdown)
    markdown = _CLASS.sub(lambda marker: "\n".join(_fields(getattr(koderz, marker[1]))), markdown)
    return _MARKER.sub(lambda marker: "\n".join(GENERATED[marker[1]]()), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Has old addresses lead to the pages of now."""
    for old, new in MOVED.items():
        page = Path(config.site_dir, old)
        page.write_text(_STUB.format(os.path.relpath(new, Path(old).parent)), encoding="utf-8")


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as the command line itself declares them."""
    root = typer.main.get_command(koderz.cli.app)
    yield from _command(root, root.make_context("koderz", [], resilient_parsing=True))


def _command(command: Any, ctx: Any) -> Iterator[str]:
    """One command, then those of the group."""
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
        yield from _command(inner, inner.make_context(name, [], parent=ctx, resilient_parsing=True))


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
    found = [match for match in _FIELD.finditer(inspect.getsource(kind)) if names is None or match[1] in names]
    rows = [(f"`{m[1]}`", f"`{_type(m[2])}`", m[4] or "") for m in found]
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


GENERATED: Mapping[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "settings": settings,
    "journal": journal,
    "summary": summary_fields,
}
