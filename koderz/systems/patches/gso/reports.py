"""GSO's reports: of one evaluation, of a run of one model's patches, and of several runs merged.

Source: GSO's harness, https://github.com/gso-bench/gso (c89aecd). NaN and infinity, which JSON hasn't, are null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from koderz.errors import KoderzError
from koderz.systems.patches.gso.logs import status_of, times_of
from koderz.systems.patches.gso.speedups import geometric_mean, graded, speedups
from tracker.files import write_whole

LOGS, REPORTS = Path("logs/run_evaluation"), Path("reports")
LOG, REPORT = "test_output.txt", "report.json"
OPT = ("opt_base", "opt_commit", "opt_main")
STATUSES = ("passed", "test_failed", "patch_failed", "empty_patch", "base_failed", "error")
"""The statuses, the best first."""

_SETS = ("completed", "passed", "base_failed", "patch_failed", "test_failed", "incomplete", "empty_patch", "error")

Prediction = Mapping[str, Any]
Json = dict[str, Any]


def folder_of(run_id: str, prediction: Prediction) -> Path:
    """The folder of a prediction's log and report."""
    return LOGS / run_id / model_of(prediction) / str(prediction["instance_id"])


def model_of(prediction: Prediction) -> str:
    """The model's name as a folder name."""
    return str(prediction.get("model_name_or_path", "None")).replace("/", "__")


def is_empty(prediction: Prediction) -> bool:
    """Whether the prediction has no patch to evaluate."""
    return prediction.get("model_patch") in (None, "")


def evaluation(prediction: Prediction, log: Path) -> Json:
    """The report of one evaluation, from its log.

    Raises OSError, or ArithmeticError, TypeError or ValueError for times that are missing or can't be compared.
    """
    found: Json = {
        "patch_is_None": prediction.get("model_patch") is None,
        "patch_exists": prediction.get("model_patch") is not None,
        "base_successfully_run": False,
        "patch_successfully_applied": False,
        "test_passed": False,
        **dict.fromkeys(("base_times", "patch_times", "commit_times", "main_times")),
        **dict.fromkeys(OPT, False),
        "time_stats": {},
        "opt_stats": {},
    }
    if found["patch_exists"]:
        text = log.read_text(encoding="utf-8")
        status = status_of(text)
        found["base_successfully_run"] = status != "base_failed"
        found["patch_successfully_applied"] = status in ("test_failed", "passed")
        found["test_passed"] = status == "passed"
        if status == "passed":
            times = times_of(text)
            found |= {f"{side}_times": each for side, each in times.items()} | graded(times)
    return {str(prediction["instance_id"]): found}


def grade_log(run_id: str, prediction: Prediction) -> str:
    """Writes the report of an evaluation beside its log; returns the error that prevented it, or ""."""
    folder = folder_of(run_id, prediction)
    try:
        write_json(folder / REPORT, evaluation(prediction, folder / LOG))
    except (ArithmeticError, OSError, TypeError, ValueError) as error:
        return f"{folder / LOG}: {error}"
    return ""


def run_report(ids: Sequence[str], predictions: Mapping[str, Prediction], run_id: str) -> Json:
    """The report of one file's predictions, from the reports of their evaluations. `ids`: all of the dataset."""
    sets: dict[str, set[str]] = {name: set() for name in (*_SETS, *OPT)}
    opt_stats: Json = {}
    for name in ids:
        if name not in predictions:
            sets["incomplete"].add(name)
        elif is_empty(predictions[name]):
            sets["empty_patch"].add(name)
        elif not (path := folder_of(run_id, predictions[name]) / REPORT).exists():
            sets["error"].add(name)
        else:
            sets["completed"].add(name)
            try:
                _sort_in(name, orjson.loads(path.read_bytes())[name], sets, opt_stats)
            except (AttributeError, KeyError, OSError, TypeError, ValueError):
                sets["error"].add(name)
    return {
        "summary": {
            "total_instances": len(ids),
            "total_predictions": len(predictions),
            **{f"{name}_instances": len(sets[name]) for name in _SETS},
            **{name: len(sets[name]) for name in OPT},
        },
        "instance_sets": {f"{name}_ids": sorted(found) for name, found in sets.items()},
        "opt_stats": opt_stats,
        "schema_version": 1,
    }


