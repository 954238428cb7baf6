"""Documents: files of a run's own besides its summary, which are written and made anew together with that."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from koderz.settings.registry import Registry
from koderz.settings.trust import is_trusted
from tracker.errors import StorageError
from tracker.runs import plan_line, read_plan
from tracker.summary import Summary

DOCUMENTS = Registry(
    "document", "koderz.documents", {"long-context": "koderz.suites.long_context.results:write_results"}
)
"""Functions of a run's folder, its summary, and what its plan says under `details.documents.NAME`.

That says at least in which folder (`output`) which `files` are.
"""

Write = Callable[[Path, Summary, Mapping[str, Any]], None]


def write_documents(folder: Path, summary: Summary, environ: Mapping[str, str] = os.environ) -> None:
    """Writes the documents that the plan of the run in `folder` names; none where the run was begun elsewhere.

    Raises StorageError where the disk refuses.
    """
    for name, about in _documents(folder, environ).items():
        write: Write = DOCUMENTS.find(name)
        try:
            write(folder, summary, about)
        except OSError as error:
            raise StorageError(
                f"the files in {about['output']} can't be written ({error.strerror}); make room, then: "
                f"koderz benchmark resume {folder.name}"
            ) from None


def lacks_documents(folder: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether one of the documents isn't there."""
    found = _documents(folder, environ).values()
    return any(not Path(about["output"], file).exists() for about in found for file in about["files"])


def _documents(folder: Path, environ: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = read_plan(folder).details.get("documents", {})
    return found if found and is_trusted(plan_line(folder), environ) else {}
