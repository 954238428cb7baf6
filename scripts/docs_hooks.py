"""Hooks of MkDocs for the documentation: pages that lie elsewhere, notebooks as pages, and addresses of before."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

ELSEWHERE = {"changelog.md": ROOT / "CHANGELOG.md", "reference/results-folder.md": ROOT / "benchmark_results/README.md"}
"""Pages of the site that lie outside of docs/."""

MOVED = {
    "how-to/fresh-code.html": "code/guide.html",
    "long_context.html": "long-context/index.html",
    "optimizers.html": "optimizers/index.html",
    "performance.html": "performance/index.html",
    "rollouts.html": "rollouts/index.html",
}
"""Addresses that were pages, and the pages that took their place."""

_STUB = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<link rel="canonical" href="{0}">
<meta http-equiv="refresh" content="0; url={0}">
</head>
<body><p>This page has moved: <a href="{0}">{0}</a></p></body>
</html>
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie elsewhere."""
    for uri, path in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content="\n\n".join(_cells(path))))
    return files


def _cells(notebook: Path) -> Iterator[str]:
    """A notebook as a page: its texts, its code, and what each cell has shown, with a link to the notebook itself."""
    for cell in orjson.loads(notebook.read_bytes())["cells"]:
        source = "".join(cell["source"])
        yield f"```python\n{source}\n```" if cell["cell_type"] == "code" else source
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            plain = "".join(shown.get("text/plain") or output.get("text", ""))
            # A page's headings go down by one level at a time, and a header without a text is none.
            table = re.sub(r"<th[^>]*></th>", "<td></td>", "".join(shown.get("text/html", "")).replace("h4>", "h2>"))
            yield table or f"```text\n{plain}\n```"
    yield f"This page is the notebook [{notebook.name}]({notebook.name}), as a test runs it."


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The page, with links into docs/ as they are on the site."""
    if page.file.src_uri in ELSEWHERE:
        markdown = markdown.replace("](docs/", f"]({'../' * page.file.src_uri.count('/')}")
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Has old addresses lead to the pages of now."""
    for old, new in MOVED.items():
        page = Path(config.site_dir, old)
        page.write_text(_STUB.format(os.path.relpath(new, Path(old).parent)), encoding="utf-8")
