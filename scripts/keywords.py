"""Writes `koderz/settings/keywords.py`, the types of the keyword arguments of functions that run something.

python scripts/keywords.py           # writes it
python scripts/keywords.py --check   # says whether it is what the options ask for
"""

from __future__ import annotations

import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

from koderz.engines.sources import REGISTRIES
from koderz.settings.options import Field, fields_of
from koderz.settings.registry import NAMING
from koderz.settings.schema import Settings

PLACE = Path(__file__).parents[1] / "koderz" / "settings" / "keywords.py"
OTHERWISE = {"problems", "models", "local_model"}  # which are arguments by other names
HEAD = '''"""The keyword arguments of functions that run something, with their types; written by `scripts/keywords.py`.

They are the settings, and the options of koderz' own suites, solvers, sandboxes, engines and models. An option of
somebody else's is passed as `**{"its_name": value}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class Changes(TypedDict, total=False):
    """The settings that may differ when a run is resumed, and those that a program hands over again."""

'''
REST = '''

class Keywords(Changes, total=False):
    """The settings and options of a new run."""

'''


def text() -> str:
    """The module as the options ask for it."""
    known: dict[str, list[Field]] = {}
    structs = [registry.options_of(name) for registry in REGISTRIES.values() for name in registry.options]
    for struct in (Settings, *filter(None, structs)):
        for name, field in fields_of(struct).items():
            if name not in OTHERWISE:
                known.setdefault(name, []).append(field)
    lines: dict[bool, list[str]] = {True: [], False: []}
    for name, fields in sorted(known.items()):
        kinds = dict.fromkeys(part for field in fields for part in _kinds(name, field))
        changes = any(field.about.changeable or field.about.is_address or name in NAMING for field in fields)
        lines[changes].append(f"    {name}: {' | '.join(sorted(kinds, key=lambda kind: kind == 'None'))}\n")
    return HEAD + "".join(lines[True]) + REST + "".join(lines[False])


def _kinds(name: str, field: Field) -> list[str]:
    """The types of one option, as a program gives it."""
    if name == "suite":
        return ["Any"]  # a suite may be of any class
    if name in NAMING:
        own = "Callable[..., Any]"
        return [f"Sequence[str | {own}]"] if field.item_type else ["str", own, "None"]
    union = typing.get_origin(field.type) in (types.UnionType, typing.Union)
    return [_kind(each) for each in (typing.get_args(field.type) if union else [field.type])]


def _kind(kind: Any) -> str:
    if kind is type(None):
        return "None"
    if kind is Path:
        return "str | Path"
    if typing.get_origin(kind) is tuple:
        return f"Sequence[{_kind(typing.get_args(kind)[0])}]"
    if typing.get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(repr, typing.get_args(kind)))}]".replace("'", '"')
    return str(kind.__name__)


def main() -> None:
    """Writes the module, or compares it."""
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if PLACE.read_text("utf-8") == text() else f"{PLACE.name} is out of date: scripts/keywords.py")
    PLACE.write_text(text(), "utf-8")


if __name__ == "__main__":
    main()
