"""Names on pages: each is linked where it first stands, and citations.md lists what pages name and link to."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.e2e.pages import DOCS, PAGES, ROOT

CITATIONS = (DOCS / "citations.md").read_text(encoding="utf-8")
ENTRIES = (DOCS / "citations.bib").read_text(encoding="utf-8")
ROWS = [
    line.split(" | ") for line in CITATIONS.splitlines() if line.startswith("| ") and not line.startswith("| name ")
]
NAMES = [name for row in ROWS for name in row[0].removeprefix("| ").split(", ")]
NAMING = {"CHANGELOG.md": ROOT / "CHANGELOG.md", **PAGES}
PAPERS = ("https://arxiv.org/", "https://doi.org/", "https://openreview.net/", "https://www.jstor.org/")
del NAMING["docs/citations.md"]

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_UNREAD = re.compile(
    r"<!-- begin: (.+?) -->.*?<!-- end: \1 -->|"
    r"^( *)```.*?^\2```$|<!--.*?-->|^(?:#+|!!!) [^\n]*$|`[^`\n]+`|(?<=\]\()[^)\s]+",
    re.MULTILINE | re.DOTALL,
)


def test_citations_list_what_the_systems_are_about() -> None:
    about = {"HumanEval", "RULER", "GSO", "SWE-bench", "GEPA", "Wilson", "Codex", "Harbor", "inspect_ai", "MLflow"}
    assert about | {"Every Eval Ever", "MCP", "Docker", "vLLM"} <= set(NAMES)
    assert len(NAMES) == len(set(NAMES))
    assert {len(row) for row in ROWS} == {3}


def test_citations_have_an_entry_for_each_name() -> None:
    links = [[url for _, url in _LINK.findall(row[1])] for row in ROWS]
    titles = [re.sub(r" \(\d{4}\)$", "", row[1]).replace("×", r"$\times$") for row in ROWS]

    lacking = [
        row[0]
        for row, urls, title in zip(ROWS, links, titles, strict=True)
        if not any(f"url = {{{url}}}" in ENTRIES for url in urls) and f"title = {{{{{title}}}}}" not in ENTRIES
    ]
    assert lacking == []
    keys = re.findall(r"^@\w+\{(\w+),$", ENTRIES, re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(ROWS)


@pytest.mark.parametrize("page", NAMING)
def test_pages_link_a_name_where_it_first_stands(page: str) -> None:
    text = NAMING[page].read_text(encoding="utf-8")
    assert [f"{name}: …{around}…" for name, around in _unlinked(text)] == []


@pytest.mark.parametrize("page", NAMING)
def test_citations_list_what_pages_link_to(page: str) -> None:
    links = _LINK.findall(NAMING[page].read_text(encoding="utf-8"))
    unlisted = [(text, url) for text, url in links if url.startswith("https://") and f"]({url})" not in CITATIONS]

    assert [url for _, url in unlisted if url.startswith(PAPERS)] == []
    assert [link for link in unlisted if not any(name in link[0] for name in NAMES)] == []


def test_pages_without_a_link_are_found() -> None:
    text = "# GSO\n`GSO` and ISO-Bench\n[GSO](x)'s\n```\nRULER\n```\nHumanEval, [RULER's rows](y), MATH-500, HumanEval+"
    assert [name for name, _ in _unlinked(text)] == ["HumanEval", "HumanEval+", "ISO-Bench"]


def _unlinked(text: str) -> Iterator[tuple[str, str]]:
    """The listed names that are no link, and in none, where they first stand in prose, with what stands around them."""
    prose = _UNREAD.sub(lambda found: " " * len(found[0]), text)
    links = [found.span() for found in re.finditer(r"\[[^\]]*\]\( *\)", prose)]
    for name in NAMES:
        first = re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w+]|[-.^]\w)", prose)
        if first and not any(start <= first.start() < end for start, end in links):
            yield name, prose[max(0, first.start() - 30) : first.end() + 30].replace("\n", " ")
