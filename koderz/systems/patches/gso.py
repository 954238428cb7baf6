"""GSO's reports: of one evaluation, of a run of one model's patches, and of several runs merged.

Source: GSO's harness, https://github.com/gso-bench/gso (c89aecd). NaN and infinity, which JSON hasn't, are null.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import orjson

from koderz.errors import KoderzError
from koderz.suites.tables import kind_of
from koderz.systems.patches.measuring.verdicts import FAR, is_as_fast_as_human, is_faster_than_base
from koderz.systems.workspaces.predictions import prediction_rows
from koderz_tracker.files import write_whole
from koderz_tracker.rates import pass_at_k
from koderz_tracker.results import pass_at_k_in

LOGS, REPORTS = Path("logs/run_evaluation"), Path("reports")
LOG, REPORT = "test_output.txt", "report.json"
OPT = ("opt_base", "opt_commit", "opt_main")
STATUSES = ("passed", "test_failed", "patch_failed", "empty_patch", "base_failed", "error")
"""The statuses, the best first."""

_SETS = (
    "completed",
    "passed",
    "base_failed",
    "patch_failed",
    "test_failed",
    "incomplete",
    "empty_patch",
    "error",
)

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
    sets: dict[str, set[str]] = {
        f"{name}_ids": set() for name in (*_SETS, *OPT) if name != "incomplete"
    }
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
    before, after = (
        [np.float64(each) for each in means.get(side) or ()] for side in ("commit", "patch")
    )
    with np.errstate(all="ignore"):
        return geometric_mean(speedups(before, after))


def write_json(path: Path, document: Json) -> None:
    """Writes JSON. Raises KoderzError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(
            path, [orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)]
        )
    except OSError as error:
        raise KoderzError(f"{path} can't be written: {error.strerror}") from None


Status = Literal["base_failed", "patch_failed", "test_failed", "passed"]
Times = list[list[float]]
"""The seconds of the iterations of each test."""

SIDES = ("base", "patch", "commit", "main")

_TEST = re.compile(r"^>>>>> Test \d+\s*$", re.MULTILINE)
_TIME = re.compile(r"Execution time:\s+([\d\.]+)s")


def status_of(log: str) -> Status:
    """The status that the evaluation reached."""
    if "Applying patch..." not in log:
        return "base_failed"
    if ">>>>> Patch Apply Failed" in log or ">>>>> Init Failed" in log:
        return "patch_failed"
    if ">>>>> Tests Errored" in log or ">>>>> Tests Timed Out" in log:
        return "test_failed"
    if not (">>>>> Start Patch Output" in log and ">>>>> End Patch Output" in log):
        return "test_failed"
    return "passed"


def times_of(log: str) -> Mapping[str, Times | None]:
    """The times of each side; None for the main branch if it wasn't measured.

    Raises ValueError where another side is missing, or a time is no number.
    """
    found: dict[str, Times | None] = {side: _times(log, side.capitalize()) for side in SIDES[:3]}
    try:
        broken = ">>>>> WARNING: Error in main branch! continuing..." in log
        found["main"] = None if broken else _times(log, "Main")
    except ValueError:
        found["main"] = None
    return found


def _times(log: str, side: str) -> Times:
    _, start, rest = log.partition(f">>>>> Start {side} Output")
    if not start:
        raise ValueError(f"the log has no section {side}")
    section = rest.partition(f">>>>> Start {side} Output")[0].partition(f">>>>> End {side} Output")[
        0
    ]
    tests = [
        [float(found[1]) for line in block.splitlines() if (found := _TIME.match(line.strip()))]
        for block in _TEST.split(section)
    ]
    return [times for times in tests if times]


_HOW = ("am_speedup", "gm_speedup", "gsd_speedup", "slowdown_perc", "hm_speedup")


