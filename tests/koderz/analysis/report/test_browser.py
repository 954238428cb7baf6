"""The report in Chromium: used by keyboard, on a telephone, in the dark, and by whoever hears it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.koderz.analysis import builders
from tests.koderz.analysis.report.hostile import EVIL, small, written

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
UNNAMED = """[...document.querySelectorAll("button:not([hidden]), input, select")]
    .filter((element) => !element.textContent.trim() && !element.labels?.length).length"""

FAINT = """() => {
    const channel = (value) => value <= 10.03 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b) + 0.05;
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const behind = (element) => {
        const colour = numbers(getComputedStyle(element).backgroundColor);
        return colour.length === 4 && colour[3] === 0 ? behind(element.parentElement) : colour;
    };
    const told = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    return [...document.querySelectorAll("body *:not(script)")].filter(told).filter((element) => {
        const style = getComputedStyle(element);
        const a = numbers(element instanceof SVGElement ? style.fill : style.color), b = behind(element);
        return Math.max(light(a), light(b)) / Math.min(light(a), light(b)) < 4.5 || style.opacity < 1;
    }).map((element) => element.outerHTML.slice(0, 80));
}"""
"""The elements whose text has a contrast below WCAG's 4.5, or is see-through."""

ENDS = """() => {
    const panels = [...document.querySelectorAll(".grid > *")].map((panel) => panel.getBoundingClientRect());
    const rows = Map.groupBy(panels, (panel) => panel.top);
    return [...rows.values()].map((row) => [row.length, Math.max(...row.map((panel) => panel.right))]);
}"""
"""How many panels each row has, and where the last one ends."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made before the browser is there, whose driver keeps this thread's event loop."""
    folder = tmp_path_factory.mktemp("report")
    written(folder, small(folder))
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(report: Path) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield opened
        opened.close()


@dataclass
class Opened:
    """The page, and whatever a browser had to say against it or that it fetched."""

    page: Page
    problems: list[str] = field(default_factory=list)


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    page = browser.new_page()
    opened = Opened(page)
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.on("console", lambda said: opened.problems.append(said.text))
    page.on("request", lambda asked: None if asked.url.startswith("file:") else opened.problems.append(asked.url))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield opened
    page.close()


@pytest.fixture
def page(opened: Opened) -> Page:
    return opened.page


def words(page: Page) -> list[str]:
    return page.locator("#table tbody .word").all_inner_texts()


def test_a_story_opens_by_keyboard_and_what_a_model_said_stays_text(opened: Opened) -> None:
    page = opened.page
    button = page.locator("#table tbody button").first
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".story pre")

    assert button.get_attribute("aria-expanded") == "true"
    told = page.locator(".story").inner_text()
    assert EVIL in told
    assert "koderz benchmark show bench_0a1b2c3d_20260131_120000 --problem T/1 --arm zero-shot" in told
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert opened.problems == []
    page.keyboard.press("Enter")
    assert page.locator(".story").count() == 0


def test_the_table_is_searched_chosen_and_sorted(page: Page) -> None:
    page.fill("#search", "t/1")
    assert words(page) == ["failed"]
    assert page.locator("#count").inner_text() == "1 of 1 that fit, of 3 experiments"
    page.fill("#search", "nowhere")
    assert page.locator("#count").inner_text() == "nothing fits"
    page.fill("#search", "")
    page.select_option("#verdict", "not")
    assert words(page) == ["failed", "fault"]
    page.select_option("#verdict", "")
    page.get_by_role("button", name="Attempts").click()
    assert words(page) == ["passed", "failed", "fault"]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Attempts")
    page.get_by_role("button", name="Attempts").click()
    assert words(page) == ["fault", "failed", "passed"]


def test_it_fits_a_telephone_and_reads_in_the_dark(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 16, 19)"
    assert page.evaluate("document.querySelector('#table tbody tr').offsetHeight") < 100
    page.locator("#table tbody button").first.click()
    page.wait_for_selector(".story pre")
    assert page.evaluate("document.querySelector('.told').getBoundingClientRect().right") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_stands_out_from_what_is_behind_it(page: Page, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    page.locator("#table tbody button").first.click()
    page.wait_for_selector(".story pre")

    assert page.evaluate(FAINT) == []


def test_on_paper_it_is_black_on_white_and_nothing_is_cut_off(page: Page) -> None:
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 less its margins
    page.emulate_media(color_scheme="dark", media="print")

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 720


@pytest.mark.parametrize("medium", ["screen", "print"])
def test_no_half_of_a_row_stays_empty(browser: Browser, tmp_path: Path, medium: Literal["screen", "print"]) -> None:
    """Three charts of which two stand side by side, and tables as wide as the page below."""
    one, other = ([True, False, True], [True, True, False])
    runs = []
    for day, model in enumerate("abab", start=1):
        more = {"run_id": f"bench_0a1b2c3d_2026020{day}_120000", "start_time": f"2026-02-0{day}T12:00:00.000000"}
        summary = builders.comparative(one, other, **more, config={"local_model": model})
        summary["iterative"]["results"][0]["iterations"] = 2
        runs.append(builders.write(tmp_path / f"{day}.json", summary))
    written(tmp_path, *runs)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.emulate_media(media=medium)
    page.goto((tmp_path / "report.html").as_uri())
    grid = page.locator(".grid").bounding_box()
    assert grid

    rows = page.evaluate(ENDS)

    assert rows == [[count, grid["x"] + grid["width"]] for count in (2, 1, 1, 1)]
    page.close()


def test_a_screen_reader_finds_headings_names_and_figures(page: Page) -> None:
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("searchbox", name="Search").count() == 1
    assert page.get_by_role("img", name=re.compile("of 2 tasks 1 always passed, 1 never")).count() == 1
    assert page.evaluate(UNNAMED) == 0
    assert page.evaluate("document.documentElement.lang") == "en"
