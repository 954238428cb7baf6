"""Documents: files of a run's own besides its summary, which are written and made anew together with that."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from koderz.settings.registry import Registry
from koderz.settings.trust import is_trusted
from tracker.errors import StorageError
from tracker.records import Experiment, Fault, Record
from tracker.runs import plan_line, read_plan
from tracker.summary import Summary

if TYPE_CHECKING:
    from koderz.plans.plan import Plan

DOCUMENTS = Registry(
    "document",
    "koderz.documents",
    {
        "long-context": "koderz.suites.long_context.results:write_results",
        "rollouts": "koderz.suites.rollouts.files:write_files",
    },
)
"""Functions of a run's folder, its summary, and what its plan says under `details.documents.NAME`.

That says at least in which folder (`output`) which `files` are. One may have an attribute `follow`, a function of the
run's folder and of the same, which makes what is handed the outcome of each experiment while the run goes on.
"""

Write = Callable[[Path, Summary, Mapping[str, Any]], None]
Follow = Callable[[Path, Mapping[str, Any]], Callable[[Experiment | Fault], None]]


def documented(plan: Plan, name: str, about: Mapping[str, Any]) -> Plan:
    """The plan of a run that has the document of that name besides."""
    documents = {**plan.record.details.get("documents", {}), name: about}
    details = {**plan.record.details, "documents": documents}
    return replace(plan, record=msgspec.structs.replace(plan.record, details=details))


def following(folder: Path, environ: Mapping[str, str] = os.environ) -> Callable[[Record], None]:
    """What keeps the documents level with a run that goes on, given each record.

    Where the disk refuses, that is left to `write_documents`, which says so.
    """
    named = ((DOCUMENTS.find(name), about) for name, about in _documents(folder, environ).items())
    followers = [cast("Follow", write.follow)(folder, about) for write, about in named if hasattr(write, "follow")]

    def take(record: Record) -> None:
        if isinstance(record, Experiment | Fault):
            for follower in followers:
                with suppress(OSError):
                    follower(record)

    return take


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
