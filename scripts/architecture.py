#!/usr/bin/env python3
"""The picture of koderz' packages and the floors they stand on, made from the code's imports.

    scripts/architecture.py [--check]

Writes docs/explanation/architecture.svg, and the table in architecture.md below its marker. A package stands one floor
above the highest that it imports, be it for types alone. With --check nothing is written: exit code 1
where the page is stale.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import grimp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
MARKER = "<!-- made by scripts/architecture.py -->\n"

BOX, GAP, HEIGHT, FLOOR = 118, 14, 34, 64  # pixels: a box, the space beside it, its height, and a floor's
MARGIN = 20

Imports = Mapping[str, frozenset[str]]


def main() -> int:
    """Brings the page up to date, or checks whether it is."""
    imports = package_imports()
    floors = floors_of(imports)
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    made = {
        PAGE: head + MARKER + "\n".join(_table(floors)) + "\n",
        PAGE.with_suffix(".svg"): "\n".join(_picture(imports, floors)) + "\n",
    }
    if "--check" not in sys.argv[1:]:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale; bring it up to date with: scripts/architecture.py")
    return 1 if stale else 0


def package_imports() -> Imports:
    """Imports of each package from the others: packages and modules directly in koderz, and the tracker."""
    graph = grimp.build_graph("koderz", "koderz_tracker", exclude_type_checking_imports=False, cache_dir=None)
    names = {*graph.find_children("koderz"), "koderz_tracker"}
    for name in names:
        graph.squash_module(name)
    return {
        _short(name): frozenset(
            _short(other) for other in graph.find_modules_directly_imported_by(name) if other != name and other in names
        )
        for name in sorted(names)
    }


def floors_of(imports: Imports) -> dict[str, int]:
    """The floor of each, from 0 for those that import none of the others. ValueError where there is a circle."""
    floors: dict[str, int] = {}
    while len(floors) < len(imports):
        ready = [name for name in imports if name not in floors and imports[name] <= floors.keys()]
        if not ready:
            raise ValueError(f"these import each other: {', '.join(sorted(imports.keys() - floors.keys()))}")
        floors |= {name: 1 + max((floors[other] for other in imports[name]), default=-1) for name in ready}
    return floors


def _short(name: str) -> str:
    return "tracker" if name == "koderz_tracker" else name.removeprefix("koderz.")


def _path(name: str) -> Path:
    """The file that says what a package is."""
    base = ROOT / name if name == "tracker" else ROOT / "koderz" / name
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _is_package(name: str) -> bool:
    return _path(name).name == "__init__.py"


def _rows(floors: Mapping[str, int]) -> list[list[str]]:
    """The names on each floor, the highest first; packages before single modules."""
    floor_count = max(floors.values()) + 1
    rows = [[name for name in floors if floors[name] == floor] for floor in reversed(range(floor_count))]
    return [sorted(row, key=lambda name: (not _is_package(name), name)) for row in rows]


def _table(floors: Mapping[str, int]) -> Iterator[str]:
    yield from ("", "| floor | package | what it is |", "|---:|---|---|")
    for row in _rows(floors):
        for name in row:
            text = (ast.get_docstring(ast.parse(_path(name).read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
            shown = name if name == "tracker" else f"koderz.{name}"
            yield f"| {floors[name]} | `{shown}` | {' '.join(text.split()).replace('|', chr(92) + '|')} |"


def _picture(imports: Imports, floors: Mapping[str, int]) -> Iterator[str]:
    """An SVG: a row of boxes for each floor, and a line for each import that no other path implies."""
    rows = _rows(floors)
    width = 2 * MARGIN + max(map(len, rows)) * (BOX + GAP) - GAP
    height = 2 * MARGIN + len(rows) * FLOOR - (FLOOR - HEIGHT)
    ground = {name for name, floor in floors.items() if floor <= 1 and not _is_package(name)}  # all may import these
    places = {name: place for number, row in enumerate(rows) for name, place in _placed(row, number, width)}
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="13"'
    yield '  font-family="ui-sans-serif, system-ui, sans-serif" text-anchor="middle">'
    yield "<title>The packages of koderz, each above what it imports</title>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>'
    yield '<g stroke="#9aa5b8" fill="none">'
    for name, others in imports.items():
        for other in sorted(_direct(others, imports) - ground):
            (x, y), (to_x, to_y) = places[name], places[other]
            start, end = y + HEIGHT, to_y
            middle = (start + end) // 2
            yield f'<path d="M{x},{start} C{x},{middle} {to_x},{middle} {to_x},{end}"/>'
    yield "</g>"
    for name, (x, y) in places.items():
        fill, weight = ("#e3e9fb", 600) if _is_package(name) else ("#f4f5f7", 400)
        yield f'<rect x="{x - BOX // 2}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6" stroke="#567" fill="{fill}"/>'
        yield f'<text x="{x}" y="{y + 22}" font-weight="{weight}" fill="#1c2333">{escape(name)}</text>'
    yield "</svg>"


def _placed(row: Sequence[str], number: int, width: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each name with the middle of its box's upper edge, the row being centred."""
    left = (width - len(row) * (BOX + GAP) + GAP) // 2 + BOX // 2
    for position, name in enumerate(row):
        yield name, (left + position * (BOX + GAP), MARGIN + number * FLOOR)


def _direct(others: frozenset[str], imports: Imports) -> set[str]:
    """Imports of a package that none of its other imports reaches."""
    below: set[str] = set()
    waiting = [name for other in others for name in imports[other]]
    while waiting:
        name = waiting.pop()
        if name not in below:
            below.add(name)
            waiting += imports[name]
    return set(others) - below


if __name__ == "__main__":
    sys.exit(main())
