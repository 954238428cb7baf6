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

MARK_LOOKS = """(decided) => {
  const seen = new Set(decided), behind = new Map([[null, ""]]);
  const backdrop = (element) => {
    if (!behind.has(element)) {
      const { backgroundColor, backgroundImage, opacity, filter } = getComputedStyle(element);
      const own = [backgroundColor, backgroundImage, opacity, filter].join();
      const above = backdrop(element.parentElement);
      behind.set(element, own === "rgba(0, 0, 0, 0),none,1,none" ? above : above + own + "/");
    }
    return behind.get(element);
  };
  document.querySelectorAll("[data-look]").forEach((element) => element.removeAttribute("data-look"));
  let marked = 0;
  for (const element of document.body.querySelectorAll("*")) {
    const says = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!says || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const { color, fontSize, fontWeight, textShadow } = getComputedStyle(element);
    const look = [element.localName, color, fontSize, fontWeight, textShadow, backdrop(element)].join(" ");
    if (!seen.has(look)) {
      seen.add(look);
      element.dataset.look = look;
      marked += 1;
    }
  }
  return marked;
}"""
"""Marks one element of each look that is not decided: what contrast is computed of, and what it is of text before."""
LOOKS_OF = "(selectors) => selectors.map((selector) => document.querySelector(selector).dataset.look)"
FAINT = """document.querySelector("h1").insertAdjacentHTML(
  "afterend", "<p style='background: #777'><span style='color: #888'>faint</span></p>")"""


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
    """Contrast, which takes most of the time, is computed once for each look, and on the first page for all that is
    there at both widths. Nothing else depends on the colours, and what stands around a page's content differs by the
    width alone: it is looked at narrow on the first page."""
    sync_api = pytest.importorskip("playwright.sync_api")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    pages = [path for path in site.rglob("*.html") if "http-equiv" not in path.read_text(encoding="utf-8")]
    found: set[str] = set()
    decided: set[str] = set()
    with served(site) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split(), timeout=1000 * PATIENCE)
        page = browser.new_context(color_scheme=scheme).new_page()
        page.add_init_script(STILL)
        page.set_default_timeout(1000 * PATIENCE)

        def look(name: str, within: str | None = None, results: str = "violations", **rules: Any) -> list[Any]:
            """What is told of a page, or of what matches a selector. What else passes is described at length."""
            context = {"include": [[within]]} if within else None
            told = axe.run(page, context=context, options={"resultTypes": ["violations", results], **rules}).response
            found.update(
                f"{name}: {rule['id']}: {node['html'][:200]}" for rule in told["violations"] for node in rule["nodes"]
            )
            return [node["target"][0] for rule in told[results] for node in rule["nodes"]]

        def look_at_contrast(name: str) -> None:
            """Those that are not decided, as where something lies above them, are looked at on the next page again."""
            if page.evaluate(MARK_LOOKS, [*decided]):
                passed = look(name, "[data-look]", "passes", runOnly=["color-contrast"])
                decided.update(filter(None, page.evaluate(LOOKS_OF, passed)))

        pages.sort(key=lambda path: path != site / "index.html")
        for path in pages:
            name = path.relative_to(site).as_posix()
            page.set_viewport_size({"width": 1280, "height": 900})
            page.goto(f"{address}/{name}", wait_until="load")
            assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
            look_at_contrast(name)
            if scheme == "light":
                look(name, rules={"color-contrast": {"enabled": False}})
            if path == pages[0]:
                look(name, runOnly=["color-contrast"])
            page.set_viewport_size({"width": 390, "height": 900})
            if path == pages[0]:
                look(name)
            elif scheme == "light":
                look(name, ".md-content", rules={"color-contrast": {"enabled": False}})
        assert len(pages) > 50
        assert len(decided) > 10
        assert not found
        page.evaluate(FAINT)
        look_at_contrast("faint")
        assert len(found) == 1
        browser.close()


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


def test_site_has_the_options_of_systems_among_the_settings(site: Path) -> None:
    options = ("--canaries N|SHARE%", "--max-turns N", "--ruler-tasks NAME", "--keep-private-text", "--history N")
    text = re.sub("<[^>]+>", "", (site / "reference" / "settings.html").read_text(encoding="utf-8"))

    assert [option for option in options if option not in text] == []
    for page in ("rollouts", "long-context", "code"):
        assert "settings.html#" in (site / page / "reference.html").read_text(encoding="utf-8")


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
