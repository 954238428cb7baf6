"""The site that is built of docs/: whole, complete, and of this host alone."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koderz.engines.sources import schema_of
from tests.conftest import PATIENCE, served
from tests.e2e.pages import ROOT
from tests.koderz.systems.reports.test_browser import CHROMIUM, FLAGS, OF_COLOURS

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
  const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
  const says = (element) => [...element.childNodes].some(isText);
  const inline = (element) => getComputedStyle(element).display.startsWith("inline");
  const around = (link) => {
    let block = link.parentElement;
    while (inline(block)) block = block.parentElement;
    const text = [...block.children].some((child) => child !== link && inline(child) && child.textContent.trim());
    return text || says(block) ? getComputedStyle(block).color : "";
  };
  document.querySelectorAll("[data-look]").forEach((element) => element.removeAttribute("data-look"));
  let marked = 0;
  for (const element of document.body.querySelectorAll("*")) {
    const block = element.localName === "a" ? around(element) : "";
    if (!says(element) && !block) continue;
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const { color, fontSize, fontWeight, textShadow, textDecoration, border } = getComputedStyle(element);
    const large = parseFloat(fontSize) >= (fontWeight < 700 ? 24 : 18.66);
    const of_link = block && [block, textDecoration, border].join();
    const look = [color, large, textShadow, of_link, backdrop(element)].join(" ");
    if (!seen.has(look)) {
      seen.add(look);
      element.dataset.look = look;
      marked += 1;
    }
  }
  return marked;
}"""
"""Marks one element of each look that is not decided: what contrast is computed of, and what tells a link from text."""
LOOKS_OF = "(selectors) => selectors.map((selector) => document.querySelector(selector).dataset.look)"
KINDS = """[...new Set([...document.querySelectorAll(":not(span)")].map((element) => {
  const { localName, classList, tabIndex, scrollWidth, clientWidth, scrollHeight, clientHeight } = element;
  const cut = scrollWidth > clientWidth || scrollHeight > clientHeight;
  const keys = tabIndex >= 0 || element.querySelector("a[href], button, input, [tabindex]:not([tabindex='-1'])");
  const stuck = cut && !keys && /auto|scroll/.test(getComputedStyle(element).overflow);
  return [localName, ...classList, stuck].join(".");
}))]"""
"""The kinds of elements, and whether they hold more than they show, with nothing that a key would scroll them by."""
SWITCH = """document.querySelector("[data-md-component=palette] label:not([hidden])").click()"""
REST = {rule: {"enabled": False} for rule in OF_COLOURS}
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
def test_site_has_nothing_that_axe_finds_and_asks_no_other_host(site: Path) -> None:
    """Each page is loaded once and seen in both schemes, since a reader's choice holds for the next page.

    What depends on colours takes most of the time. It is computed once for each look, and on the first page for all
    that is there at both widths. The narrow width changes the layout alone: there, all rules are applied to a page with
    a kind of element that none before has, such as one that scrolls, but not by keys.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().axe_script
    pages = [path for path in site.rglob("*.html") if "http-equiv" not in path.read_text(encoding="utf-8")]
    asked: list[str] = []
    found: set[str] = set()
    kinds: set[str] = set()
    decided: dict[str, set[str]] = {"default": set(), "slate": set()}
    seen: list[str] = []
    with served(site) as root, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split(), timeout=1000 * PATIENCE)
        page = browser.new_page(color_scheme="dark")
        page.add_init_script(STILL)
        page.set_default_timeout(1000 * PATIENCE)
        page.on("request", lambda request: asked.append(request.url))

        def look(name: str, within: str | None = None, results: str = "violations", **rules: Any) -> list[Any]:
            """What is told of a page, or of what matches a selector. What else passes is described at length."""
            options = {"resultTypes": ["violations", results], **rules}
            told = page.evaluate("([within, options]) => axe.run(within ?? document, options)", [within, options])
            found.update(
                f"{name}: {rule['id']}: {node['html'][:200]}" for rule in told["violations"] for node in rule["nodes"]
            )
            return [node["target"][0] for rule in told[results] for node in rule["nodes"]]

        def look_at_colours(name: str) -> None:
            """Those that are not decided, as where something lies above them, are looked at on the next page again."""
            known = decided[scheme := page.evaluate("document.body.dataset.mdColorScheme")]
            seen.append(scheme)
            if page.evaluate(MARK_LOOKS, [*known]):
                known.update(
                    filter(None, page.evaluate(LOOKS_OF, look(name, "[data-look]", "passes", runOnly=OF_COLOURS)))
                )

        pages.sort(key=lambda path: path != site / "index.html")
        for path in pages:
            name = path.relative_to(site).as_posix()
            page.set_viewport_size({"width": 1280, "height": 900})
            address = root if name == "404.html" else site.as_uri()  # whose links begin at the root
            page.goto(f"{address}/{name}", wait_until="load")
            page.evaluate(axe)
            for change in ("", SWITCH):
                page.evaluate(change)
                look_at_colours(name)
                for width in (390, 1280) if path == pages[0] else ():
                    page.set_viewport_size({"width": width, "height": 900})
                    look(name, runOnly=OF_COLOURS)
            look(name, rules=REST)
            page.set_viewport_size({"width": 390, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            more = {*page.evaluate(KINDS)} - kinds
            kinds |= more
            if more:
                look(name, rules=REST)
        assert len(pages) > 50
        assert min(map(len, decided.values())) > 10
        assert seen[0] == "slate"
        assert all({*pair} == decided.keys() for pair in zip(seen[::2], seen[1::2], strict=True))
        assert not found
        page.evaluate(FAINT)
        look_at_colours("faint")
        assert len(found) == 1
        browser.close()
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:", f"{root}/"))] == []


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
    (tmp_path / "mkdocs.yml").write_text(text.replace("paths: [.]", f"paths: [{tmp_path}]"), encoding="utf-8")
    (tmp_path / "koderz").mkdir()
    (tmp_path / "koderz" / "__init__.py").touch()  # to read the whole of the package takes ten seconds
    for name in ("index.md", "assets/site.css", "assets/site.js"):
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(f"# Page\n\n{line}\n" if name == "index.md" else "", encoding="utf-8")

    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")

    told = BROKEN[line]
    assert (done.returncode != 0) == (told is not None), done.stderr
    assert told is None or told in done.stderr
