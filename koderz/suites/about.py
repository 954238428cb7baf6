"""Facts about a suite: its tasks, its licence, and whether its file is the published one."""

from __future__ import annotations

from typing import Any, Literal

from koderz.errors import KoderzError
from koderz.settings.schema import Settings
from koderz.suites import SUITES, added_dataset, load_suite
from koderz.suites.suite import Suite
from koderz.types import JUDGE, PRIVACY

FileState = Literal["published", "other", "unknown", "none"]

_NEEDS = {JUDGE: "a sandbox for programs", PRIVACY: "privacy of its texts"}


def about_suite(settings: Settings) -> dict[str, Any]:
    """The facts about a suite as JSON; `problem` says why its tasks can't be loaded.

    Raises KoderzError for an unknown suite.
    """
    name = settings.suite
    kind = Suite if SUITES.is_file(name) else SUITES.load(name)
    suite, problem = None, ""
    try:
        suite = load_suite(name, settings.dataset, settings)
    except KoderzError as error:
        problem = str(error)
    published = (suite or kind).publication
    dataset = settings.dataset or added_dataset(name)
    source = str(dataset) if dataset else None
    if suite and not dataset:
        source = suite.source
    return {
        "name": name,
        "about": ((type(suite) if suite else kind).__doc__ or "").partition("\n")[0],
        "tasks": len(suite.tasks) if suite else None,
        "dataset": source,
        "file": file_state(suite) if suite else "none",
        "licence": published.licence if published else None,
        "place": published.place if published else None,
        "get": published.command if published else None,
        "needs": _needs_of(suite) if suite else [],
        "rule": suite.rule_text if suite else "",
        "problem": problem,
    }


def file_state(suite: Suite) -> FileState:
    """Whether the tasks are those of a published file, by the digest of its rows."""
    published = suite.publication
    if published is None or not published.digests:
        return "unknown"
    return "published" if suite.rows_digest() in published.digests else "other"


def _needs_of(suite: Suite) -> list[str]:
    needs = sorted({need for task in suite.tasks for need in task.needs})
    return [_NEEDS.get(need, need) for need in needs] + (
        ["a model in the role judge"] if suite.asks_judge else []
    )
