"""Rows of GSO and of ISO-Bench as tasks. Sources: gso-bench/gso (c89aecd) and Lossfunk/ISO-Bench."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from koderz.errors import KoderzError
from koderz.suites.dataset import Row
from koderz.suites.tables import read_rows
from koderz.systems.patches.machines import Machine
from koderz.systems.patches.services import service_of
from koderz.systems.patches.tasks import GITHUB, PROMPT, Needs, PerfTask, unique

_HUMAN_COMMITS = MappingProxyType({"opt_commit": "gso", "head_commit": "iso", "commit_hash": "iso"})
_FUNCTIONS = ("experiment", "store_result", "load_result", "check_equivalence", "run_test")
_FETCHES = re.compile(
    r"\b(apt(-get)? \w+|(conda|mamba) \w+|curl|wget|git (clone|fetch|pull)|np[mx]|yarn|cargo|uv (sync|add|tool))\b"
)
_PIP = re.compile(r"\bpip3? install\b[^'\n]*")
_OFFLINE = (("--no-index",), ("--no-deps", "--no-build-isolation"))  # words of a `pip install` that fetches nothing


def read_published(path: Path, cluster_column: str | None = None) -> tuple[PerfTask, ...]:
    """The tasks of a file of GSO or ISO-Bench, told apart by their fields. Raises KoderzError for others."""
    found = [replace(_task(row), cluster=row.cluster_by(cluster_column)) for row in read_rows(path)]
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
    command = "" if of_gso else row.text("perf_command", "")
    return PerfTask(
        id=row.id("instance_id"),
        base_commit=row.text("base_commit"),
        human_commit=row.text(name),
        human_patch=row.text("gt_diff" if of_gso else "patch", ""),
        repo=repo if "://" in repo or repo.startswith("/") else f"{GITHUB}{repo}",
        workloads={f"test_{number}": script for number, script in enumerate(scripts)},
        install=_install([*row.texts("setup_commands"), *row.texts("install_commands")]),
        prompt=f"{PROMPT} It is about {about}." if about else PROMPT,
        needs=Needs(minutes=60.0, processes=True, memory_mb=16_384),  # tables of 2 GB, copied
        service=service_of(command, row.text("model", "")) if command else None,
        kind=_kind(command),
        format="gso" if of_gso else "iso",
    )


def _kind(command: str) -> str:
    """The kind in `KINDS` of a row of ISO-Bench, by its command."""
    return next((kind for kind in ("throughput", "latency") if kind in command), "serving") if command else "workload"


def _install(commands: Sequence[str]) -> tuple[str, ...]:
    """A single command that runs these in one shell, so that settings such as `source .venv/bin/activate` persist.

    Without `git clean`, which would remove what a patch adds.
    """
    wanted = [each for each in commands if each.strip() and "git clean" not in each]
    return ("bash -euo pipefail -c " + shlex.quote("\n".join(wanted)),) if wanted else ()


def refused(tasks: Sequence[PerfTask], machines: Mapping[str, Machine] | None = None) -> str:
    """The reason why tasks can't be measured; empty if they can. `machines`: by id, of tasks that have one.

    Raises KoderzError for a test script or a command that can't be measured anywhere.
    """
    for task in tasks:
        machine = (machines or {}).get(task.id, Machine())
        if task.service and task.service.refused:
            raise KoderzError(f"{task.id}: {task.service.refused}")
        if task.service and task.conventions.published and not machine.base:
            return f"{task.id} needs a GPU and its own server: it can't be measured here"
        if task.conventions.published:
            _require_scripts(task)
            if not machine.base and (wanted := _fetching(machine.install(task))):
                what = f"its install has {wanted!r}, and nothing is fetched within the sandbox"
                how = "measure it with --sandbox docker or modal, or in an environment that --overrides names"
                return f"{task.id} needs its image: {what}; {how}"
    return ""


def _fetching(install: Sequence[str]) -> str:
    """The first command of an install that needs a network; empty if none does."""
    for line in "\n".join(install).splitlines():
        if found := _FETCHES.search(line):
            return found[0]
        if (found := _PIP.search(line)) and not any(all(word in line for word in words) for words in _OFFLINE):
            return found[0]
    return ""


def _require_scripts(task: PerfTask) -> None:
    for name, source in task.workloads.items():
        try:
            found = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        except (SyntaxError, ValueError) as error:
            raise KoderzError(f"{task.id}: {name} is no Python: {error}") from None
        if missing := [each for each in _FUNCTIONS if each not in found]:
            raise KoderzError(f"{task.id}: {name} defines no {missing[0]}, which a test script has")
