"""Forges runs as somebody would who knows koderz: what a change leads to is made anew by koderz' own functions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from koderz.plans.ids import planned_ids
from koderz.plans.plan import decisive_digest
from koderz_tracker.records import Plan, decode
from koderz_tracker.sinks.json import write_summary

Lines = list[dict[str, Any]]


def lines_of(folder: Path) -> Lines:
    """The lines of a run's journal."""
    return [orjson.loads(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()]


def of_kind(lines: Lines, kind: str, **fields: Any) -> dict[str, Any]:
    """The first line of a kind with these fields."""
    return next(line for line in lines if line["kind"] == kind and fields.items() <= line.items())


def copied(honest: Path, target: Path) -> Path:
    """A copy of a run and its summary in the folder `target`."""
    folder = target / honest.name
    shutil.copytree(honest, folder)
    if (summary := honest.with_suffix(".json")).exists():
        shutil.copy(summary, folder.with_suffix(".json"))
    return folder


def written(folder: Path, lines: Lines, *, summary: bool = True) -> None:
    """Writes a journal, and the summary that follows from it."""
    (folder / "journal.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (folder / "journal.index").unlink(missing_ok=True)
    if summary:
        write_summary(folder)


def forged(honest: Path, target: Path, change: Callable[[Lines], None]) -> Path:
    """A copy of a run whose lines were changed, with the plan's digest, all ids and the summary made anew."""
    folder = copied(honest, target)
    written(folder, with_ids(lines_of(folder), change))
    return folder


def with_ids(lines: Lines, change: Callable[[Lines], None]) -> Lines:
    """The lines after a change, with the plan's digest and all ids made anew."""
    before = _ids(lines)
    change(lines)
    plan = _plan(lines)
    if plan.basis.digest:
        lines[0]["details"]["digest"] = decisive_digest(plan)
    after = _ids(lines)
    names = {name: after[place] for place, name in before.items() if place in after}
    for line in lines:
        if line.get("experiment_id") in names:
            line["experiment_id"] = names[line["experiment_id"]]
    return lines


def _plan(lines: Lines) -> Plan:
    plan = decode(orjson.dumps(lines[0]))
    assert isinstance(plan, Plan)
    return plan


def _ids(lines: Lines) -> dict[tuple[str, str, int], str]:
    return {(task, arm, sample): name for name, task, arm, sample in planned_ids(_plan(lines))}