def speedups(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """The speed-up of each test; infinity if it takes no time after. A longer list is cut."""
    return [b / a if a > 0 else float("inf") for b, a in zip(before, after, strict=False)]


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean; None for no ratios."""
    import numpy as np

    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def harmonic_mean(ratios: Sequence[float]) -> float | None:
    """The harmonic mean over all, summing only those above 0; None for none. ZeroDivisionError for infinite ones."""
    if not ratios:
        return None
    above = [ratio for ratio in ratios if ratio > 0]
    return len(ratios) / sum(1 / ratio for ratio in above) if above else float("inf")


def graded(times: Mapping[str, Times | None]) -> dict[str, Any]:
    """The `opt_base`, `opt_commit`, `opt_main`, `time_stats` and `opt_stats` of one evaluation.

    Raises TypeError or ZeroDivisionError where times that are needed are missing or can't be compared.
    """
    import numpy as np

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # one test has no deviation
        return _graded(times)


def _graded(times: Mapping[str, Times | None]) -> dict[str, Any]:
    import numpy as np

    means: dict[str, list[Any]] = {
        side: [np.mean(each) for each in times[side] or ()] for side in SIDES
    }
    mean: dict[str, Any] = {side: np.mean(each) if each else None for side, each in means.items()}
    time_stats: dict[str, Any] = {}
    for side, each in means.items():
        spread = np.std(each, ddof=1) if len(each) > 1 else 0.0
        time_stats |= {f"{side}_mean": mean[side], f"{side}_std": spread if each else None}
    compared = {
        pair: _compared(mean[x], mean[y], means[x], means[y])
        for pair, x, y in (
            ("patch_commit", "commit", "patch"),
            ("patch_base", "base", "patch"),
            ("commit_base", "base", "commit"),
            ("patch_main", "main", "patch"),
        )
    }
    named = {
        pair: {f"{how}_{pair}": value for how, value in zip(_HOW, values, strict=True)}
        for pair, values in compared.items()
    }
    unset = [
        f"{how}_patch_{side}"
        for how in ("opt_perc", "speedup", "gm_speedup")
        for side in ("base", "commit", "main")
    ]
    opt_stats: dict[str, Any] = dict.fromkeys(unset)
    opt_stats |= named["patch_commit"] | named["patch_base"] | named["commit_base"]
    opt_stats["per_test_speedups"] = {
        "patch_base_speedups": speedups(means["base"], means["patch"]),
        "commit_base_speedups": speedups(means["base"], means["commit"]),
        "patch_commit_speedups": speedups(means["commit"], means["patch"]),
    }
    flags = {"opt_base": False, "opt_commit": False, "opt_main": False}
    if is_faster_than_base(mean["base"], mean["patch"], compared["patch_base"][1]):
        flags["opt_base"] = True
        flags["opt_commit"] = is_as_fast_as_human(compared["patch_commit"][4])
        if mean["main"] is not None and is_as_fast_as_human(compared["patch_main"][4]):
            flags["opt_main"] = True
            opt_stats |= named["patch_main"]
    return {**flags, "time_stats": {**time_stats, "per_test_means": means}, "opt_stats": opt_stats}


def _compared(
    before: Any, after: Any, befores: Sequence[Any], afters: Sequence[Any]
) -> tuple[Any, ...]:
    """The figures in the order of `_HOW`; None if a side has no times."""
    import numpy as np

    if before is None or after is None:
        return (None,) * len(_HOW)
    ratios = speedups(befores, afters)
    slower = [b / a for b, a in zip(befores, afters, strict=False)]
    return (
        before / after,
        geometric_mean(ratios),
        np.exp(np.std(np.log(ratios), ddof=1)),
        sum(each < 1 for each in slower) / len(slower) * 100,
        harmonic_mean(ratios),
    )


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
        found.append(
            {
                name: {**row, "model_name_or_path": _attempt(row, number)}
                for name, row in earlier.items()
            }
        )
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
        if not _is_name(name) or not _is_name(
            str(row.fields.get("model_name_or_path", "None")).replace("/", "__")
        ):
            raise row.error("instance_id or model_name_or_path can't be a folder's name")
        rows.append({**row.fields, "instance_id": name})
    return rows


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and text.isprintable() and not {*text} & {"/", "\\"}


def exact_part(ids: Sequence[str], reports: Sequence[Mapping[str, Any]], k: int) -> dict[str, Any]:
    """The `exact` and `exact_interval` of a summary, by kind of count and K, as fractions over all tasks.

    The mean over tasks of 1 − C(n−c, K) / C(n, K), c being good among n attempts, each report one; a missing one is no
    good. K goes as far as there are attempts. The interval is the 95 % one of `tracker.results.pass_at_k_in`, with
    repositories as clusters; its name is in `exact_interval_method`.
    """
    exact: dict[str, dict[str, float]] = {}
    interval: dict[str, dict[str, Sequence[float] | None]] = {}
    methods: dict[str, dict[str, str | None]] = {}
    # OWNER__REPOSITORY-COMMIT
    clusters = {name: name.rpartition("-")[0] for name in ids if "__" in name}
    for what in COUNTED:
        sets = [{*report["instance_sets"][f"{what}_ids"]} for report in reports]
        good = {name: [name in found for found in sets] for name in ids}
        exact[what], interval[what], methods[what] = {}, {}, {}
        for size in range(1, min(k, len(reports)) + 1):
            exact[what][str(size)] = fmean(
                pass_at_k(len(each), sum(each), size) for each in good.values()
            )
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
