"""The report in Chromium: used by keyboard, on a telephone, in the dark, and by whoever hears it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from msgspec.structs import replace

from koderz.testing import a_journal, a_plan
from tests.conftest import PATIENCE
from tests.koderz.analysis import builders
from tests.koderz.systems.optimizers.solvers.worlds import World, searched
from tests.koderz.systems.reports.hostile import EVIL, several, small, written
from tests.tracker.builders import judged

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
OF_COLOURS = ["color-contrast", "link-in-text-block"]  # the rules of axe that depend on them
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

ASTRIDE = """() => [...document.querySelectorAll(".id")]
    .filter((element) => element.getClientRects().length > 1).map((element) => element.textContent)"""
"""The dates and ids that more than one line holds."""

OUTSIDE = """() => [...document.querySelectorAll(".area > svg *, .axis, .keys li")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.left < 0 || box.right > innerWidth;
}).map((element) => element.outerHTML.slice(0, 80))"""
"""What of the charts reaches beyond the window."""

TOLD = """(band) => {
    const style = getComputedStyle(band, "::after");
    return style.display === "none" ? "" : style.content;
}"""
"""What a band of a chart tells at the moment."""

ENDS = """() => {
    const panels = [...document.querySelectorAll(".grid > *")].map((panel) => panel.getBoundingClientRect());
    const rows = Map.groupBy(panels, (panel) => panel.top);
    return [...rows.values()].map((row) => [row.length, Math.max(...row.map((panel) => panel.right))]);
}"""
"""How many panels each row has, and where the last one ends."""

SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.others("Chromium may crash, or not come up, where memory is short"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made before the browser is there, whose driver keeps this thread's event loop."""
    folder = tmp_path_factory.mktemp("report")
    written(folder, small(folder))
    return folder / "report.html"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which everything is there that one may have."""
    folder = tmp_path_factory.mktemp("full")
    written(folder, *several(folder))
    return folder / "report.html"


@pytest.fixture(scope="module")
def of_optimizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with what a system adds to it: curves, tables, and texts side by side."""
    folder = tmp_path_factory.mktemp("optimizers")
    written(folder, searched(folder, World("example", 1), "none", "few_shot", "random_search", budget_calls=200).folder)
    return folder / "report.html"


