"""The notebook of the documentation, run by a real kernel: what its cells show is what the repository has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first.ipynb"


def executed(folder: Path) -> Any:
    """The notebook after its cells have run in a folder. Raises CellExecutionError where one fails."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def shown(notebook: Any) -> list[str]:
    """What each output shows, a table or a bar as HTML, else text, without what differs from run to run.

    That is ids and times, and the last column: Holm's correction counts latencies, too.
    """
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    texts = [each.data.get("text/html") or each.data["text/plain"] for each in outputs]
    varying = r"bench_\w+|, \d{4}-\d\d-\d\d \d\d:\d\d|(?<=>)[\d.]+(?=</td></tr>)"
    return [re.sub(varying, "", text) for text in texts]


@pytest.mark.slow
def test_notebook_shows_what_it_has_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    for name, folder in (("HOME", "home"), ("IPYTHONDIR", "ipython"), ("JUPYTER_RUNTIME_DIR", "runtime")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))

    before = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    assert shown(executed(tmp_path)) == shown(before)
    assert any("<progress" in text for text in shown(before))


def main() -> None:
    """Runs the notebook, and keeps what it shows: python -m tests.e2e.test_notebook."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(Path(folder))
    for cell in notebook.cells:
        cell.metadata.clear()
        for output in cell.get("outputs", ()):
            output.pop("metadata", None)
            if output.output_type in ("display_data", "execute_result"):
                output["metadata"] = {}
                if "text/html" in output.data:
                    output.data.pop("text/plain", None)
    nbformat.write(notebook, NOTEBOOK)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
