"""Opt@K: the chance that at least one of K patches is as good as the human's, by GSO's count and exactly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.tables import kind_of
from koderz.systems.patches.gso.reports import Prediction
from koderz.systems.patches.measuring.verdicts import FAR
from koderz.systems.workspaces.predictions import prediction_rows
from koderz_tracker.clusters import pass_at_k_in
from koderz_tracker.rates import pass_at_k

COUNTED = ("passed", "opt_base", "opt_commit")


def natural_order(path: str) -> list[int | str]:
    """A sort key that puts `10` after `9`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]


def read_predictions(path: Path) -> list[dict[str, Prediction]]:
    """The predictions of a file by instance: those that GSO takes (the last line of several), then the others.

    The others are attempts, too, each by a model of its own, so that they have logs and reports of their own. Raises
    KoderzError for what is no prediction.
    """
    lines: dict[str, list[Prediction]] = {}
    for row in _rows(path):
        lines.setdefault(row["instance_id"], []).append(row)
    found = [{name: rows[-1] for name, rows in lines.items()}]
    for number in range(1, max(map(len, lines.values()), default=0)):
        earlier = {name: rows[number - 1] for name, rows in lines.items() if len(rows) > number}
        found.append({name: {**row, "model_name_or_path": _attempt(row, number)} for name, row in earlier.items()})
    return found


def _attempt(row: Prediction, number: int) -> str:
    return f"{row.get('model_name_or_path', 'None')}-attempt_{number}"


def _rows(path: Path) -> list[dict[str, Any]]:
    if not kind_of(path):
        raise KoderzError(f"{path}: predictions are a file of rows, such as a .jsonl or a .json")
    rows = []
    for row in prediction_rows(path):
        name, patch = row.id("instance_id"), row.fields.get("model_patch")
        if not isinstance(patch, str | None):
            raise row.error("model_patch has to be a diff or null")
        if not _is_name(name) or not _is_name(str(row.fields.get("model_name_or_path", "None")).replace("/", "__")):
            raise row.error("instance_id or model_name_or_path can't be a folder's name")
        rows.append({**row.fields, "instance_id": name})
    return rows


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and text.isprintable() and not {*text} & {"/", "\\"}


def exact_part(ids: Sequence[str], reports: Sequence[Mapping[str, Any]], k: int) -> dict[str, Any]:
    """The `exact` and `exact_interval` of a summary, by kind of count and K, as fractions over all tasks.

    The mean over tasks of 1 − C(n−c, K) / C(n, K), c being good among n attempts, each report one; a missing one is no
    good. K goes as far as there are attempts. The interval is the 95 % one of `tracker.clusters.pass_at_k_in`, with
    repositories as clusters; its name is in `exact_interval_method`.
    """
    exact: dict[str, dict[str, float]] = {}
    interval: dict[str, dict[str, Sequence[float] | None]] = {}
    methods: dict[str, dict[str, str | None]] = {}
    clusters = {name: name.rpartition("-")[0] for name in ids if "__" in name}  # OWNER__REPOSITORY-COMMIT
    for what in COUNTED:
        sets = [{*report["instance_sets"][f"{what}_ids"]} for report in reports]
        good = {name: [name in found for found in sets] for name in ids}
        exact[what], interval[what], methods[what] = {}, {}, {}
        for size in range(1, min(k, len(reports)) + 1):
            exact[what][str(size)] = fmean(pass_at_k(len(each), sum(each), size) for each in good.values())
            limits, methods[what][str(size)] = pass_at_k_in(good, clusters, size)
            interval[what][str(size)] = [*limits] if limits else None
    return {"exact": exact, "exact_interval": interval, "exact_interval_method": methods}


def review_part(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The `needs_review` of a summary: instances whose patch a person should read before trusting the score.

    Those that count as opt_commit by a patch whose harmonic mean is more than `FAR` times the human's, in any report.
    """
    found = {
        name
        for report in reports
        for name in report["instance_sets"]["opt_commit_ids"]
        if ((report["opt_stats"].get(name) or {}).get("hm_speedup_patch_commit") or 0.0) > FAR
    }
    return {"needs_review": sorted(found)}