ODD_ARM, ODD_TASK = "it's · $(touch pwned) `x`; a\x1b[31m", "T/0 && b"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a run whose names mean something to a shell."""
    folder = tmp_path_factory.mktemp("odd")
    ended = replace(judged(0, solver=ODD_ARM), problem_id=ODD_TASK)
    of = replace(a_plan(1, arms=(ODD_ARM,)), tasks=[ODD_TASK])
    written(folder, a_journal(folder, ended, plan=of))
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(report: Path, full: Path, of_optimizers: Path, odd: Path) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split(), timeout=1000 * PATIENCE)
        yield opened
        opened.close()


@dataclass
class Opened:
    """The page, and whatever a browser had to say against it or that it fetched."""

    page: Page
    problems: list[str] = field(default_factory=list)


def opening(browser: Browser, report: Path, width: int = 1280) -> Opened:
    page = browser.new_page(viewport={"width": width, "height": 800}, reduced_motion="reduce")
    page.set_default_timeout(1000 * PATIENCE)
    opened = Opened(page)
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.on("console", lambda said: opened.problems.append(said.text))
    page.on("request", lambda asked: None if asked.url.startswith("file:") else opened.problems.append(asked.url))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]")
    return opened


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    opened = opening(browser, report)
    yield opened
    opened.page.close()


@pytest.fixture
def page(opened: Opened) -> Page:
    return opened.page


def words(page: Page) -> list[str]:
    return page.locator("#table tbody .word").all_inner_texts()


def test_story_opens_by_keyboard_and_model_text_stays_text(opened: Opened) -> None:
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


def test_table_can_be_searched_filtered_and_sorted(page: Page) -> None:
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


def test_page_fits_a_telephone_and_dark_mode(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 16, 19)"
    assert page.evaluate("document.querySelector('#table tbody tr').offsetHeight") < 100
    page.locator("#table tbody button").first.click()
    page.wait_for_selector(".story pre")
    assert page.evaluate("document.querySelector('.told').getBoundingClientRect().right") <= 390


def test_contrast_is_sufficient_everywhere(page: Page) -> None:
    page.locator("#table tbody button").first.click()
    page.wait_for_selector(".story pre")

    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(FAINT) == []


def test_print_is_black_on_white_and_complete(page: Page) -> None:
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 less its margins
    page.emulate_media(color_scheme="dark", media="print")

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 720


def test_layout_leaves_no_half_row_empty(browser: Browser, tmp_path: Path) -> None:
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
    page.goto((tmp_path / "report.html").as_uri())

    media: tuple[Literal["screen"], Literal["print"]] = ("screen", "print")
    for medium in media:
        page.emulate_media(media=medium)
        grid = page.locator(".grid").bounding_box()
        assert grid
        assert page.evaluate(ENDS) == [[count, grid["x"] + grid["width"]] for count in (2, 1, 1, 1)]
    page.close()


def test_screen_reader_finds_headings_names_and_figures(page: Page) -> None:
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("searchbox", name="Search").count() == 1
    assert page.get_by_role("img", name=re.compile("of 2 tasks 1 always passed, 1 never")).count() == 1
    assert page.evaluate(UNNAMED) == 0
    assert page.evaluate("document.documentElement.lang") == "en"


def axe_finds(page: Page, **only: list[str]) -> list[tuple[str, str]]:
    """The rules that a page breaks, each with an element."""
    from axe_playwright_python.sync_playwright import Axe

    told = Axe().run(page, options={"resultTypes": ["violations"], **only}).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in told]


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(browser: Browser, full: Path, width: int) -> None:
    """In the dark, only what depends on colours is looked at again."""
    opened = opening(browser, full, width)
    page = opened.page

    def look() -> None:
        assert axe_finds(page) == []
        page.emulate_media(color_scheme="dark")
        assert axe_finds(page, runOnly=OF_COLOURS) == []
        assert page.evaluate(FAINT) == []
        page.emulate_media(color_scheme="light")
        assert page.evaluate(FAINT) == []

    page.emulate_media(color_scheme="light")
    look()
    for details in page.locator("details").all():
        details.evaluate("(details) => details.open = true")
    page.locator(".flip").first.click()
    page.wait_for_selector(".duel .parting")
    page.locator("#table tbody button").first.click()
    page.wait_for_selector(".story pre")
    look()

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(ASTRIDE) == []
    assert opened.problems == []
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_in_what_a_system_adds(browser: Browser, of_optimizers: Path, width: int) -> None:
    opened = opening(browser, of_optimizers, width)
    page = opened.page
    for details in page.locator("details").all():
        details.evaluate("(details) => details.open = true")

    assert axe_finds(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.problems == []
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_charts_fit_and_tell_their_values_on_hover_and_focus(browser: Browser, full: Path, width: int) -> None:
    page = opening(browser, full, width).page

    assert page.locator(".plot").count() == 3
    assert page.evaluate(OUTSIDE) == []
    texts = page.locator(".area text").evaluate_all(
        "(all) => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(texts) >= 12
    bands = page.locator("#iterations .band")
    assert bands.count() == 3
    told = {}
    for way in ("hover", "focus"):
        getattr(bands.nth(1), way)()
        page.keyboard.press("Shift")  # so that the focus counts as one of the keyboard's
        told[way] = bands.nth(1).evaluate(TOLD)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.mouse.move(0, 0)
    assert "within 2 attempts" in told["hover"]
    assert "openai/gpt-4o-mini · iterative 66.7%" in told["hover"]
    assert told["focus"] == told["hover"]
    page.keyboard.press("Escape")
    assert bands.nth(1).evaluate(TOLD) == ""
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_flipped_tasks_are_shown_side_by_side_up_to_where_they_part(browser: Browser, full: Path, width: int) -> None:
    """Of a comparative run: the first attempt is the same, then only the iterative experiment goes on."""
    page = opening(browser, full, width).page
    page.locator("summary", has_text="Pairs in words").click()
    own = page.locator(".versus").first
    own.locator("summary").click()
    own.get_by_role("button", name="T/0").click()
    page.wait_for_selector(".duel .parting")

    duel = own.locator(".duel")
    assert duel.locator(".same summary").all_inner_texts()[0] == "Asked: the same in both"
    heads = duel.locator(".who").all_inner_texts()
    assert [head.split()[0] for head in heads] == ["A", "B"]
    assert [head.split()[-1] for head in heads] == ["failed", "passed"]
    assert "--problem T/0 --arm iterative" in duel.locator(".command").nth(1).inner_text()
    after = duel.locator(".pair").nth(1)
    assert after.inner_text().split() == ["A", "ended", "here", "B", "Asked", "do", "T/0,", "go", "2"]
    boxes = [side.bounding_box() for side in duel.locator(".pair").first.locator(".side").all()]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert (boxes[0]["y"] == boxes[1]["y"]) == (width > 720)

    own.get_by_role("button", name="T/0").click()
    assert page.locator(".duel").count() == 0
    page.close()


def test_differing_lines_of_two_models_stand_out(browser: Browser, full: Path) -> None:
    page = opening(browser, full).page
    page.locator("summary", has_text="Pairs in words").click()
    both = page.locator(".versus", has_text="gpt-4o-mini · zero-shot").filter(has_text="hf.co")
    other = both.filter(has=page.locator(".flip")).first
    other.locator("summary").click()
    other.locator(".flip").first.click()
    page.wait_for_selector(".duel .parting")

    marks = page.locator(".duel mark").all_inner_texts()
    assert any("not yet, attempt 1 of openai/gpt-4o-mini" in text for text in marks)
    assert not any("as asked" in text for text in marks)
    assert page.evaluate("window.pwned") is None
    page.close()


def test_story_command_can_be_pasted_into_a_shell(browser: Browser, odd: Path) -> None:
    page = opening(browser, odd).page
    page.locator("#table tbody button").first.click()
    page.wait_for_selector(".story .command")

    words = shlex.split(page.locator(".story .command").inner_text())

    assert words[5] == ODD_TASK
    assert words[7] == ODD_ARM.replace("\x1b", " ")
    page.close()


def _measured(outcomes: builders.Outcomes, other: builders.Outcomes, name: str, more: dict[str, Any]) -> Any:
    summary = builders.comparative(outcomes, other, **more)
    for arm in ("zero_shot", "iterative"):
        for number, result in enumerate(summary[arm]["results"]):
            result["metrics"] = {name: float(number)}
    return summary


def test_names_of_any_length_leave_the_page_as_wide_as_the_window(browser: Browser, tmp_path: Path) -> None:
    runs = []
    for number, name in enumerate(("m" * 300, EVIL * 2, "漢字" * 60)):
        outcomes = {f"{name[:150]}/{task}": [task % 3 != number] for task in range(4)}
        other = {task: [not passed for passed in all_] for task, all_ in outcomes.items()}
        more = {
            "run_id": f"bench_0000000{number}_20260131_120000",
            "config": {"local_model": name, "suite": name},
            "measures": [{"name": name, "direction": "lower"}],
        }
        runs.append(builders.write(tmp_path / f"{number}.json", _measured(outcomes, other, name, more)))
    written(tmp_path, *runs)
    page = opening(browser, tmp_path / "report.html").page
    for details in page.locator("details").all():
        details.evaluate("(details) => details.open = true")
    page.locator(".flip").first.click()
    page.wait_for_selector(".duel")

    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
