"""Opt@K: how often at least one of K patches is as good as the human's, as GSO counts it and by the exact estimator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from koderz.analysis.gso.reports import Prediction
from koderz.errors import KoderzError
from tracker.rates import pass_at_k

COUNTED = ("passed", "opt_base", "opt_commit")
_DRAWS = 10_000
_CONFIDENCE = 95


def natural_order(path: str) -> list[int | str]:
    """The key by which `10` comes after `9`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]


def read_predictions(path: Path) -> list[dict[str, Prediction]]:
    """The predictions of a file by instance: those that GSO takes, of several lines of one the last; then the others.

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
    try:
        data = path.read_bytes()
        if path.suffix == ".jsonl":
            rows: Any = [orjson.loads(line) for line in data.splitlines() if line.strip()]
        elif path.suffix == ".json":
            rows = orjson.loads(data)
            rows = [*rows.values()] if isinstance(rows, dict) else rows
        else:
            raise KoderzError(f"{path}: predictions are a .json or a .jsonl file")
    except (OSError, ValueError) as error:
        raise KoderzError(f"{path} can't be read: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise KoderzError(f"{path}: predictions are objects, a line each, in a list or by instance")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("instance_id"), str):
            raise KoderzError(f"{path}, prediction {number} has no instance_id")
        if not isinstance(row.get("model_patch"), str | None):
            raise KoderzError(f"{path}, prediction {number}: model_patch has to be a diff or null")
        if not _is_name(row["instance_id"]) or not _is_name(
            str(row.get("model_name_or_path", "None")).replace("/", "__")
        ):
            raise KoderzError(
                f"{path}, prediction {number}: instance_id or model_name_or_path can't be a folder's name"
            )
    return rows


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and text.isprintable() and not {*text} & {"/", "\\"}


def exact_part(ids: Sequence[str], reports: Sequence[Mapping[str, Any]], k: int) -> dict[str, Any]:
    """`exact` and `exact_interval` of a summary: by what is counted and by K, fractions over all tasks of the dataset.

    The mean over tasks of 1 − C(n−c, K) / C(n, K), c being good among n attempts, each report one; a missing one is no
    good. K goes as far as there are attempts. The interval is a percentile bootstrap over tasks, 95 %, 10,000 draws.
    """
    import numpy as np

    attempts = len(reports)
    drawn = np.random.default_rng(0).multinomial(len(ids), [1 / len(ids)] * len(ids), _DRAWS) / len(ids)
    exact: dict[str, dict[str, float]] = {}
    interval: dict[str, dict[str, list[float]]] = {}
    tails = ((100 - _CONFIDENCE) / 2, (100 + _CONFIDENCE) / 2)
    for what in COUNTED:
        sets = [{*report["instance_sets"][f"{what}_ids"]} for report in reports]
        good = [sum(name in found for found in sets) for name in ids]
        exact[what], interval[what] = {}, {}
        for size in range(1, min(k, attempts) + 1):
            each = np.array([pass_at_k(attempts, count, size) for count in good])
            exact[what][str(size)] = float(each.mean())
            interval[what][str(size)] = [float(end) for end in np.percentile(drawn @ each, tails)]
    return {"exact": exact, "exact_interval": interval}
