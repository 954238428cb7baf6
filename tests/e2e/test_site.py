"""The site that is built of docs/: whole, complete, and of this host alone."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from koderz.engines.owners import schema_of
from tests.conftest import PATIENCE, served
from tests.e2e.pages import ROOT
from tests.koderz.analysis.report.test_browser import CHROMIUM, FLAGS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("mkdocs", path=str(Path(sys.executable).parent)) and not os.environ.get("CI"),
        reason="mkdocs is not installed",
    ),
]

STILL = """addEventListener("DOMContentLoaded", () => {
  document.head.insertAdjacentHTML("beforeend", "<style>* { transition: none !important }</style>");
});"""
"""A script that keeps colours from fading in, of which a check would see the middle."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, or the one that `scripts/docs` has just built and KODERZ_TEST_SITE names."""
    if built := os.environ.get("KODERZ_TEST_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def build(configuration: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(configuration), "-d", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//[^>]+>|<link[^>]+href=[\"']?(?:https?:)?//[^>]+>"
    )
    styling = re.compile(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]+")
    found = [hit for path in site.rglob("*.html") for hit in loading.findall(path.read_text(encoding="utf-8"))]
    found += [hit for path in site.rglob("*.css") for hit in styling.findall(path.read_text(encoding="utf-8"))]

    assert found == []


@pytest.mark.others("Chromium may crash, or not come up, where memory is short")
@pytest.mark.skipif(not CHROMIUM.exists() and not os.environ.get("CI"), reason="Chromium is not installed")
def test_site_in_a_browser_asks_no_other_host(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split(), timeout=1000 * PATIENCE)
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index", "tutorial", "reference/python", "reference/commands"):
            page.goto((site / f"{name}.html").as_uri(), wait_until="networkidle")
        browser.close()

    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.others("Chromium may crash, or not come up, where memory is short")
@pytest.mark.skipif(not CHROMIUM.exists() and not os.environ.get("CI"), reason="Chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_site_has_nothing_that_axe_finds(site: Path, scheme: Literal["light", "dark"]) -> None:
    """Contrast, which takes most of the time, doesn't depend on the width but for the bar at the top; nothing else
    depends on the colours."""
    sync_api = pytest.importorskip("playwright.sync_api")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    pages = [path for path in site.rglob("*.html") if "http-equiv" not in path.read_text(encoding="utf-8")]
    found: set[str] = set()
    with served(site) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split(), timeout=1000 * PATIENCE)
        page = browser.new_context(color_scheme=scheme).new_page()
        page.add_init_script(STILL)
        page.set_default_timeout(1000 * PATIENCE)
        for path in pages:
            name = path.relative_to(site).as_posix()
            page.goto(f"{address}/{name}", wait_until="load")
            assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
            for width in (1280, 390):
                has_contrast = width == 1280 or name == "index.html"
                options: dict[str, Any] = {"resultTypes": ["violations"]}  # or each element that passes is described
                if scheme == "light":
                    options["rules"] = {"color-contrast": {"enabled": has_contrast}}
                elif has_contrast:
                    options["runOnly"] = ["color-contrast"]
                else:
                    continue
                page.set_viewport_size({"width": width, "height": 900})
                for rule in axe.run(page, options=options).response["violations"]:
                    found |= {f"{name} at {width}: {rule['id']}: {node['html'][:200]}" for node in rule["nodes"]}
        browser.close()

    assert len(pages) > 50
    assert not found


def test_reference_has_every_command_setting_and_kind_of_record(site: Path) -> None:
    commands, settings, journal, api = (
        re.sub("<[^>]+>", "", (site / "reference" / f"{name}.html").read_text(encoding="utf-8"))
        for name in ("commands", "settings", "journal", "python")
    )
    for name in ("benchmark compare", "memory serve", "modal deploy", "doctor", "benchmark START END"):
        assert f"koderz {name}" in commands
    assert "B is significantly worse than A." in commands
    own = {"models", "rates"}  # which --model gives, too, and tables of koderz.toml
    assert [name for name in schema_of().fields if f"KODERZ_{name.upper()}" not in settings and name not in own] == []
    for kind in ("message", "experiment", "submitted"):
        assert f"\n{kind}" in journal
    assert "generated:" not in commands + settings + journal
    assert "Runs a benchmark and returns its summary." in api
    assert "float | None\n" in api
    assert "\\|" not in commands + settings + journal + api


def test_site_leads_from_old_addresses_to_pages(site: Path) -> None:
    moved = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))["MOVED"]
    assert moved
    for old, new in moved.items():
        found = re.findall(r'(?:href="|url=)([^"]+)"', (site / old).read_text(encoding="utf-8"))

        assert found
        assert all((site / old).parent.joinpath(address).resolve() == site / new for address in found)
        assert (site / new).exists()


def test_site_has_the_options_of_systems_on_their_pages(site: Path) -> None:
    for page, options in {
        "rollouts": ("--canaries N|SHARE%", "--max-turns N"),
        "long-context": ("--ruler-tasks NAME", "--max-depth N", "--keep-private-text"),
        "code": ("--test-timeout SECONDS", "--history N"),
    }.items():
        text = re.sub("<[^>]+>", "", (site / page / "reference.html").read_text(encoding="utf-8"))
        assert "settings: " not in text
        assert [option for option in options if option not in text] == []


BROKEN = {
    "[x](index.md)": None,
    "[x](nowhere.md)": "a link 'nowhere.md', but the target is not found",
    "[x](index.md#nowhere)": "there is no such anchor",
    "::: koderz.nowhere": "koderz.nowhere could not be found",
}


@pytest.mark.parametrize("line", BROKEN)
def test_site_with_a_broken_link_isnt_built(tmp_path: Path, line: str) -> None:
    """By the configuration of the site, on one page: without the list of pages, and what is generated for them."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    text = re.sub(r"^hooks:.*\n", "", text.partition("\nnav:\n")[0], flags=re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(text.replace("paths: [.]", f"paths: [{ROOT}]"), encoding="utf-8")
    for name in ("index.md", "assets/site.css", "assets/site.js"):
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(f"# Page\n\n{line}\n" if name == "index.md" else "", encoding="utf-8")

    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")

    told = BROKEN[line]
    assert (done.returncode != 0) == (told is not None), done.stderr
    assert told is None or told in done.stderr
