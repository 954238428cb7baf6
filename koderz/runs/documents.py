"""Documents: files of a run besides its summary, written and renewed together with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from koderz.settings.systems import required
from koderz.settings.trust import is_trusted
from koderz_tracker.errors import StorageError
from koderz_tracker.files import before_resuming
from koderz_tracker.records import Experiment, Fault, Record
from koderz_tracker.runs import plan_and_line
from koderz_tracker.summary import Summary

if TYPE_CHECKING:
    from koderz.plans.plan import Plan


class Document(Protocol):
    """Some files of a run. Raises OSError for whatever goes wrong."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The documents of the run in `folder`; `about` holds their folder (`output`), names (`files`), and more.

        Where it says `is_own`, no other run writes these files.
        """

    def take(self, outcome: Experiment | Fault) -> None:
        """Takes in the end of an experiment while the run goes on."""

    def write(self, summary: Summary) -> None:
        """Writes all files, each whole."""


def documented(plan: Plan, name: str, about: Mapping[str, Any]) -> Plan:
    """The plan with one more document, of that name."""
    documents = {**plan.record.basis.documents, name: about}
    return plan.having(details=plan.record.details | {"documents": documents})


def following(folder: Path, environ: Mapping[str, str] = os.environ) -> Callable[[Record], None]:
    """A function to call with each record of a run, which keeps the run's documents up to date.

    What goes wrong is left to `write_documents`, which says so once everything is on record.
    """
    documents = _documents(folder, environ)

    def take(record: Record) -> None:
        if isinstance(record, Experiment | Fault):
            for document, _ in documents:
                with suppress(Exception):
                    document.take(record)

    return take


def write_documents(
    folder: Path, summary: Summary, environ: Mapping[str, str] = os.environ
) -> None:
    """Writes the documents that the plan of the run in `folder` names; none if the run was begun elsewhere.

    Raises StorageError where the disk refuses.
    """
    for document, about in _documents(folder, environ):
        try:
            document.write(summary)
        except OSError as error:
            raise StorageError(
                f"the files in {about['output']} can't be written ({error.strerror}); "
                f"{before_resuming(error)}koderz benchmark resume {folder.name}"
            ) from None


def lacks_documents(
    folder: Path, environ: Mapping[str, str] = os.environ, *, shared: bool = True
) -> bool:
    """Whether a document is missing. With `shared`, documents that other runs write into count too."""
    found = [about for _, about in _documents(folder, environ) if shared or about.get("is_own")]
    return any(
        not Path(about["output"], file).exists() for about in found for file in about["files"]
    )


def _documents(
    folder: Path, environ: Mapping[str, str]
) -> list[tuple[Document, Mapping[str, Any]]]:
    """The documents of a plan, each with its entry under `details.documents`."""
    plan, line = plan_and_line(folder)
    found = plan.basis.documents
    if not found or not is_trusted(line, environ):
        return []
    kinds = {name: cast("type[Document]", required("documents", name)) for name in found}
    return [(kinds[name](folder, about), about) for name, about in found.items()]
