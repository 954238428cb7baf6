"""The report of systems that aren't summed up by what passes: their own figure, and only the panels that apply."""

from __future__ import annotations

import re
from pathlib import Path

from koderz.analysis.runs import Run, load_summary
from koderz.systems.reports.page import write_report
from tests.koderz.analysis.builders import document, row, write
from tests.koderz.analysis.test_headlines import BY_SCORE, of_arms, perf


def page_of(folder: Path, *runs: Run) -> str:
    write_report(runs, folder / "report.html")
    return (folder / "report.html").read_text()


def searches(folder: Path) -> Run:
    arms = {
        name: [row("labels", False, score=score), row("sums", False, score=score)]
        for name, score in (("none", 0.25), ("few_shot", 0.5))
    }
    headline = {"measure": "score", "passed": "", "panels": ["cost", "trend"]}
    return load_summary(of_arms(folder, arms, "search.json", **{**BY_SCORE, "headline": headline}))


def cards(page: str) -> list[str]:
    """The texts of the cards, their words parted by one space."""
    found = re.findall(r'<article class="card".*?</article>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", each).split()) for each in found]


def test_report_of_searches_says_nothing_of_passes(tmp_path: Path) -> None:
    page = page_of(tmp_path, searches(tmp_path))

    best, base = cards(page)
    assert re.search(r"few_shot .* 0\.5 score, mean", best)
    assert re.search(r"none .* 0\.25 ", base)
    head = page.split('<section id="experiments"')[0]
    for told in ("passed</dt>", "% ", "Hardest", "Why experiments were not passed", "cost a pass", 'id="difficulty"'):
        assert told not in re.sub(r"<style>.*?</style>", "", head, flags=re.DOTALL).replace("95% ", ""), told
    assert 'id="comparison"' not in page
    assert "Cost against score" in page
    assert "Cost against success" not in page


def test_report_of_speed_ups_has_geometric_means(tmp_path: Path) -> None:
    page = page_of(tmp_path, perf(tmp_path))

    fast, slow = cards(page)
    assert re.search(r"fast .* 4\.00 times speed, geometric mean", fast)
    assert re.search(r"opt 1 of 2", slow)
    assert "5.00 times" not in page
    assert "Geometric means of speed 1.22 and 4: ×3.27" in page
    assert '<th scope="col" class="n">Opt</th>' in page
    assert "baseline" in page


def test_report_of_several_systems_charts_each_by_its_own_measure(tmp_path: Path) -> None:
    coded = [
        load_summary(write(tmp_path / f"{day}.json", document([True, False], start_time=f"2026-01-0{day}T12:00:00")))
        for day in (1, 2)
    ]

    page = page_of(tmp_path, *coded, searches(tmp_path), perf(tmp_path / "perf"))

    assert "Over time<" in page
    assert "Over time: score" not in page  # of which there is one run
    assert [re.search(r"(50\.0|0\.5|4\.00) ", card) is not None for card in cards(page)].count(True) >= 3
    (hardest,) = re.findall(r"Hardest: [^<]*", page)
    assert "labels" not in hardest
