"""What an index shows of koderz: the addresses in its metadata, and README as it stands there."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"][
    "custom"
]["address"]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packaging_hooks", ROOT / "scripts" / "packaging_hooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](docs/a.md)", "[a](ADDRESS/blob/v1/docs/a.md)"),
        ("[`a`](docs/a.md#part)", "[`a`](ADDRESS/blob/v1/docs/a.md#part)"),
        ('![a](docs/a.svg "title")', '![a](ADDRESS/raw/v1/docs/a.svg "title")'),
        ("[![a](a.png)](LICENSE)", "[![a](ADDRESS/raw/v1/a.png)](ADDRESS/blob/v1/LICENSE)"),
        ('<img src="a.svg" alt="x">', '<img src="ADDRESS/raw/v1/a.svg" alt="x">'),
        ("[a]: docs/a.md", "[a]: ADDRESS/blob/v1/docs/a.md"),
        *((same, same) for same in ("[a](https://e.example/a)", "[a](#a)", "`[a](b)`", "```\n[a](b.md)\n```\n")),
    ],
)
def test_readme_on_an_index_has_absolute_links(hooks: ModuleType, text: str, shown: str) -> None:
    assert hooks.with_absolute_links(text, ADDRESS, "v1") == shown.replace("ADDRESS", ADDRESS)


def test_readme_links_lead_to_files_that_exist(hooks: ModuleType) -> None:
    text = hooks.with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), ADDRESS, "v1")
    paths = re.findall(rf"{ADDRESS}/(?:blob|raw)/v1/([^)#\"\s]+)", text)

    assert len(paths) > 10
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_project_address_stands_in_no_file_but_pyproject() -> None:
    places = [ROOT / name for name in ("koderz", "tracker", "docs", "scripts", "deploy", ".github", ".ci")]
    files = [*ROOT.glob("*.*"), *(file for place in places for file in place.rglob("*") if file.is_file())]
    made = {"pyproject.toml", "CITATION.cff"}  # the latter by scripts/release

    naming = {file.name for file in files if ADDRESS.encode() in file.read_bytes() and "__pycache__" not in file.parts}
    assert naming == made
    assert (ROOT / "pyproject.toml").read_text(encoding="utf-8").count(ADDRESS) == 1