def _sort_in(name: str, report: Json, sets: Mapping[str, set[str]], opt_stats: Json) -> None:
    if report.get("patch_is_None", False) or not report.get("patch_exists", True):
        sets["empty_patch"].add(name)
    elif not report.get("base_successfully_run"):
        sets["base_failed"].add(name)
    elif not report["patch_successfully_applied"]:
        sets["patch_failed"].add(name)
    else:
        sets["passed" if report["test_passed"] else "test_failed"].add(name)
        if report["test_passed"]:
            opt_stats[name] = report["opt_stats"] | report["time_stats"]
        for flag in OPT:
            if report[flag]:
                sets[flag].add(name)


def merged_report(ids: Sequence[str], reports: Mapping[Path, Json], k: int) -> Json:
    """The merged report of several runs: the best result of each evaluated instance. `reports`: by file."""
    best: dict[str, str] = {}
    sets: dict[str, set[str]] = {f"{name}_ids": set() for name in (*_SETS, *OPT) if name != "incomplete"}
    for report in reports.values():
        found = report["instance_sets"]
        for name in found["completed_ids"]:
            status = status_in(name, found)
            if status and (name not in best or STATUSES.index(status) < STATUSES.index(best[name])):
                best[name] = status
        for flag in OPT:
            sets[f"{flag}_ids"] |= {*found[f"{flag}_ids"]}
    for name, status in best.items():
        sets["completed_ids"].add(name)
        sets[f"{status}_ids"].add(name)
    score = round(len(sets["opt_commit_ids"]) / len(ids) * 100, 2)
    return {
        "summary": {
            "total_instances": len(ids),
            "total_predictions": len(best),
            **{f"{name}_instances": len(sets.get(f"{name}_ids", ())) for name in _SETS},
            **{flag: len(sets[f"{flag}_ids"]) for flag in OPT},
            "k": k,
            "score": score,
        },
        "instance_sets": {key: sorted(found) for key, found in sets.items()},
        "schema_version": 1,
        "opt_stats": _best_stats(sorted(sets["opt_commit_ids"]), reports),
    }


def status_in(name: str, sets: Mapping[str, Sequence[str]]) -> str:
    """The status of an instance in the sets of a run; empty if they don't say."""
    order = ("passed", "patch_failed", "test_failed", "empty_patch", "base_failed", "error")
    return next((status for status in order if name in sets[f"{status}_ids"]), "")


def _best_stats(names: Sequence[str], reports: Mapping[Path, Json]) -> Json:
    """The figures of each instance from the run whose patch gained most over the human's commit."""
    best: dict[str, tuple[float, Json]] = {}
    for path, report in reports.items():
        for name in names:
            stats = report["opt_stats"].get(name) or {}
            gain = _gain(stats)
            if gain and (name not in best or gain > best[name][0]):
                best[name] = (gain, {**stats, "report_file": str(path)})
    return {name: stats for name, (_, stats) in best.items()}


def _gain(stats: Mapping[str, Any]) -> float | None:
    """The `gm_speedup_patch_commit`; None if there is none, infinite values that JSON lacks included."""
    if (found := stats.get("gm_speedup_patch_commit")) is not None or not stats:
        return found
    import numpy as np

    means = stats.get("per_test_means") or {}
    before, after = ([np.float64(each) for each in means.get(side) or ()] for side in ("commit", "patch"))
    with np.errstate(all="ignore"):
        return geometric_mean(speedups(before, after))


def write_json(path: Path, document: Json) -> None:
    """Writes JSON. Raises KoderzError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)])
    except OSError as error:
        raise KoderzError(f"{path} can't be written: {error.strerror}") from None
