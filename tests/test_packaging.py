"""What an index shows of koderz: the addresses in its metadata, and README as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

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
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    files += [file for file in ROOT.glob("*.*") if file.is_file()]
    made = {"pyproject.toml", "CITATION.cff"}  # the latter by scripts/release

    naming = {file.name for file in files if ADDRESS.encode() in file.read_bytes() and "__pycache__" not in file.parts}
    assert naming == made
    assert (ROOT / "pyproject.toml").read_text(encoding="utf-8").count(ADDRESS) == 1


@pytest.mark.slow
@pytest.mark.skipif(not (CFFCONVERT := os.environ.get("KODERZ_CFFCONVERT", "")), reason="cffconvert is not here")
def test_citation_is_valid_by_its_schema() -> None:
    done = subprocess.run([CFFCONVERT, "--validate"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_issue_templates_have_what_a_form_needs() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        ids = [each["id"] for each in form["body"]]
        assert len(ids) == len(set(ids))
        assert all(each["attributes"]["label"] for each in form["body"])


def test_release_checklist_names_what_is_open(tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    for name in (
        "pyproject.toml",
        "CITATION.cff",
        "CHANGELOG.md",
        "scripts/release",
        "koderz/_version.py",
        "requirements",
    ):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, copy / name)
    subprocess.run(["git", "init", "-q", copy], check=True)
    (copy / "koderz" / "_version.py").write_text('__version__ = "9.9.9"\n')
    citation = (copy / "CITATION.cff").read_text().replace(ADDRESS, "https://elsewhere.example/x")
    (copy / "CITATION.cff").write_text(citation + "# koderz[nothing]\n")
    (copy / "README.md").write_text("pip install 'koderz[nothing]'\n")
    (copy / "requirements" / "core.txt").write_text("")

    command = [sys.executable, str(copy / "scripts" / "release"), "--check"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    for said in (
        "koderz 9.9.9",
        "CITATION.cff doesn't name",
        "README.md names the extra nothing",
        "core.txt has typer None",
    ):
        assert said in done.stdout
    assert "files aren't committed" in done.stdout
