"""Rows of GSO and of ISO-Bench as tasks. Sources: gso-bench/gso (c89aecd) and Lossfunk/ISO-Bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from koderz.errors import KoderzError
from koderz.suites.dataset import Row, read_rows
from koderz.suites.performance.tasks import PROMPT, Needs, PerfTask, unique

_HUMAN_COMMITS = MappingProxyType({"opt_commit": "gso", "head_commit": "iso", "commit_hash": "iso"})
_GITHUB = "https://github.com/"


def read_published(path: Path) -> tuple[PerfTask, ...]:
    """The tasks of a file, which are GSO's or ISO-Bench's by the fields that they have. KoderzError for others."""
    found = [_task(row) for row in read_rows(path)]
    if not found:
        raise KoderzError(f"{path} has no tasks")
    return unique(path, found)


def _task(row: Row) -> PerfTask:
    name = next((name for name in _HUMAN_COMMITS if row.fields.get(name)), "")
    if not name:
        raise row.error("it has neither GSO's opt_commit nor ISO-Bench's head_commit")
    of_gso = _HUMAN_COMMITS[name] == "gso"
    scripts = row.texts("tests" if of_gso or "tests" in row.fields else "efficiency_test")
    repo = row.text("repo")
    about = row.text("api", "")
    return PerfTask(
        id=row.text("instance_id"),
        base_commit=row.text("base_commit"),
        human_commit=row.text(name),
        human_patch=row.text("gt_diff" if of_gso else "patch", ""),
        repo=repo if "://" in repo or repo.startswith("/") else f"{_GITHUB}{repo}",
        workloads={f"test_{number}": script for number, script in enumerate(scripts)},
        install=(*row.texts("setup_commands"), *row.texts("install_commands")),
        prompt=f"{PROMPT} It is about {about}." if about else PROMPT,
        needs=Needs(minutes=60.0, processes=True),
        kind=_kind(row.fields),
        format="gso" if of_gso else "iso",
    )


def _kind(fields: Mapping[str, object]) -> str:
    """One of `KINDS`: by the command that a row of ISO-Bench's runs."""
    command = str(fields.get("perf_command") or "")
    return next((kind for kind in ("throughput", "latency") if kind in command), "serving") if command else "workload"


def refused(tasks: Sequence[PerfTask]) -> str:
    """Why tasks can't be measured on this machine; empty where they can."""
    foreign = [task for task in tasks if task.format != "own"]
    if not foreign:
        return ""
    needs = "a GPU and its own server" if foreign[0].kind != "workload" else "its image, with what it installs"
    return f"{foreign[0].id} needs {needs}; {len(foreign)} tasks can't be measured here, contained"
