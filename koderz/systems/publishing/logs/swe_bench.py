"""Reports of SWE-bench: a run's report, its folder of instances, and published submissions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.publishing.logs.log import (
    Log,
    LoggedSample,
    count,
    listed,
    number,
    read_json,
    table,
    text,
)

SPLITS = {
    "verified": 500,
    "lite": 300,
    "test": 2294,
    "multimodal": 517,
    "bash-only": 500,
    "multilingual": 300,
}
"""The number of instances of each split, by which official rates are divided. Source: swebench.com."""


def read_report(path: Path) -> Log:
    """The log of a report, `MODEL.RUN.json`. Instances that weren't completed are faults; empty patches fail.

    Raises KoderzError for one of version 1, which has numbers alone.
    """
    report = table(read_json(path))
    if "resolved_ids" not in report:
        raise KoderzError(
            f"{path} has numbers alone, and no ids of instances; give the folder of their report.json"
        )
    named = {
        name: dict.fromkeys(map(text, listed(report.get(f"{name}_ids"))))
        for name in ("resolved", "empty_patch")
    }
    lost = {
        name: dict.fromkeys(map(text, listed(report.get(f"{name}_ids"))))
        for name in ("error", "incomplete", "infra_failure")
    }
    ids = dict.fromkeys(
        map(text, [*listed(report.get("submitted_ids")), *listed(report.get("completed_ids"))])
    )
    ids |= {name: None for each in (*named.values(), *lost.values()) for name in each}
    rows = []
    for task in ids:
        why = next((name for name, those in lost.items() if task in those), "")
        is_lost = bool(why) and task not in named["resolved"]
        rows.append(
            LoggedSample(
                task=task,
                value=None if is_lost else float(task in named["resolved"]),
                error=f"{why.replace('_', ' ')} in the official harness" if is_lost else "",
                cause="empty patch" if task in named["empty_patch"] else "",
            )
        )
    model, _, run = path.stem.rpartition(".")
    total = count(report.get("total_instances"))
    notes = []
    if total and total > len(rows):
        notes.append(f"{path.name}: {len(rows)} of the dataset's {total} instances were submitted.")
    return _log(rows, model or path.stem, {"run": run}, notes)


def read_instances(path: Path) -> Log:
    """The log of a folder `logs/run_evaluation/RUN/MODEL`, which has a `report.json` for each instance."""
    rows = []
    for place in sorted(path.glob("*/report.json")):
        for task, report in table(read_json(place)).items():
            own = table(report)
            reason = text(own.get("infra_failure_reason")) if own.get("infra_failure") else ""
            rows.append(
                LoggedSample(
                    task=text(task),
                    value=None if own.get("infra_failure") else float(own.get("resolved") is True),
                    error=f"infra failure: {reason}",
                    cause="empty patch"
                    if own.get("patch_is_None") or own.get("patch_exists") is False
                    else "",
                )
            )
    return _log(rows, path.name, {"run": path.parent.name}, [])


def read_details(path: Path) -> Log:
    """The log of a submission with `per_instance_details.json`: each instance with its cost and calls."""
    place = path / "per_instance_details.json" if path.is_dir() else path
    rows = [
        LoggedSample(
            task=text(task),
            value=float(own.get("resolved") is True),
            cost=number(own.get("cost")),
            metrics={"api_calls": calls}
            if (calls := number(own.get("api_calls"))) is not None
            else {},
        )
        for task, each in table(read_json(place)).items()
        if (own := table(each)) or True
    ]
    return _log(rows, place.resolve().parent.name, {}, [])


def read_submission(path: Path) -> Log:
    """The log of a published submission, whose `results/results.json` lists what was resolved, and nothing else.

    What is listed nowhere wasn't resolved. How many those are is told by `resolved_by_repo.json` beside it, or by the
    split's folder above it. Raises KoderzError where neither does, since no rate can be had without it.
    """
    if path.is_dir():
        folder = path
    elif path.parent.name == "results":
        folder = path.parent.parent
    else:
        folder = path.parent
    place = (
        path
        if path.is_file()
        else next(
            p for p in (folder / "results/results.json", folder / "results.json") if p.exists()
        )
    )
    lists = table(read_json(place))
    resolved = dict.fromkeys(map(text, listed(lists.get("resolved"))))
    failed = dict.fromkeys(
        map(text, [*listed(lists.get("no_generation")), *listed(lists.get("no_logs"))])
    )
    rows = [LoggedSample(task=task, value=1.0) for task in resolved]
    rows += [
        LoggedSample(task=task, value=0.0, cause="nothing submitted")
        for task in failed
        if task not in resolved
    ]
    by_repo = place.with_name("resolved_by_repo.json")
    total = (
        sum(count(table(each).get("total")) or 0 for each in table(read_json(by_repo)).values())
        if by_repo.exists()
        else 0
    )
    parts = place.resolve().parts
    total = total or next((SPLITS[part] for part in reversed(parts) if part in SPLITS), 0)
    if not total:
        raise KoderzError(
            f"{place} lists what was resolved, and nothing says of how many instances; put its resolved_by_repo.json "
            f"beside it, or the submission below a folder with the split's name ({', '.join(SPLITS)})"
        )
    if total < len(rows):
        raise KoderzError(f"{place} lists {len(rows)} instances of a split of {total}")
    return _log(rows, folder.resolve().name, {}, [], unlisted=total - len(rows))


def _log(
    rows: list[LoggedSample],
    model: str,
    settings: Mapping[str, Any],
    notes: list[str],
    unlisted: int = 0,
) -> Log:
    date = re.match(r"(\d{4})(\d\d)(\d\d)_", model)
    return Log(
        tool="SWE-bench",
        suite="swe-bench",
        model=model,
        rows=[
            replace(row, fields={"repo": row.task.rpartition("-")[0].replace("__", "/")})
            for row in rows
        ],
        settings=settings,
        scorer="resolved",
        started="-".join(date.groups()) if date else "",
        unlisted=unlisted,
        notes=notes,
    )
